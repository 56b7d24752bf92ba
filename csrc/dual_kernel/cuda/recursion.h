// The recursion over layers for one pair of inputs, and the numbers of a single input that it takes.
//
// zbkernels/infinite/kernels.py and dual_forms.py say what is computed and why the forms are written so; here
// are the same forms on numbers. No value depends on which input of a pair comes first, to the last bit.
#pragma once

#include <cmath>

#include "common/cuda/dtype.h"
#include "dual_kernel/dual_kernel.h"

namespace zb::dual_kernel {

// The network as a kernel takes it, in the type that it computes in.
template <class T>
struct Network {
  Form form;
  bool tangent, first_only;
  int64_t depth;
  T w2, b2, first_w2;  // squared scales of weights and biases; of the first layer's, over the features
  T gain2;             // of what goes into the form
  T scale2, offset2;   // scale² D + offset²: no name has an offset and a mean that is not 0 without it
  T slope2;            // of the derivative: (scale gain)²
  T odd2, even2;       // piecewise linear: slope·x = odd x + even |x|
  T at_none, at_both;  // its derivative where one variance is 0, and where both are
};

// What the form needs of one input at one layer: the variance q going into it (with the gain), and of q, or
// of 1 + t q where the form saturates, the square root; keep = 1/(1 + t q), lose = t q/(1 + t q).
template <class T>
struct alignas(16) Moments {
  T q, root, keep, lose;
};

constexpr double kPi = 3.14159265358979323846;

// What erf saturates by: 1 + t·variance.
template <class T>
ZB_DEVICE T saturation(Form form) {
  return form == Form::kErf ? T(2) : T(1);
}

template <class T>
ZB_DEVICE Moments<T> moments(const Network<T>& net, T variance) {
  Moments<T> m{net.gain2 * variance, 0, 0, 0};
  const T q = m.q < 0 ? T(0) : m.q;
  switch (net.form) {
    case Form::kPiecewiseLinear:
      m.root = std::sqrt(q);
      break;
    case Form::kErf:
    case Form::kGelu: {
      const T more = saturation<T>(net.form) * q, sum = 1 + more;
      m.root = std::sqrt(sum);
      m.keep = 1 / sum;
      m.lose = more / sum;
      break;
    }
    default:
      break;
  }
  return m;
}

// E[s(u) s(v)] and E[s'(u) s'(v)].
template <class T>
struct DualPair {
  T dual, derivative;
};

// 1 - q12² / (q11 q22), from two quotients: their product is exactly 1 for equal inputs.
template <class T>
ZB_DEVICE T sine_squared(T q11, T q12, T q22) {
  const T rest = 1 - cuda::multiply(q12 / q11, q12 / q22);
  return rest < 0 ? T(0) : rest;
}

template <class T>
ZB_DEVICE DualPair<T> piecewise_linear(const Network<T>& net, const Moments<T>& a, T q12, const Moments<T>& b,
                                       T sin2) {
  const bool none = a.q <= 0 || b.q <= 0;
  if (none) return {q12 * 0, a.q <= 0 && b.q <= 0 ? net.at_both : net.at_none};  // NaN stays
  const T norms = cuda::multiply(a.root, b.root), sine = std::sqrt(sin2);
  const T rest = std::atan2(q12 / norms, sine);  // 90 degrees less the angle
  const T even2 = T(2 / kPi) * net.even2;
  return {net.odd2 * q12 + even2 * (norms * sine + q12 * rest), net.odd2 + even2 * rest};
}

// erf and GELU: with 1 + t q in place of the variances and t q12 of the covariance.
template <class T>
ZB_DEVICE DualPair<T> saturated(Form form, const Moments<T>& a, T q12, const Moments<T>& b, T sin2) {
  const T t = saturation<T>(form), q11 = a.q < 0 ? T(0) : a.q, q22 = b.q < 0 ? T(0) : b.q;
  const T norms = cuda::multiply(a.root, b.root);
  // Products of their own: fused, they would show which of the two came first.
  const T mixed = cuda::multiply(a.lose, b.keep) + cuda::multiply(b.lose, a.keep);
  const T sine = std::sqrt(a.keep * b.keep + mixed + a.lose * b.lose * sin2);  // never 0
  const T arc = T(2 / kPi) * std::atan2(t * q12 / norms, sine), root = norms * sine;
  if (form == Form::kErf) return {arc, T(4 / kPi) / root};
  const T keep = a.keep + b.keep, N = q11 * q22 * sin2 + q12 * q12 * keep;
  return {T(0.25) * (q12 * (1 + arc) + T(2 / kPi) * N / root),
          T(0.25) * (1 + arc + T(2 / kPi) * (q12 / root) * (2 * keep - 1 + N / (root * root)))};
}

template <class T>
ZB_DEVICE DualPair<T> waves(Form form, const Moments<T>& a, T q12, const Moments<T>& b) {
  const T m = ((a.q < 0 ? T(0) : a.q) + (b.q < 0 ? T(0) : b.q)) / 2;
  const T plus = std::exp(q12 - m);
  if (form == Form::kSinPlusCos) return {plus, plus};
  const T minus = std::exp(-q12 - m), even = (plus + minus) / 2;
  // Where the difference of two exponentials would cancel.
  const T odd = std::abs(q12) < 1 ? std::exp(-m) * std::sinh(q12) : (plus - minus) / 2;
  return form == Form::kSin ? DualPair<T>{odd, even} : DualPair<T>{even, odd};
}

// The activation's, from its form's. `q12` is of the inputs of the layer; `equal` ones have the angle 0.
template <class T>
ZB_DEVICE DualPair<T> dual_pair(const Network<T>& net, const Moments<T>& a, T q12, const Moments<T>& b,
                                bool equal) {
  q12 = equal ? a.q : net.gain2 * q12;
  const T sin2 = equal ? T(0) : a.q <= 0 || b.q <= 0 ? T(1) : sine_squared(a.q, q12, b.q);
  DualPair<T> found;
  switch (net.form) {
    case Form::kIdentity: {
      const T none = 0 * (a.q + b.q);  // NaN where a variance is not finite
      found = {q12 + none, 1 + none};
      break;
    }
    case Form::kPiecewiseLinear:
      found = piecewise_linear(net, a, q12, b, sin2);
      break;
    case Form::kErf:
    case Form::kGelu:
      found = saturated(net.form, a, q12, b, sin2);
      break;
    default:
      found = waves(net.form, a, q12, b);
  }
  found.dual = net.scale2 * found.dual + net.offset2;
  found.derivative *= net.slope2;
  return found;
}

// NNGP or NTK of two inputs: `sum` is their product, a and b their moments at the first layer, those of the
// next `step` further on.
template <class T>
ZB_DEVICE T kernel_value(const Network<T>& net, T sum, const Moments<T>* a, int64_t a_step,
                         const Moments<T>* b, int64_t b_step, bool equal) {
  T q12 = net.b2 + net.first_w2 * sum, t = q12;
#pragma unroll 1
  for (int64_t layer = 0; layer < net.depth; ++layer) {
    const DualPair<T> found = dual_pair(net, a[layer * a_step], q12, b[layer * b_step], equal);
    q12 = net.b2 + net.w2 * found.dual;
    if (net.tangent) t = net.w2 * found.derivative * t;
    if (net.tangent && !net.first_only) t += q12;
  }
  return net.tangent ? t : q12;
}

}  // namespace zb::dual_kernel
