// A matrix of floats turned over, as far as possible in registers: whole cache lines are read and written
// once. (A loop that takes one float from each of 16 rows needs 16 lines to stay in the first-level cache,
// and rows of 4 KiB share one set of it.) For files compiled for an instruction set, see vec.h.
#pragma once

#include "common/vec.h"

namespace zb {
namespace {

#if defined(__AVX512F__)

constexpr int64_t kTransposeSide = 16;

// rows, columns <= 16
ZB_INLINE void transpose_tile(const float* from, int64_t from_step, int64_t rows, int64_t columns, float* to,
                              int64_t to_step) {
  __m512 a[16], b[16];
  const auto in = static_cast<__mmask16>((1u << columns) - 1), out = static_cast<__mmask16>((1u << rows) - 1);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    a[i] = i < rows ? _mm512_maskz_loadu_ps(in, from + i * from_step) : _mm512_setzero_ps();
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {  // pairs of rows
    b[2 * i] = _mm512_unpacklo_ps(a[2 * i], a[2 * i + 1]);
    b[2 * i + 1] = _mm512_unpackhi_ps(a[2 * i], a[2 * i + 1]);
  }
  // fours: a[4 i + j] has columns j, j + 4, j + 8, j + 12 of rows 4 i .. 4 i + 3
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const __m512d x = _mm512_castps_pd(b[4 * i + j]), y = _mm512_castps_pd(b[4 * i + 2 + j]);
      a[4 * i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y));
      a[4 * i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {  // quarters of registers
    const __m512 x = _mm512_shuffle_f32x4(a[j], a[4 + j], 0x88);
    const __m512 y = _mm512_shuffle_f32x4(a[j], a[4 + j], 0xdd);
    const __m512 z = _mm512_shuffle_f32x4(a[8 + j], a[12 + j], 0x88);
    const __m512 v = _mm512_shuffle_f32x4(a[8 + j], a[12 + j], 0xdd);
    b[j] = _mm512_shuffle_f32x4(x, z, 0x88);
    b[8 + j] = _mm512_shuffle_f32x4(x, z, 0xdd);
    b[4 + j] = _mm512_shuffle_f32x4(y, v, 0x88);
    b[12 + j] = _mm512_shuffle_f32x4(y, v, 0xdd);
  }
  if (rows == 16) {  // a masked store is not forwarded to a load that follows it
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      if (i < columns) _mm512_storeu_ps(to + i * to_step, b[i]);
    }
    return;
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    if (i < columns) _mm512_mask_storeu_ps(to + i * to_step, out, b[i]);
  }
}

#else

constexpr int64_t kTransposeSide = 8;

// rows, columns <= 8
ZB_INLINE void transpose_tile(const float* from, int64_t from_step, int64_t rows, int64_t columns, float* to,
                              int64_t to_step) {
#if defined(__AVX2__)
  if (rows == 8 && columns == 8) {
    __m256 a[8], b[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) a[i] = _mm256_loadu_ps(from + i * from_step);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {  // pairs of rows
      b[2 * i] = _mm256_unpacklo_ps(a[2 * i], a[2 * i + 1]);
      b[2 * i + 1] = _mm256_unpackhi_ps(a[2 * i], a[2 * i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {  // fours: a[4 i + j] has columns j and j + 4 of rows 4 i .. 4 i + 3
      a[4 * i] = _mm256_shuffle_ps(b[4 * i], b[4 * i + 2], 0x44);
      a[4 * i + 1] = _mm256_shuffle_ps(b[4 * i], b[4 * i + 2], 0xee);
      a[4 * i + 2] = _mm256_shuffle_ps(b[4 * i + 1], b[4 * i + 3], 0x44);
      a[4 * i + 3] = _mm256_shuffle_ps(b[4 * i + 1], b[4 * i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      _mm256_storeu_ps(to + j * to_step, _mm256_permute2f128_ps(a[j], a[4 + j], 0x20));
      _mm256_storeu_ps(to + (4 + j) * to_step, _mm256_permute2f128_ps(a[j], a[4 + j], 0x31));
    }
    return;
  }
#endif
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r) to[c * to_step + r] = from[r * from_step + c];
  }
}

#endif

// to[c * to_step + r] = from[r * from_step + c] for every row r and column c.
inline void transpose(const float* from, int64_t from_step, int64_t rows, int64_t columns, float* to,
                      int64_t to_step) {
  constexpr int64_t side = kTransposeSide;
  for (int64_t r = 0; r < rows; r += side) {
    for (int64_t c = 0; c < columns; c += side) {
      transpose_tile(from + r * from_step + c, from_step, rows - r < side ? rows - r : side,
                     columns - c < side ? columns - c : side, to + c * to_step + r, to_step);
    }
  }
}

}  // namespace
}  // namespace zb
