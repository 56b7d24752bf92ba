// The gradient of x as a forward pass by minimal filtering (winograd.h): a convolution of the un-pooled
// gradient, which unpool.h makes patch by patch, with the filters turned by half a turn and the channels'
// roles exchanged.
//
// It spends four times fewer multiplications than a dense convolution (3x3; 6.25 times for 5x5). The sparse
// way skips what max pooling leaves at 0, which is as much for a 2x2 window, but in lists: a multiplication
// costs it more than twice as much. Milliseconds on one thread of an EPYC (Zen 4, AVX-512), best of several,
// the gradient of x alone and both gradients (that of the weight is the sparse way's each time):
//                          fashion2     cifar2       res9        vgg5
//   by sparse lists        26    44    118   195    90   193   316   632
//   by minimal filtering   16    35     80   153    55   139   192   413
#include "common/cpu_capability.h"
#include "common/last_kernel.h"
#include "common/parallel.h"
#include "conv_relu_pool/cpu/backward.h"
#include "conv_relu_pool/cpu/run_call.h"

namespace zb::conv_relu_pool::cpu {
namespace {

Unpool unpool_of(const BackwardArgs& a, const Tensor& code) {
  const Problem& p = a.p;
  Unpool u{};
  u.pool = p.pool == Pool::kMax ? Pooling::kMax : p.pool == Pool::kAvg ? Pooling::kAvg : Pooling::kNone;
  u.code_kind = p.pool != Pool::kMax               ? CodeKind::kBits
                : p.code_dtype == ScalarType::Byte ? CodeKind::kByte
                                                   : CodeKind::kInt;
  u.code = code.const_data_ptr();
  for (int i = 0; p.pool == Pool::kMax && i < 4; ++i) u.code_strides[i] = code.stride(i);
  u.size[0] = p.P, u.size[1] = p.Q;
  for (int d = 0; d < 2; ++d) {
    u.kernel[d] = p.pool_kernel[d], u.stride[d] = p.pool_stride[d], u.padding[d] = p.pool_padding[d];
  }
  u.count_include_pad = p.count_include_pad;
  u.slope = static_cast<float>(p.slope);
  return u;
}

Call make_call(const BackwardArgs& a) {
  const Problem& p = a.p;
  Call c{};
  c.N = p.N, c.C = p.K, c.K = p.C, c.Cg = p.K, c.Kg = p.C, c.groups = 1;
  const int64_t in[2] = {p.H1, p.W1}, kernel[2] = {p.R, p.S}, out[2] = {p.H, p.W};
  for (int d = 0; d < 2; ++d) {
    c.in[d] = in[d], c.kernel[d] = kernel[d], c.map[d] = c.out[d] = out[d];
    c.stride[d] = c.dilation[d] = c.pool_kernel[d] = c.pool_stride[d] = 1;
    c.padding[d] = kernel[d] - 1 - p.padding[d];
  }
  c.pool = Pooling::kNone;
  c.slope = 1;
  c.highest = highest_precision();
  c.element = element_of(p.dtype);
  c.threads = thread_count();
  return c;
}

}  // namespace

bool winograd_input_is_faster(const BackwardArgs& a) {
  const Problem& p = a.p;
  if (p.dtype == ScalarType::Double || p.groups != 1) return false;
  for (int d = 0; d < 2; ++d) {
    const int64_t kernel = d == 0 ? p.R : p.S;
    if (p.stride[d] != 1 || p.dilation[d] != 1 || p.padding[d] >= kernel) return false;
  }
  Call c = make_call(a);
  general_kernels_here().plan(c);
  if (c.algorithm != Algorithm::kWinograd || c.few) return false;
  // Of every unit of the map 36 / 16 multiplications a weight's channel are left (3x3), 64 / 16 (5x5), ...;
  // of the winners all R * S. A winner's cost about twice as much each (the table above).
  const double dense = static_cast<double>(c.points * c.points) /
                       static_cast<double>((c.points + 1 - c.filter) * (c.points + 1 - c.filter));
  const double live = static_cast<double>(p.P * p.Q) / static_cast<double>(p.H1 * p.W1);
  return p.pool != Pool::kMax || dense < 2 * live * static_cast<double>(p.R * p.S);
}

Tensor backward_winograd_input(const BackwardArgs& a) {
  const Problem& p = a.p;
  const Tensor code = p.pool == Pool::kMax ? a.code : torch::stable::contiguous(a.code);
  const Tensor grad_x = empty_on(a.x, {p.N, p.C, p.H, p.W}, p.dtype, p.x_channels_last);
  const Unpool unpool = unpool_of(a, code);
  Call c = make_call(a);
  c.x = a.grad.const_data_ptr();
  c.unpool = &unpool;
  const int64_t size = c.element == Element::kFloat ? 4 : 2;
  const int64_t last = (p.R - 1) * a.weight.stride(2) + (p.S - 1) * a.weight.stride(3);
  c.weight = static_cast<const char*>(a.weight.const_data_ptr()) + last * size;
  c.w_strides[0] = a.weight.stride(1), c.w_strides[1] = a.weight.stride(0);
  c.w_strides[2] = -a.weight.stride(2), c.w_strides[3] = -a.weight.stride(3);
  c.y = grad_x.mutable_data_ptr();
  for (int i = 0; i < 4; ++i) c.x_strides[i] = a.grad.stride(i), c.y_strides[i] = grad_x.stride(i);
  const Kernels& kernels = general_kernels_here();
  kernels.plan(c);
  run_call(kernels, c, false);
  note_kernel(kernels.winograd_backward_name);
  return grad_x;
}

}  // namespace zb::conv_relu_pool::cpu
