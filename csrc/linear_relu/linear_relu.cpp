// The checks and the allocation of results, the same for every device. Python checks first, with fuller
// messages; these hold for C++ callers and keep the kernels inside their tensors.
#include "linear_relu/linear_relu.h"

namespace zb::linear_relu {

Problem make_problem(const char* op, const Tensor& x, const Tensor& weight, double negative_slope,
                     bool need_sig) {
  STD_TORCH_CHECK(x.dim() >= 1, op, ": expected x of shape [..., in], got a scalar");
  STD_TORCH_CHECK(weight.dim() == 2, op, ": expected weight of shape [out, in], got ", shape_text(weight));
  check_floating(op, "x", x);
  check_same(op, "x", x, "weight", weight);
  check_allocated(op, "x", x);
  check_allocated(op, "weight", weight);
  STD_TORCH_CHECK(negative_slope >= 0 && negative_slope <= 1, op, ": expected 0 <= negative_slope <= 1, got ",
                  negative_slope);
  Problem p{};
  p.in = weight.size(1);
  p.out = weight.size(0);
  STD_TORCH_CHECK(x.size(x.dim() - 1) == p.in, op, ": expected x of shape [..., in] for weight ",
                  shape_text(weight), ", got ", shape_text(x));
  p.rows = 1;
  for (int64_t d = 0; d + 1 < x.dim(); ++d) p.rows *= x.size(d);
  p.words = words_for(p.out);
  p.slope = negative_slope;
  p.need_sig = need_sig;
  p.dtype = x.scalar_type();
  return p;
}

Outputs make_outputs(const Problem& p, const Tensor& x) {
  Ints sizes(x.sizes().begin(), x.sizes().end());
  sizes.back() = p.out;
  const Tensor y = empty_on(x, sizes, p.dtype);
  sizes.back() = p.words;
  return {y, empty_on(x, p.need_sig ? sizes : Ints{0}, ScalarType::Long)};
}

}  // namespace zb::linear_relu
