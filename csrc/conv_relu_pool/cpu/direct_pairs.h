// Direct convolution in bfloat16, two taps an instruction: VDPBF16PS adds the products of two pairs to each
// float32 lane, at the rate of one multiply-add. For files compiled with AVX-512-BF16.
//
// A word of 32 bits holds a pair of inputs or of weights. The slab of direct.h keeps words in place of
// values, and its planes are pairs of channels; everything else stays as it is there. An odd last channel
// pairs the columns of the filter: one plane holds (x[w], x[w + dilation]), and if the filter has an odd last
// column, one more (x[w], 0). No word reaches past what an output sees, so that a NaN there is not multiplied
// by a 0.
//
//   planes of a group   [channels 0 1] [channels 2 3] ... [last, last shifted] [last, 0]
//   words of a sum      pairs of channels: (pair, row, column); then the odd channel's: (row, column / 2)
//
// Sums are float32 in chains of at most kChain words, in one order. The instruction takes values below 2^-126
// as 0 and gives 0 for such sums, as torch's own bfloat16 convolutions do on these processors.
//
// Least time: VDPBF16PS has the rate of FMA (3.6 a nanosecond, of 16 lanes; latency 6 cycles, not 4), so half
// of a direct float32 kernel's; where Winograd's F(4x4, 3x3) pays, it needs half of that again.
//
// Versions, NCHW, milliseconds of one thread of an EPYC (Zen 4; processor time, other cores busy), best of
// 9, in brackets the float32 kernel in the same run (1x1: 16x64x56x56 to 256, no pool; 3x3: to 128, stride
// 2):
//                                                mnist1       cifar1       1x1            3x3
//   the tiles of direct.h, with words            4.3 [3.7]    5.4 [4.6]    17.5 [23.0]    13.2 [20.2]
//   2x2 windows in registers; no pool: from
//   where it was summed; rounding last           3.2 [3.4]    4.0 [4.4]    15.3 [22.8]    13.1 [20.6]
//   columns found once a row, words once for
//   all rows within the input                    3.0 [3.6]    3.9 [4.4]    14.5 [22.8]    11.0 [20.8]
//   outputs rounded and turned over in pairs     2.8 [3.7]    3.6 [4.5]    13.3 [22.2]    10.8 [20.2]
// torch's in channels_last and then its ReLU and pool took 39, 7.7, 9.8 and 9.0 there; ours in channels_last
// 2.9, 3.7, 12.4 and 10.1. 3x3 filters over 128 channels (res9) run at 200 GFLOP/s, 86 % of what the rate
// allows: 24 ms to Winograd's 13 in float32 or bfloat16.
#pragma once

#include "conv_relu_pool/cpu/pair_words.h"
#include "conv_relu_pool/cpu/run_direct.h"

namespace zb::conv_relu_pool::cpu {
namespace {

struct PairProduct {
  using reg = Vec<float>::reg;
  static ZB_INLINE reg add(reg x, reg w, reg sum) {
    return _mm512_dpbf16_ps(sum, bit_cast<__m512bh>(x), bit_cast<__m512bh>(w));
  }
};

void plan_pairs(Call& c) {
  const PairCounts n = pair_counts(c);
  const int64_t taps = c.kernel[0] * c.kernel[1], chain = chain_channels(c, n.pairs);
  c.algorithm = Algorithm::kDirectPairs;
  c.channel_block = kBlock<float>;
  c.blocks = c.groups * up_div(c.Kg, kBlock<float>);
  c.planes = c.groups * n.planes;
  c.chain_offsets = taps + 2 * (chain * taps + n.odd_words);  // two lists: see run_pooled_pairs
  c.weight_units = c.blocks * (n.pairs + (n.odd_words > 0));
  c.weight_bytes = 4 * c.blocks * kBlock<float> * (n.pairs * taps + n.odd_words);
  plan_slabs<float>(c, chain >= n.pairs);
}

// Packed weights [block][word of the sum][kBlock], zeros beyond the block's size. Unit: (block, pair of
// channels or odd channel).
void pack_pairs(const Call& c, int64_t begin, int64_t end) {
  const PairCounts n = pair_counts(c);
  const int64_t taps = c.kernel[0] * c.kernel[1], units = n.pairs + (n.odd_words > 0);
  for (int64_t unit = begin; unit < end; ++unit) {
    const Block b = block_at(c, unit / units);
    const int64_t pair = unit % units;
    uint32_t* to = static_cast<uint32_t*>(c.packed_weight) +
                   (b.index * (n.pairs * taps + n.odd_words) + pair * taps) * kBlock<float>;
    const BFloat* from =
        static_cast<const BFloat*>(c.weight) + b.first * c.w_strides[0] + 2 * pair * c.w_strides[1];
    const bool odd = pair == n.pairs;
    const int64_t step = odd ? 2 : 1, partner = odd ? c.w_strides[3] : c.w_strides[1];
    for (int64_t r = 0; r < c.kernel[0]; ++r) {
      for (int64_t s = 0; s < c.kernel[1]; s += step) {
        const BFloat* tap = from + r * c.w_strides[2] + s * c.w_strides[3];
        const bool alone = odd && s + 1 == c.kernel[1];
        for (int64_t k = 0; k < b.size; ++k, tap += c.w_strides[0]) {
          *to++ = tap[0].bits | (alone ? 0u : static_cast<uint32_t>(tap[partner].bits) << 16);
        }
        for (int64_t k = b.size; k < kBlock<float>; ++k) *to++ = 0;
      }
    }
  }
}

// Where the words of one chain of sums begin for a row of the map. They are the same for all rows whose
// filter lies within the input, but for a shift.
struct ChainWords {
  const Call& c;
  const Slab<float>& slab;
  int64_t pairs;  // of channels, that the chain takes
  bool odd;       // and whether the odd channel: its planes follow theirs
  int64_t *taps, *list;
  int64_t image = 0, row = 0;  // of the list
  bool inner = false;          // whether it serves others

