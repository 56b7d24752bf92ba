// The checks, the same for every device. Python checks first, with fuller messages; these hold for C++
// callers and keep the kernels inside their tensors.
#include "layer_kernel/layer_kernel.h"

namespace zb::layer_kernel {
namespace {

// t itself where its last dimension lies dense in memory, else a contiguous copy.
Tensor with_dense_rows(const Tensor& t) {
  return t.size(t.dim() - 1) == 1 || t.stride(t.dim() - 1) == 1 ? t : torch::stable::contiguous(t);
}

}  // namespace

Problem make_problem(const Tensor& u, const Tensor& v, const Tensor& angles, const Bias& bias,
                     bool normalized) {
  constexpr const char* op = "layer_kernel";
  STD_TORCH_CHECK(u.dim() == 2, op, ": expected u of shape [P, n], got ", shape_text(u));
  check_floating(op, "u", u);
  check_same(op, "u", u, "v", v);
  STD_TORCH_CHECK(v.dim() == 2 && v.size(0) == u.size(0) && v.size(1) == u.size(1), op,
                  ": expected v of u's shape ", shape_text(u), ", got ", shape_text(v));
  check_floating(op, "angles", angles);
  STD_TORCH_CHECK(angles.device() == u.device(), op, ": expected u and angles on one device");
  STD_TORCH_CHECK(angles.dim() == 1 || (angles.dim() == 2 && angles.size(0) == u.size(0)), op,
                  ": expected angles of shape [A] or [P, A] with P = ", u.size(0), ", got ",
                  shape_text(angles));
  for (const Tensor* t : {&u, &v, &angles}) check_allocated(op, "u, v and angles", *t);
  if (bias) {
    check_same(op, "u", u, "bias", *bias);
    check_allocated(op, "bias", *bias);
    STD_TORCH_CHECK(bias->dim() == 1 && bias->size(0) == u.size(1), op,
                    ": expected bias of shape [n] with n = ", u.size(1), ", got ", shape_text(*bias));
  }
  return {u.size(0),         u.size(1),  angles.size(angles.dim() - 1),
          angles.dim() == 2, normalized, u.scalar_type()};
}

Inputs make_inputs(const Tensor& u, const Tensor& v, const Tensor& angles, const Bias& bias) {
  const Tensor doubles = torch::stable::contiguous(torch::stable::to(angles, ScalarType::Double));
  Inputs in{with_dense_rows(u), with_dense_rows(v), doubles, std::nullopt, 0, 0};
  if (bias) in.bias = with_dense_rows(*bias);
  in.u_step = in.u.stride(0), in.v_step = in.v.stride(0);
  return in;
}

}  // namespace zb::layer_kernel
