// The kernel of one finite ReLU layer over angles: the problem, checked once, and the op of every device.
//
// A device supplies a function over a Problem and registers ZB_LAYER_KERNEL(function). README.md beside this
// file says what the op means.
#pragma once

#include <cmath>
#include <optional>

#include "common/aten.h"
#include "common/tensor.h"

namespace zb::layer_kernel {

using Bias = std::optional<Tensor>;

struct Problem {
  int64_t P, n, A;  // u, v [P, n]; out [P, A]
  bool own_angles;  // angles [P, A]; else [A], the same for every pair
  bool normalized;
  ScalarType dtype;  // of u, v, bias and out
};

// u, v and bias as they lie in memory: rows of units side by side, row_step elements apart; bias is null
// where there is none. angles are float64 [P or 1, A], contiguous.
struct Inputs {
  Tensor u, v, angles;
  Bias bias;
  int64_t u_step, v_step;
  const void* bias_data() const { return bias ? bias->const_data_ptr() : nullptr; }
};

// Raises (RuntimeError in Python) where the call has no meaning; kernels rely on what it lets through.
Problem make_problem(const Tensor& u, const Tensor& v, const Tensor& angles, const Bias& bias,
                     bool normalized);
Inputs make_inputs(const Tensor& u, const Tensor& v, const Tensor& angles, const Bias& bias);

// To out [P, A], contiguous. Neither P nor A is 0; n may be.
using Forward = void (*)(const Problem&, const Inputs&, Tensor& out);

template <Forward forward>
Tensor layer_kernel(Tensor u, Tensor v, Tensor angles, Bias bias, bool normalized) {
  const NoGrad no_grad;
  const Problem p = make_problem(u, v, angles, bias, normalized);
  Tensor out = empty_on(u, {p.P, p.A}, p.dtype);
  if (out.numel() > 0) forward(p, make_inputs(u, v, angles, bias), out);
  return out;
}

// The value of the sums of a², a r and r².
#ifdef __CUDACC__
__host__ __device__
#endif
    inline double value_of_sums(double a2, double ar, double r2, int64_t n, bool normalized) {
  return normalized ? ar / (std::sqrt(a2) * std::sqrt(r2)) : ar / static_cast<double>(n);
}

}  // namespace zb::layer_kernel

// The op over the function of a device, for a zb::Registration.
#define ZB_LAYER_KERNEL(function) {"layer_kernel", TORCH_BOX((&zb::layer_kernel::layer_kernel<function>))}
