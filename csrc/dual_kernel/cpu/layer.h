// One hidden layer for a vector of pairs of rows: K and T to those after it. Part of tile.inc.
//
// What depends on a pair's two rows alone goes in as products and sums of what each row brings, in an order
// that does not tell them apart: K(x, y) = K(y, x), bit for bit. That is also why sums of products are
// written as fma.
#pragma once

#include "dual_kernel/cpu/kernels.h"
#include "dual_kernel/cpu/vec_math.h"

namespace zb::dual_kernel::cpu {
namespace {

// The numbers of Network in T.
template <class T>
struct Constants {
  explicit Constants(const Network& n)
      : product(T(n.product)),
        b2(T(n.b2)),
        bias(T(n.bias)),
        dual(T(n.dual)),
        derivative(T(n.derivative)),
        zero_one(T(n.derivative * n.zero_one)),
        zero_both(T(n.derivative * n.zero_both)),
        saturation(T(n.saturation)) {
    constexpr double kTwoOverPi = 0.63661977236758134308;
    const double odd = n.odd * n.odd, even = n.even * n.even * kTwoOverPi;
    dual_odd = T(n.dual * odd), dual_even = T(n.dual * even);
    derivative_odd = T(n.derivative * odd), derivative_even = T(n.derivative * even);
    dual_angle = T(n.dual * kTwoOverPi);
    derivative_root = T(n.derivative * 2 * kTwoOverPi);
    const double square = n.odd * n.odd + n.even * n.even;
    even_share = T(n.even * n.even / square), per_angle = T(even / square);
    growth = T(n.dual * square);
  }

  T product, b2, bias, dual, derivative, zero_one, zero_both, saturation;
  T dual_odd, dual_even, derivative_odd, derivative_even;  // piecewise linear, with D in units of pi/2
  T dual_angle, derivative_root;                           // erf
  T even_share, per_angle, growth;                         // of Cosines
};

// A layer of max(x, slope x) without biases for the cosine c of a pair, and for its T over sqrt(K(x, x) K(y,
// y)). With s = even² / (odd² + even²) and the angle a of c: D' is 1 - 2s/pi a, and c becomes c D' + 2s/pi
// sin(a).
template <class T>
struct Cosines {
  using V = Vec<T>;
  using L = Lanes<T>;
  using R = typename V::reg;

  // Without `negative` no c is below 0, but by rounding.
  template <Kind kind, bool negative, int count>
  static ZB_INLINE void layer(const Constants<T>& n, R (&c)[count], R (&t)[count]) {
    const R one = V::set1(T(1));
    R u[count], arc[count], angle[count];
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) {
      const R magnitude = negative ? L::abs(c[i]) : c[i];
      u[i] = V::max(V::zero(), V::sub(one, magnitude));
      arc[i] = V::mul(V::set1(n.per_angle), L::sqrt(V::fma(u[i], magnitude, u[i])));
    }
    polynomials(Fits<T>::angle, u, angle);
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) {
      R derivative = V::fma(L::negative(arc[i]), angle[i], negative ? V::set1(n.even_share) : one);
      if constexpr (negative) {
        derivative =
            V::add(L::with_sign(V::max(V::zero(), derivative), c[i]), V::sub(one, V::set1(n.even_share)));
      }
      c[i] = V::fma(c[i], derivative, arc[i]);
      if constexpr (kind == Kind::kTangent) t[i] = V::fma(derivative, t[i], c[i]);
      if constexpr (kind == Kind::kFirstLayer) t[i] = V::mul(derivative, t[i]);
    }
  }
};

template <class T, bool careful>
struct Layer {
  using V = Vec<T>;
  using L = Lanes<T>;
  using R = typename V::reg;

  static ZB_INLINE R one() { return V::set1(T(1)); }

  // k a b. Where a or b is so large or small that a b could leave the range, (k max) min: as symmetric, and
  // each number on the way is between k and the result, or the result's size.
  static ZB_INLINE R scaled(R k, R a, R b) {
    const R plain = V::mul(k, V::mul(a, b));
    if constexpr (!careful) return plain;
    constexpr T kMost = sizeof(T) == 4 ? T(1e15) : T(1e140);
    const auto above = V::gt(a, b);
    const R larger = V::choose(above, a, b), smaller = V::choose(above, b, a);
    const auto extreme = V::either(V::gt(larger, V::set1(kMost)), V::gt(V::set1(1 / kMost), smaller));
    return V::choose(extreme, V::mul(V::mul(k, larger), smaller), plain);
  }

  static ZB_INLINE R sine_of(R magnitude) {  // of the angle whose cosine has this magnitude, squared
    const R u = V::max(V::zero(), V::sub(one(), magnitude));
    return V::mul(u, V::sub(V::set1(T(2)), u));
  }

  struct Duals {
    R dual, derivative;  // with the factors and the bias of the network
  };

  // max(x, slope x): E|u||v| = 2/pi (sqrt(q11 q22) sin + q12 asin(c)), E[sign(u) sign(v)] = 2/pi asin(c).
  static ZB_INLINE Duals piecewise_linear(const Constants<T>& n, R k, R root1, R root2, R norm1, R norm2) {
    const R c = scaled(k, root1, root2), magnitude = L::abs(c);
    const R sine = L::sqrt(sine_of(magnitude));
    const R angle = arcsine<T>(c, magnitude, sine);
    const R even = V::fma(k, angle, scaled(sine, norm1, norm2));
    R dual = V::fma(V::set1(n.dual_even), even, V::fma(V::set1(n.dual_odd), k, V::set1(n.bias)));
    R derivative = V::fma(V::set1(n.derivative_even), angle, V::set1(n.derivative_odd));
    if constexpr (careful) {  // the norm of a variance of 0 is -1
      const auto zero1 = V::gt(V::zero(), norm1), zero2 = V::gt(V::zero(), norm2);
      const R one_zero = V::set1(n.zero_one), both = V::set1(n.zero_both);
      const R bias = V::fma(V::zero(), k, V::set1(n.bias));  // NaN where the other row has one
      dual = V::choose(V::either(zero1, zero2), bias, dual);
      derivative = V::choose(zero1, V::choose(zero2, both, one_zero), V::choose(zero2, one_zero, derivative));
    }
    return {dual, derivative};
  }

