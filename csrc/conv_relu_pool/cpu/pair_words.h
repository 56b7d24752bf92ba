// The slab of direct_pairs.h: the input in words of two bfloat16 values, as that file says.
#pragma once

#include "common/transpose.h"
#include "conv_relu_pool/cpu/direct.h"

namespace zb::conv_relu_pool::cpu {
namespace {

// What the channels of a group come to.
struct PairCounts {
  int64_t pairs;              // of channels
  bool shifted, single;       // the odd channel's planes
  int64_t planes, odd_words;  // of the group; of the odd channel in a sum
};

ZB_INLINE PairCounts pair_counts(const Call& c) {
  const bool odd = c.Cg % 2 != 0;
  PairCounts n{c.Cg / 2, odd && c.kernel[1] > 1, odd && c.kernel[1] % 2 != 0, 0, 0};
  n.planes = n.pairs + n.shifted + n.single;
  n.odd_words = odd ? c.kernel[0] * up_div(c.kernel[1], 2) : 0;
  return n;
}

// The columns start, start + step, ... of a row of the input that a segment of the slab wants; those of
// [there.begin, there.end) are inside of it.
struct Columns {
  int64_t start, step;
  Range there;
};

ZB_INLINE Columns columns_at(const Call& c, int64_t start, int64_t count) {
  const int64_t step = c.stride[1], width = c.in[1];
  const int64_t begin = start >= 0 ? 0 : least(count, up_div(-start, step));
  return {start, step, {begin, start >= width ? begin : clamped(up_div(width - start, step), begin, count)}};
}

// The bits [from, to) of 32, each taken into 0 .. 32.
ZB_INLINE uint32_t bit_range(int64_t from, int64_t to) {
  const uint64_t below = (uint64_t{1} << clamped(from, 0, 32)) - 1,
                 all = (uint64_t{1} << clamped(to, 0, 32)) - 1;
  return static_cast<uint32_t>(all & ~below);
}

// 16 values of a row from `first` of the columns on, each in the low half of a lane, zeros where there is
// none. `pitch` is the distance of two columns of the row.
ZB_INLINE __m512i load_halves(const BFloat* row, int64_t pitch, const Columns& columns, int64_t first) {
  const int64_t hop = columns.step * pitch, begin = columns.there.begin - first,
                end = columns.there.end - first;
  const BFloat* from = row + (columns.start + first * columns.step) * pitch;
  if (hop == 1) {
    return _mm512_cvtepu16_epi32(
        _mm256_maskz_loadu_epi16(static_cast<__mmask16>(bit_range(begin, end)), from));
  }
  if (hop == 2) return _mm512_maskz_loadu_epi16(bit_range(2 * begin, 2 * end) & 0x55555555, from);
  alignas(64) uint32_t line[16] = {};
  for (int64_t i = most(begin, 0); i < least(end, 16); ++i) line[i] = from[i * hop].bits;
  return _mm512_load_si512(line);
}

// to[i] = (low[column i of at], high[column i of high_at]), i < count; high may be null.
ZB_INLINE void fill_words(float* to, int64_t count, const BFloat* low, const Columns& at, const BFloat* high,
                          const Columns& high_at, int64_t pitch) {
  for (int64_t i = 0; i < count; i += 16) {
    __m512i words = load_halves(low, pitch, at, i);
    if (high) words = _mm512_or_si512(words, _mm512_slli_epi32(load_halves(high, pitch, high_at, i), 16));
    _mm512_mask_storeu_epi32(to + i, static_cast<__mmask16>(bit_range(0, count - i)), words);
  }
}

// One segment of `planes` planes, `pitch` apart, where the two channels of a pair lie side by side in memory,
// so that a word is read as it stands.
ZB_INLINE void turn_words(float* to, int64_t pitch, int64_t planes, int64_t count, const BFloat* row,
                          int64_t column_pitch, const Columns& at) {
  const Range there = at.there;
  const int64_t hop = at.step * column_pitch;
  const BFloat* from = row + (at.start + there.begin * at.step) * column_pitch;
  for (int64_t p = 0; p < planes; ++p) {
    float* plane = to + p * pitch;
    std::memset(plane, 0, sizeof(float) * static_cast<size_t>(there.begin));
    std::memset(plane + there.end, 0, sizeof(float) * static_cast<size_t>(count - there.end));
  }
  if (hop % 2 == 0 && planes > 1) {
    transpose(reinterpret_cast<const float*>(from), hop / 2, there.size(), planes, to + there.begin, pitch);
    return;
  }
  for (int64_t p = 0; p < planes; ++p, from += 2) {
    for (int64_t i = 0; i < there.size(); ++i) {
      std::memcpy(to + p * pitch + there.begin + i, from + i * hop, sizeof(float));
    }
  }
}

Slab<float> fill_pairs(const Call& c, Range images, Range rows, Range columns, float* data) {
  const SlabShape shape = slab_shape(c, rows.size(), columns.size());
  const PairCounts n = pair_counts(c);
  const int64_t segments = c.by_phase ? c.stride[1] : c.kernel[1];
  const int64_t next = c.by_phase ? 1 : c.dilation[1], pitch = c.x_strides[3];
  return fill_slab<BFloat, float>(
      c, images, rows, columns, data, [&](float* to, const BFloat* row, int64_t left) {
        for (int64_t g = 0; g < c.groups; ++g, to += n.planes * shape.pitch) {
          const BFloat* first = row + g * c.Cg * c.x_strides[1];
          for (int64_t s = 0; s < segments; ++s) {
            const Columns at = columns_at(c, left + s * next, shape.segment);
            float* segment = to + s * shape.segment;
            int64_t p = 0;
            if (c.x_strides[1] == 1) {
              turn_words(segment, shape.pitch, n.pairs, shape.segment, first, pitch, at);
              p = n.pairs;
            }
            for (; p < n.pairs; ++p) {
              const BFloat* low = first + 2 * p * c.x_strides[1];
              fill_words(segment + p * shape.pitch, shape.segment, low, at, low + c.x_strides[1], at, pitch);
            }
            const BFloat* odd = first + 2 * n.pairs * c.x_strides[1];
            if (n.shifted) {
              const Columns next_tap = columns_at(c, at.start + c.dilation[1], shape.segment);
              fill_words(segment + p++ * shape.pitch, shape.segment, odd, at, odd, next_tap, pitch);
            }
            if (n.single) fill_words(segment + p * shape.pitch, shape.segment, odd, at, nullptr, at, pitch);
          }
        }
      });
}

}  // namespace
}  // namespace zb::conv_relu_pool::cpu