  // Sets `list` up for a row of the map; returns what is to be added to each of its addresses.
  ZB_INLINE int64_t at(int64_t wanted_image, int64_t wanted_row) {
    const int64_t top = wanted_row * c.stride[0] - c.padding[0];
    const bool whole = top >= 0 && top + (c.kernel[0] - 1) * c.dilation[0] < c.in[0];
    if (inner && whole) {
      return (wanted_image - image) * slab.image_pitch +
             (wanted_row - row) * (c.dense_rows ? c.stride[0] : c.kernel[0]) * slab.row_pitch;
    }
    image = wanted_image, row = wanted_row, inner = whole;
    tap_offsets(c, slab, image, row, taps);
    const int64_t count = c.kernel[0] * c.kernel[1], pitch = slab.shape.pitch, last = c.kernel[1] - 1;
    int64_t* to = list;
    for (int64_t p = 0; p < pairs; ++p) {
      for (int64_t t = 0; t < count; ++t) *to++ = taps[t] + p * pitch;
    }
    if (!odd) return 0;
    for (const int64_t* tap = taps; tap < taps + count; tap += c.kernel[1]) {
      for (int64_t s = 0; s < last; s += 2) *to++ = tap[s] + pairs * pitch;
      if (last % 2 == 0) *to++ = tap[last] + (pairs + (last > 0)) * pitch;
    }
    return 0;
  }
};

// Two rows of the map: where they begin in the slab, and the words from there.
struct RowPair {
  const float* x[2];
  const int64_t* list[2];
};

// The largest of QS windows of 2x2 outputs times VECTORS vectors of output channels.
template <int QS, int VECTORS>
void pooled_tile(const RowPair& rows, int64_t skip, int64_t count, const float* w, float* out) {
  using V = Vec<float>;
  V::reg acc[2][2 * QS][VECTORS];
#pragma GCC unroll 2
  for (int r = 0; r < 2; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < 2 * QS; ++j) {
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; ++v) acc[r][j][v] = V::zero();
    }
  }
  const float *upper = rows.x[0] + skip, *lower = rows.x[1] + skip;
  for (int64_t i = 0; i < count; ++i, w += kBlock<float>) {
    multiply_add<float, PairProduct, 2 * QS, VECTORS, 1>(acc[0], upper + rows.list[0][i], w);
    multiply_add<float, PairProduct, 2 * QS, VECTORS, 1>(acc[1], lower + rows.list[1][i], w);
  }
#pragma GCC unroll 8
  for (int q = 0; q < QS; ++q) {
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; ++v) {
      const V::reg top = largest<V>(acc[0][2 * q + 1][v], acc[0][2 * q][v]);
      const V::reg bottom = largest<V>(acc[1][2 * q + 1][v], acc[1][2 * q][v]);
      V::store(out + q * kBlock<float> + v * V::n, largest<V>(bottom, top));
    }
  }
}

template <int VECTORS, int QS>
ZB_INLINE void pooled_tile_of(int64_t windows, const RowPair& rows, int64_t skip, int64_t count,
                              const float* w, float* out) {
  if constexpr (QS > 0) {
    if (windows == QS) {
      pooled_tile<QS, VECTORS>(rows, skip, count, w, out);
    } else {
      pooled_tile_of<VECTORS, QS - 1>(windows, rows, skip, count, w, out);
    }
  }
}

struct PairSums {
  static Slab<float> fill(const Call& c, Range images, Range rows, Range columns, float* data) {
    return fill_pairs(c, images, rows, columns, data);
  }

