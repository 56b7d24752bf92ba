// The transforms of minimal filtering, in one dimension and for 6 or 8 points. Part of forward_kernel.h.
//
// A filter of SIZE taps and its outputs are polynomials; their product is known by its values at POINTS
// points: 0, 1, -1, 2, -2 and infinity, and for 8 points 1/2 and -1/2 as well. A tile of POINTS inputs gives
// POINTS + 1 - SIZE outputs. For each point p and its opposite the even and the odd part are computed once.
// Lavin and Gray, 2015 (arXiv:1509.09308), give the matrices Bᵀ, G and Aᵀ for 4 and 6 points; those for 8
// follow in the same way (Bᵀ: the product of (x - q) over the other points q; G: powers of p over that
// product's value at p; Aᵀ: powers of p). Errors: README.md.
#pragma once

#include "conv_relu_pool/cpu/interleave.h"

namespace zb::conv_relu_pool::cpu {
namespace {

ZB_INLINE Reg scaled(float factor, Reg a) { return Float::mul(Float::set1(factor), a); }
ZB_INLINE Reg plus(Reg a, float factor, Reg b) {
  return Float::fma(Float::set1(factor), b, a);
}  // a + factor b

// to[0], to[step] = even + odd, even - odd: the values at p and at -p
ZB_INLINE void both_signs(Reg even, Reg odd, Reg* to, int step) {
  to[0] = Float::add(even, odd);
  to[step] = Float::sub(even, odd);
}

// Bᵀ d
template <int POINTS>
ZB_INLINE void transform_input(const Reg* d, Reg* out, int step) {
  if constexpr (POINTS == 6) {
    const Reg even2 = Float::sub(d[4], d[2]), odd2 = Float::sub(d[3], d[1]);
    out[0] = plus(plus(d[4], -5, d[2]), 4, d[0]);
    both_signs(plus(d[4], -4, d[2]), plus(d[3], -4, d[1]), out + step, step);
    out[3 * step] = plus(even2, 2, odd2);
    out[4 * step] = plus(even2, -2, odd2);
    out[5 * step] = plus(plus(d[5], -5, d[3]), 4, d[1]);
  } else {
    out[0] = plus(Float::sub(d[0], d[6]), 5.25f, Float::sub(d[4], d[2]));
    both_signs(plus(Float::add(d[2], d[6]), -4.25f, d[4]), plus(Float::add(d[1], d[5]), -4.25f, d[3]),
               out + step, step);
    both_signs(plus(plus(d[6], -1.25f, d[4]), 0.25f, d[2]),
               plus(plus(scaled(2, d[5]), -2.5f, d[3]), 0.5f, d[1]), out + 3 * step, step);
    both_signs(plus(plus(d[6], -5, d[4]), 4, d[2]), plus(plus(scaled(0.5f, d[5]), -2.5f, d[3]), 2, d[1]),
               out + 5 * step, step);
    out[7 * step] = plus(Float::sub(d[7], d[1]), 5.25f, Float::sub(d[3], d[5]));
  }
}

// Bᵀ d B of a tile of vectors, those of row i and column j at from + i * row + j * column; point p goes to
// to + p * point. All are read before the first is written.
template <int POINTS>
ZB_INLINE void transform_tile(const float* from, int64_t row, int64_t column, float* to, int64_t point) {
  Reg d[POINTS], half[POINTS * POINTS];
#pragma GCC unroll 8
  for (int j = 0; j < POINTS; ++j) {
#pragma GCC unroll 8
    for (int i = 0; i < POINTS; ++i) d[i] = Float::load(from + i * row + j * column);
    transform_input<POINTS>(d, half + j, POINTS);
  }
#pragma GCC unroll 8
  for (int i = 0; i < POINTS; ++i) {
    transform_input<POINTS>(half + i * POINTS, d, 1);
#pragma GCC unroll 8
    for (int j = 0; j < POINTS; ++j) Float::store(to + (i * POINTS + j) * point, d[j]);
  }
}

// Aᵀ m, for SIDE outputs
template <int POINTS, int SIDE>
ZB_INLINE void transform_output(const Reg* m, Reg* out, int step) {
  const Reg sum1 = Float::add(m[1], m[2]), sum2 = Float::add(m[3], m[4]);
  const Reg difference1 = Float::sub(m[1], m[2]), difference2 = Float::sub(m[3], m[4]);
  Reg half_sum = Float::zero(), half_difference = Float::zero();
  if constexpr (POINTS == 8) half_sum = Float::add(m[5], m[6]), half_difference = Float::sub(m[5], m[6]);
#pragma GCC unroll 6
  for (int i = 0; i < SIDE; ++i) {
    const bool odd = i % 2;
    const auto power = static_cast<float>(1 << i);
    Reg value =
        i == 0 ? Float::add(sum1, sum2) : plus(odd ? difference1 : sum1, power, odd ? difference2 : sum2);
    if (POINTS == 8 && i == 0) value = Float::add(value, half_sum);
    if (POINTS == 8 && i > 0) value = plus(value, 1 / power, odd ? half_difference : half_sum);
    if (i == 0) value = Float::add(value, m[0]);
    if (i == SIDE - 1) value = Float::add(value, m[POINTS - 1]);
    out[i * step] = value;
  }
}

// G g: the filter as a polynomial, at the points.
template <int POINTS, int SIZE>
ZB_INLINE void transform_filter(const Reg* g, int step, Reg* out, int out_step) {
  const auto at_both = [&](float point, float factor, Reg* to) {
    Reg even = g[(SIZE - 1) / 2 * 2 * step], odd = g[(SIZE / 2 * 2 - 1) * step];
    for (int i = (SIZE - 1) / 2 * 2 - 2; i >= 0; i -= 2) even = plus(g[i * step], point * point, even);
    for (int i = SIZE / 2 * 2 - 3; i >= 0; i -= 2) odd = plus(g[i * step], point * point, odd);
    both_signs(scaled(factor, even), scaled(factor * point, odd), to, out_step);
  };
  out[0] = scaled(POINTS == 6 ? 0.25f : 1.0f, g[0]);
  at_both(1, POINTS == 6 ? -1.0f / 6 : -2.0f / 9, out + out_step);
  at_both(2, POINTS == 6 ? 1.0f / 24 : 1.0f / 90, out + 3 * out_step);
  if constexpr (POINTS == 8) at_both(0.5f, 32.0f / 45, out + 5 * out_step);
  out[(POINTS - 1) * out_step] = g[(SIZE - 1) * step];
}

}  // namespace
}  // namespace zb::conv_relu_pool::cpu