  // cosine = saturation q12 / sqrt((1 + saturation q11)(1 + saturation q22)), the second factor being 1 / (w1
  // w2), and its sine, which is at least what it is at equal directions, and so never 0.
  static ZB_INLINE R saturated_cosine(const Constants<T>& n, R k, R w1, R w2) {
    return V::mul(V::set1(n.saturation), scaled(k, w1, w2));
  }
  static ZB_INLINE R saturated_sine(R cosine, R keep1, R keep2) {
    const R least = V::sub(V::add(keep1, keep2), V::mul(keep1, keep2));
    return L::sqrt(V::max(least, sine_of(L::abs(cosine))));
  }

  static ZB_INLINE Duals erf(const Constants<T>& n, R k, R w1, R w2, R keep1, R keep2) {
    const R cosine = saturated_cosine(n, k, w1, w2);
    const R sine = saturated_sine(cosine, keep1, keep2);
    const R dual = V::fma(V::set1(n.dual_angle), exact_arcsine<T>(cosine, sine), V::set1(n.bias));
    return {dual, scaled(L::div(V::set1(n.derivative_root), sine), w1, w2)};
  }

  static ZB_INLINE Duals gelu(const Constants<T>& n, R k, const R (&row)[4], const R (&lane)[4]) {
    const R root1 = row[0], q1 = row[1], w1 = row[2], keep1 = row[3];
    const R root2 = lane[0], q2 = lane[1], w2 = lane[2], keep2 = lane[3];
    const R two_over_pi = V::set1(T(0.63661977236758134308));
    const R cosine = saturated_cosine(n, k, w1, w2);
    const R sine = saturated_sine(cosine, keep1, keep2);
    const R above = V::fma(two_over_pi, arcsine<T>(cosine, L::abs(cosine), sine), one());  // 1 + A
    const R inverse = scaled(L::div(one(), sine), w1, w2);                                 // 1 / sqrt(S)
    const R keep = V::add(keep1, keep2);
    const R sin2 = sine_of(L::abs(scaled(k, root1, root2)));
    const R N = V::fma(V::mul(k, k), keep, V::mul(V::mul(q1, q2), sin2));
    const R dual = V::mul(V::set1(T(0.25)), V::fma(k, above, V::mul(V::mul(two_over_pi, N), inverse)));
    const R inner = V::add(V::sub(V::add(keep, keep), one()), V::mul(V::mul(N, inverse), inverse));
    const R derivative = V::fma(V::mul(V::mul(two_over_pi, k), inverse), inner, above);
    return {V::fma(V::set1(n.dual), dual, V::set1(n.bias)),
            V::mul(V::set1(n.derivative), V::mul(V::set1(T(0.25)), derivative))};
  }

  // half: half a row's variance. exp(q12 - m) and exp(-q12 - m) for m = (q11 + q22) / 2, as exponents of -E(u
  // -+ v)²/2.
  template <Form form>
  static ZB_INLINE Duals waves(const Constants<T>& n, R k, R half1, R half2) {
    const R m = V::add(half1, half2);
    const R plus = exponential<T>(V::sub(k, m));
    if constexpr (form == Form::kSinPlusCos) {
      return {V::fma(V::set1(n.dual), plus, V::set1(n.bias)), V::mul(V::set1(n.derivative), plus)};
    }
    const R minus = exponential<T>(V::sub(V::sub(V::zero(), k), m)), half = V::set1(T(0.5));
    const R square = V::mul(k, k);  // where |k| < 1 the difference of the two would cancel
    const R near = V::mul(exponential<T>(V::sub(V::zero(), m)),
                          V::fma(V::mul(square, k), polynomial(Fits<T>::sinh, square), k));
    const R even = V::mul(half, V::add(plus, minus));
    const R odd = V::choose(V::gt(one(), L::abs(k)), near, V::mul(half, V::sub(plus, minus)));
    const R dual = form == Form::kSin ? odd : even, derivative = form == Form::kSin ? even : odd;
    return {V::fma(V::set1(n.dual), dual, V::set1(n.bias)), V::mul(V::set1(n.derivative), derivative)};
  }

  // row, lane: what quantities(form) says, of a row in all lanes and of as many rows as there are lanes.
  template <Form form, class Row, class Lane>
  static ZB_INLINE Duals duals(const Constants<T>& n, R k, const Row& row, const Lane& lane) {
    if constexpr (form == Form::kIdentity) {
      return {V::fma(V::set1(n.dual), k, V::set1(n.bias)), V::set1(n.derivative)};
    } else if constexpr (form == Form::kPiecewiseLinear) {
      return piecewise_linear(n, k, row(0), lane(0), row(1), lane(1));
    } else if constexpr (form == Form::kErf) {
      return erf(n, k, row(0), lane(0), row(1), lane(1));
    } else if constexpr (form == Form::kGelu) {
      const R rows[4] = {row(0), row(1), row(2), row(3)}, lanes[4] = {lane(0), lane(1), lane(2), lane(3)};
      return gelu(n, k, rows, lanes);
    } else {
      return waves<form>(n, k, row(0), lane(0));
    }
  }
};

}  // namespace
}  // namespace zb::dual_kernel::cpu
