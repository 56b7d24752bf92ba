// act(x weightᵀ) without a bias: the problem's sizes, checked once, and the ops that every device shares.
//
// A device supplies one function over a Problem and registers Ops<forward>. README.md beside this file says
// what the ops mean.
#pragma once

#include <tuple>

#include "common/aten.h"
#include "common/tensor.h"

namespace zb::linear_relu {

struct Problem {
  int64_t rows, in, out;  // x [rows, in], weight [out, in], y [rows, out]; rows: all leading dimensions of x
  int64_t words;          // of one row of sig [rows, words]
  double slope;
  bool need_sig;
  ScalarType dtype;
};

struct Outputs {
  Tensor y, sig;  // y [..., out] and sig [..., words] (or [0] where not wanted), contiguous
};

// Raises (RuntimeError in Python) where the call has no meaning; kernels rely on what it lets through.
Problem make_problem(const char* op, const Tensor& x, const Tensor& weight, double negative_slope,
                     bool need_sig);
Outputs make_outputs(const Problem& p, const Tensor& x);

// x is [rows, in] and weight [out, in], both of any strides. Neither rows nor out is 0; in may be.
using Forward = void (*)(const Problem&, const Tensor& x, const Tensor& weight, Outputs& outputs);

template <Forward forward>
struct Ops {
  static Outputs run(const char* op, const Tensor& x, const Tensor& weight, double negative_slope,
                     bool need_sig) {
    const NoGrad no_grad;
    const Problem p = make_problem(op, x, weight, negative_slope, need_sig);
    Outputs outputs = make_outputs(p, x);
    if (outputs.y.numel() > 0) forward(p, aten::as_matrix(x, p.rows, p.in), weight, outputs);
    return outputs;
  }

  static Tensor linear_relu(Tensor x, Tensor weight, double negative_slope) {
    return run("linear_relu", x, weight, negative_slope, false).y;
  }

  static std::tuple<Tensor, Tensor> linear_relu_nap(Tensor x, Tensor weight, double negative_slope) {
    Outputs outputs = run("linear_relu_nap", x, weight, negative_slope, true);
    return {outputs.y, outputs.sig};
  }
};

}  // namespace zb::linear_relu

// Lists the two ops over the function of a device, for a zb::Registration.
#define ZB_LINEAR_RELU_KERNELS(forward)                                             \
  {"linear_relu", TORCH_BOX((&zb::linear_relu::Ops<forward>::linear_relu))}, {      \
    "linear_relu_nap", TORCH_BOX((&zb::linear_relu::Ops<forward>::linear_relu_nap)) \
  }