  // Whether windows are taken in registers, so that the map is in no memory at all: 2x2, whole and apart, of
  // sums that are one chain, where y alone is wanted and nothing is added to them.
  static bool pools(const Call& c) {
    for (int d = 0; d < 2; ++d) {
      if (c.pool_kernel[d] != 2 || c.pool_padding[d] != 0 || 2 * c.out[d] > c.map[d]) return false;
      if (c.pool_stride[d] != 2 && c.out[d] > 1) return false;
    }
    const int64_t pairs = pair_counts(c).pairs;
    return rounds_last(c) && !c.residual && c.pool == Pooling::kMax && chain_channels(c, pairs) >= pairs;
  }

  static void block(const Call& c, const Block& b, const Slab<float>& slab, Range images,
                    const Map<float>* maps, int64_t* offsets) {
    const PairCounts n = pair_counts(c);
    const int64_t taps = c.kernel[0] * c.kernel[1], chain = chain_channels(c, n.pairs);
    const int64_t pitch = slab.shape.pitch, words = n.pairs * taps + n.odd_words;
    const float* weights = static_cast<const float*>(c.packed_weight) + b.index * words * kBlock<float>;
    const float* group = slab.data + b.group * n.planes * pitch;
    for (int64_t first = 0; first == 0 || first < n.pairs; first += chain) {
      const int64_t pairs = least(chain, n.pairs - first);
      const bool odd = n.odd_words > 0 && first + pairs == n.pairs;  // joins the last chain
      const int64_t count = pairs * taps + (odd ? n.odd_words : 0);
      ChainWords chain_words{c, slab, pairs, odd, offsets, offsets + taps};
      for (int64_t image = images.begin; image < images.end; ++image) {
        const Map<float>& map = maps[image];
        for (int64_t h = map.rows.begin; h < map.rows.end; ++h) {
          const float* x = group + first * pitch + chain_words.at(image, h);
          tile_run<float, 1, PairProduct>(map.columns.size(), b.size, x, chain_words.list, count,
                                          weights + first * taps * kBlock<float>,
                                          map.data + (h - map.rows.begin) * map.row_pitch, first > 0);
        }
      }
    }
  }
};

// A task of PairSums::pools, some pooled rows at a time.
void run_pooled_pairs(const Call& c, const Task& t, DirectScratch<float> s) {
  constexpr int kWindows = 3;  // 24 accumulators of two vectors
  const PairCounts n = pair_counts(c);
  const int64_t taps = c.kernel[0] * c.kernel[1], count = n.pairs * taps + n.odd_words;
  const int64_t columns = t.out_columns.size(),
                together = most(1, kPoolBytes / (columns * kBlock<float> * 4));
  const Slab<float> slab = PairSums::fill(c, t.images, t.rows, t.columns, s.slab);
  ChainWords upper{c, slab, n.pairs, n.odd_words > 0, s.offsets, s.offsets + taps};
  ChainWords lower{c, slab, n.pairs, n.odd_words > 0, s.offsets, s.offsets + taps + count};
  for (int64_t i = t.blocks.begin; i < t.blocks.end; ++i) {
    const Block b = block_at(c, i);
    const bool narrow = b.size <= Vec<float>::n;
    const float* weights = static_cast<const float*>(c.packed_weight) + i * count * kBlock<float>;
    const float* x = slab.data + b.group * n.planes * slab.shape.pitch;
    for (int64_t image = 0; image < t.images.size(); ++image) {
      for (int64_t first = t.out_rows.begin; first < t.out_rows.end; first += together) {
        const Pooled<float> pooled{
            s.value, s.position, {first, least(first + together, t.out_rows.end)}, t.out_columns};
        float* out = s.value;
        for (int64_t p = pooled.rows.begin; p < pooled.rows.end; ++p) {
          const int64_t above = upper.at(image, 2 * p), below = lower.at(image, 2 * p + 1);
          const RowPair rows{{x + above, x + below}, {upper.list, lower.list}};
          for (int64_t left = up_div(columns, narrow ? 2 * kWindows : kWindows), q = 0; left > 0; --left) {
            const int64_t some = up_div(columns - q, left);
            if (narrow) {
              pooled_tile_of<1, 2 * kWindows>(some, rows, 2 * q, count, weights, out);
            } else {
              pooled_tile_of<2, kWindows>(some, rows, 2 * q, count, weights, out);
            }
            q += some, out += some * kBlock<float>;
          }
        }
        write_outputs<BFloat>(c, pooled, s.runs, t.images.begin + image, b);
      }
    }
  }
}

}  // namespace
}  // namespace zb::conv_relu_pool::cpu
