// Names, checks and the way to the reference, the same for every device. Python checks first, with fuller
// messages; these hold for C++ callers and keep the kernels inside their tensors.
#include "dual_kernel/dual_kernel.h"

#include <cmath>
#include <cstdlib>

namespace zb::dual_kernel {
namespace {

Activation piecewise_linear(double slope) {
  Activation a;
  a.form = Form::kPiecewiseLinear;
  a.slope = slope;
  a.zero_one = slope * (1 + slope) / 2;  // at 0 the slope is that of the left side, as torch has it
  a.zero_both = slope * slope;
  return a;
}

Activation of_form(Form form, double gain = 1, double scale = 1, double offset = 0) {
  Activation a;
  a.form = form, a.gain = gain, a.scale = scale, a.offset = offset;
  return a;
}

// A plain decimal number, finite; false for what else Python's float() reads too.
bool number(const char* text, double& value) {
  if (std::strspn(text, "+-.0123456789eE") != std::strlen(text) || !*text) return false;
  char* end = nullptr;
  value = std::strtod(text, &end);
  return *end == '\0' && std::isfinite(value);
}

}  // namespace

bool parse_activation(const Name& name, Activation& a) {
  double x = 0;
  if (name == "relu") return a = piecewise_linear(0), true;
  if (name == "leaky_relu") return a = piecewise_linear(0.01), true;
  if (std::strncmp(name.text, "leaky_relu:", 11) == 0) {
    return number(name.text + 11, x) && (a = piecewise_linear(x), true);
  }
  if (name == "abs") {  // whose derivative at 0 is 0, not that of the left side
    a = piecewise_linear(-1);
    a.zero_one = a.zero_both = 0;
    return true;
  }
  if (name == "identity") return a = of_form(Form::kIdentity), true;
  if (name == "erf") return a = of_form(Form::kErf), true;
  if (std::strncmp(name.text, "erf:", 4) == 0) {
    return number(name.text + 4, x) && (a = of_form(Form::kErf, x), true);
  }
  if (name == "gelu") return a = of_form(Form::kGelu), true;
  if (name == "sin") return a = of_form(Form::kSin), true;
  if (name == "cos") return a = of_form(Form::kCos), true;
  if (name == "sin+cos") return a = of_form(Form::kSinPlusCos), true;
  if (name == "sigmoid_erf") return a = of_form(Form::kErf, 1 / 2.4, 0.5, 0.5), true;
  if (name == "tanh_erf") return a = of_form(Form::kErf, 1 / 1.2), true;
  return false;
}

Problem make_problem(const char* op, const Tensor& x1, const Tensor& x2, const Tensor* v, const Word& kernel,
                     const Activation& activation, int64_t depth, double w_std, double b_std,
                     const Word& train) {
  STD_TORCH_CHECK(x1.scalar_type() == ScalarType::Float || x1.scalar_type() == ScalarType::Double, op,
                  ": expected x1 of dtype float32 or float64");
  check_same(op, "x1", x1, "x2", x2);
  STD_TORCH_CHECK(x1.dim() == 2 && x2.dim() == 2 && x1.size(1) > 0 && x1.size(1) == x2.size(1), op,
                  ": expected x1 and x2 of shape [inputs, features] of as many features, more than 0, got ",
                  shape_text(x1), " and ", shape_text(x2));
  check_allocated(op, "x1", x1);
  check_allocated(op, "x2", x2);
  Problem p{};
  if (v) {
    check_same(op, "x1", x1, "v", *v);
    STD_TORCH_CHECK(v->dim() == 2 && v->size(0) == x2.size(0), op, ": expected v of shape [", x2.size(0),
                    ", p], got ", shape_text(*v));
    check_allocated(op, "v", *v);
    p.p = v->size(1);
  }
  STD_TORCH_CHECK(kernel == "nngp" || kernel == "ntk", op, ": expected kernel to be 'nngp' or 'ntk', got '",
                  kernel.text, "'");
  STD_TORCH_CHECK(train == "all" || (train == "first" && kernel == "ntk"), op,
                  ": expected train to be 'all', or 'first' for 'ntk', got '", train.text, "'");
  STD_TORCH_CHECK(depth >= 0, op, ": expected depth >= 0, got ", depth);
  STD_TORCH_CHECK(w_std >= 0 && std::isfinite(w_std) && b_std >= 0 && std::isfinite(b_std), op,
                  ": expected finite w_std and b_std >= 0, got ", w_std, " and ", b_std);
  p.N = x1.size(0);
  p.M = x2.size(0);
  p.d = x1.size(1);
  p.tangent = kernel == "ntk";
  p.first_only = train == "first";
  p.symmetric = x1.data_ptr() == x2.data_ptr() && p.N == p.M && x1.stride(0) == x2.stride(0) &&
                x1.stride(1) == x2.stride(1);
  p.depth = depth;
  p.w2 = w_std * w_std;
  p.b2 = b_std * b_std;
  p.activation = activation;
  p.dtype = x1.scalar_type();
  return p;
}

Tensor reference(const char* op, const Tensor& x1, const Tensor& x2, const Tensor* v, const Word& kernel,
                 const Name& activation, int64_t depth, double w_std, double b_std, const Word& train) {
  using torch::stable::detail::from;
  std::vector<StableIValue> stack{from(x1), from(x2)};
  if (v) stack.push_back(from(*v));
  for (const StableIValue value : {from(std::string(kernel.text)), from(std::string(activation.text)),
                                   from(depth), from(w_std), from(b_std), from(std::string(train.text))}) {
    stack.push_back(value);
  }
  const std::string name = std::string("zb::_") + op + "_reference";
  STD_TORCH_CHECK(
      torch_call_dispatcher(name.c_str(), "", stack.data(), TORCH_ABI_VERSION) == AOTI_TORCH_SUCCESS, op,
      ": no compiled kernel for activation '", activation.text,
      "', and the reference, which needs Python with zbkernels imported, did not run");
  return torch::stable::detail::to<Tensor>(stack[0]);
}

}  // namespace zb::dual_kernel
