// Convolution by minimal filtering. Part of forward_kernel.h.
//
// Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015 (arXiv:1509.09308), equation 13:
//   Y = Aᵀ [ (G g Gᵀ) ⊙ (Bᵀ d B) ] A,  summed over the input channels before A is applied.
// The products over the channels, one for each of a tile's 36 or 64 points, are matrix products [tiles, C] x
// [C, K], computed by the register tile of direct.h. Stride 2 is folded into the channels first (plan.h),
// which turns the 7x7 filters of a ResNet's stem into 4x4 ones.
//
//   filter                               2x2    3x3    4x4    5x5    6x6    7x7
//   tile of inputs                       6x6    6x6    8x8    8x8    8x8    8x8
//   pre-activations of a tile            5x5    4x4    5x5    4x4    3x3    2x2
//   times fewer multiplications          2.8    4      6.25   6.25   5.1    3.1
//
// The tiles lie on a fixed grid of the map, so that no value depends on the cut into tasks. A tile that comes
// out too large or not finite is computed again by direct sums: a NaN or inf in the input spreads over its
// tile in the transforms, which a convolution does not do. An output whose whole window of the input is 0 (a
// blank border, the dead units of the layer before) is set to 0: its transforms cancel only up to rounding,
// and that noise would turn half of the blank units on.
//
// Versions, forward with max pooling, NCHW float32, CPU milliseconds of one thread on a busy Xeon with
// AVX-512 (medians of 3; torch's eager channels_last in the same run in brackets):
//                                                        fashion2       res9         stem
//   direct.h                                              52.5 [52.2]   169 [230]    22.7 [32.9]
//   tiles of one task multiplied at once                  31.4 [52.2]    76 [230]      -
//   batches of tiles, odd pitches, unrolled channels,
//   transforms in registers, stride 2 folded              19.5 [39.5]    65 [215]    20.5 [28.4]
// and with the AVX2 files on the same machine (torch still uses AVX-512):
//   direct.h                                              95.8 [50.6]   379 [246]    43.1 [31.5]
//   tiles of one task multiplied at once                  50.3 [50.6]   133 [246]      -
//   as above                                              30.6 [36.2]    94 [195]    27.7 [30.0]
// On an EPYC (Zen 4, AVX-512), best of one thread, with vgg5 in the last column:
//   as above, F(2x2, 5x5) and F(3x3, 4x4)                 27.1           56          18.0        168
//   8 points: F(4x4, 5x5), F(5x5, 4x4)                    17.1           55          14.4        168
//   channels turned over in registers on the way in
//   and out, sums of 128 channels, packed weights kept    15.4           52          12.1        152
#pragma once

#include "conv_relu_pool/cpu/plan.h"
#include "conv_relu_pool/cpu/unpool.h"
#include "conv_relu_pool/cpu/winograd_transforms.h"

namespace zb::conv_relu_pool::cpu {
namespace {

constexpr int64_t kTransformedBytes = 2 << 20;  // transformed input of one task
constexpr int64_t kMostTiles = 512;
constexpr int64_t kChannelChain = 128;        // channels of one chain of multiply-adds; chains are added
constexpr int64_t kProductBytes = 512 << 10;  // products of the tiles that are multiplied at a time

template <int N>
struct Int {
  static constexpr int value = N;
};

ZB_INLINE int64_t products_of(const Call& c) { return c.points * c.points; }
ZB_INLINE int64_t tile_side(const Call& c) { return c.points + 1 - c.filter; }
ZB_INLINE int64_t folded_channels(const Call& c) { return c.C * c.fold * c.fold; }
ZB_INLINE int64_t channel_groups(const Call& c) { return up_div(folded_channels(c), Float::n); }
ZB_INLINE int64_t packed_channels(const Call& c) { return c.few ? c.C : channel_groups(c) * Float::n; }
ZB_INLINE int64_t folded_padding(const Call& c, int d) { return up_div(c.padding[d], c.fold); }
ZB_INLINE int64_t patch_extent(const Call& c, int64_t tiles) { return tiles * tile_side(c) + c.filter - 1; }

// Values from one of the products to the next. An odd number of cache lines: the transforms touch all of them
// at a time, which a power of two would put into one set of the first-level cache.
ZB_INLINE int64_t product_pitch(int64_t values) { return (up_div(values, 16) | 1) * 16; }

// A channel after folding: a channel of x, and the phases of its rows and columns.
struct Phase {
  int64_t channel, phase[2];
};

ZB_INLINE Phase phase_of(const Call& c, int64_t folded) {
  return {folded / (c.fold * c.fold), {folded / c.fold % c.fold, folded % c.fold}};
}

// Transformed filters [block][product][folded channel, rounded up][kBlock], of few channels
// [block][channel][product][kBlock]. Unit: (block, channel).
template <class E, int POINTS, int SIZE>
void pack_filters(const Call& c, int64_t begin, int64_t end) {
  const int64_t channels = packed_channels(c);
  for (int64_t unit = begin; unit < end; ++unit) {
    const Block b = block_at(c, unit / channels);
    const int64_t folded = unit % channels;
    const Phase at = phase_of(c, folded);
    const int64_t step = c.few ? 1 : channels, at_channel = c.few ? folded * POINTS * POINTS : folded;
    float* to = static_cast<float*>(c.packed_weight) +
                (b.index * POINTS * POINTS * channels + at_channel) * kBlock<float>;
    for (int64_t v = 0; v < 2; ++v, to += Float::n) {
      float lanes[SIZE * SIZE][Float::n] = {};
      const int64_t first = b.first + v * Float::n;
      const int64_t size = at.channel < c.C ? clamped(b.size - v * Float::n, 0, Float::n) : 0;
      for (int64_t k = 0; k < size; ++k) {
        const E* w =
            static_cast<const E*>(c.weight) + (first + k) * c.w_strides[0] + at.channel * c.w_strides[1];
        for (int64_t i = 0; i < SIZE; ++i) {
          const int64_t r = i * c.fold + at.phase[0] - c.shift[0];
          for (int64_t j = 0; j < SIZE; ++j) {
            const int64_t s = j * c.fold + at.phase[1] - c.shift[1];
            const bool inside = r >= 0 && r < c.kernel[0] && s >= 0 && s < c.kernel[1];
            if (inside) lanes[i * SIZE + j][k] = value_of(w[r * c.w_strides[2] + s * c.w_strides[3]]);
          }
        }
      }
      Reg g[SIZE * SIZE], half[POINTS * SIZE], u[POINTS * POINTS];
      for (int i = 0; i < SIZE * SIZE; ++i) g[i] = Float::load(lanes[i]);
      for (int s = 0; s < SIZE; ++s) transform_filter<POINTS, SIZE>(g + s, SIZE, half + s, SIZE);
      for (int r = 0; r < POINTS; ++r) {
        transform_filter<POINTS, SIZE>(half + r * SIZE, 1, u + r * POINTS, 1);
      }
      for (int i = 0; i < POINTS * POINTS; ++i) Float::store(to + i * step * kBlock<float>, u[i]);
    }
  }
}

template <class E>
void pack_winograd(const Call& c, int64_t begin, int64_t end) {
  c.filter == 2   ? pack_filters<E, 6, 2>(c, begin, end)
  : c.filter == 3 ? pack_filters<E, 6, 3>(c, begin, end)
  : c.filter == 4 ? pack_filters<E, 8, 4>(c, begin, end)
  : c.filter == 5 ? pack_filters<E, 8, 5>(c, begin, end)
  : c.filter == 6 ? pack_filters<E, 8, 6>(c, begin, end)
                  : pack_filters<E, 8, 7>(c, begin, end);
}

// The tiles that a task needs, of every one of its images.
struct Tiling {
  Range rows, columns;  // of the grid of tiles
  int64_t per_image() const { return rows.size() * columns.size(); }
};

ZB_INLINE Tiling tiling_of(const Call& c, Range map_rows, Range map_columns) {
  const int64_t side = tile_side(c);
  return {{map_rows.begin / side, up_div(map_rows.end, side)},
          {map_columns.begin / side, up_div(map_columns.end, side)}};
}

// `lanes` folded channels from `at` on, which share a phase, of the input under some tiles:
// [row][column][Float::n], zeros in the padding.
template <class E>
void fill_lanes(const Call& c, const Phase& at, int64_t lanes, int64_t image, int64_t top, int64_t left,
                int64_t rows, int64_t columns, float* to) {
  constexpr int64_t n = Float::n;
  const auto put_zeros = [&](int64_t begin, int64_t end) {
    for (int64_t w = begin; w < end; ++w) {
      if (lanes == n) {
        Float::store(to + w * n, Float::zero());
      } else {
        for (int64_t i = 0; i < lanes; ++i) to[w * n + i] = 0;
      }
    }
  };
  const int64_t height = up_div(c.in[0] - at.phase[0], c.fold), width = up_div(c.in[1] - at.phase[1], c.fold);
  const int64_t w0 = clamped(-left, 0, columns), w1 = clamped(width - left, w0, columns);
  for (int64_t h = top; h < top + rows; ++h, to += columns * n) {
    if (h < 0 || h >= height || w0 == w1) {
      put_zeros(0, columns);
      continue;
    }
    put_zeros(0, w0);
    const E* from = static_cast<const E*>(c.x) + image * c.x_strides[0] + at.channel * c.x_strides[1] +
                    (h * c.fold + at.phase[0]) * c.x_strides[2] +
                    ((left + w0) * c.fold + at.phase[1]) * c.x_strides[3];
    interleave(from, c.x_strides[1], c.fold * c.x_strides[3], lanes, w1 - w0, to + w0 * n);
    put_zeros(w1, columns);
  }
}

template <class E>
void fill_patch(const Call& c, int64_t image, int64_t channel, int64_t top, int64_t left, int64_t rows,
                int64_t columns, float* to) {
  const int64_t channels = least(Float::n, folded_channels(c) - channel);
  if (c.unpool) return fill_unpooled<E>(c, image, channel, channels, top, left, rows, columns, to);
  if (channels < Float::n) std::memset(to, 0, sizeof(float) * rows * columns * Float::n);
  const int64_t together = c.fold == 1 ? channels : 1;
  for (int64_t i = 0; i < channels; i += together) {
    fill_lanes<E>(c, phase_of(c, channel + i), together, image, top, left, rows, columns, to + i);
  }
}

// Which outputs of some tiles see an input that is not 0.
struct Live {
  uint8_t* outputs;  // [image][row][column] of whole tiles
  uint8_t* tiles;    // [image][tile]: whether all outputs of the tile do
};

struct LiveScratch {
  uint32_t* bits;  // of a patch [row][column][Float::n], or-ed over the channels
  uint8_t *seen, *across;
  Live live;
};

ZB_INLINE void gather_bits(const float* patch, int64_t values, bool first, uint32_t* bits) {
  if (first) {
    std::memcpy(bits, patch, sizeof(uint32_t) * static_cast<size_t>(values));
    return;
  }
  for (int64_t i = 0; i < values; ++i) {
    uint32_t word;
    std::memcpy(&word, patch + i, sizeof(word));
    bits[i] |= word;
  }
}

// seen[row][column] of the unfolded patch: whether any channel is not 0 there. The sign does not count.
template <int FOLD>
void find_seen(const uint32_t* bits, int64_t rows, int64_t columns, uint8_t* seen) {
  constexpr int phases = FOLD * FOLD;
  for (int64_t h = 0; h < rows; ++h) {
    uint8_t* to = seen + h * FOLD * columns * FOLD;
    for (int64_t w = 0; w < columns; ++w, bits += Float::n) {
      uint32_t any[phases] = {};
      for (int i = 0; i < Float::n;
           i += phases) {  // the phase of a folded channel is its number modulo phases
        for (int phase = 0; phase < phases; ++phase) any[phase] |= bits[i + phase];
      }
      for (int phase = 0; phase < phases; ++phase) {
        to[phase / FOLD * columns * FOLD + w * FOLD + phase % FOLD] = (any[phase] << 1) != 0;
      }
    }
  }
}

// to[i] |= from[i * step]
ZB_INLINE void or_every(uint8_t* __restrict to, const uint8_t* from, int64_t count, int64_t step) {
  if (step == 1) {
    for (int64_t i = 0; i < count; ++i) to[i] |= from[i];
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] |= from[i * step];
  }
}

// From what is seen of an image's patch, folded [rows][columns] from (top, left) on, to its part of live.
inline void mark_live(const Call& c, const Tiling& tiling, int64_t top, int64_t left, int64_t rows,
                      int64_t columns, const LiveScratch& s, int64_t image) {
  const int64_t fold = c.fold, side = tile_side(c), width = columns * fold;
  uint8_t* tiles = s.live.tiles + image * tiling.per_image();
  std::memset(tiles, 1, static_cast<size_t>(tiling.per_image()));
  // The usual case: no blank pixel, and no window that lies in the padding as a whole.
  const int64_t h0 = clamped(-top * fold, 0, rows * fold),
                h1 = clamped(c.in[0] - top * fold, h0, rows * fold);
  const int64_t w0 = clamped(-left * fold, 0, width), w1 = clamped(c.in[1] - left * fold, w0, width);
  bool all = c.padding[0] < c.kernel[0] && c.padding[1] < c.kernel[1];
  for (int64_t h = h0; h < h1 && all; ++h) {
    all = std::memchr(s.seen + h * width + w0, 0, static_cast<size_t>(w1 - w0)) == nullptr;
  }
  if (all) return;
  const int64_t out_rows = tiling.rows.size() * side, out_columns = tiling.columns.size() * side;
  for (int64_t h = 0; h < rows * fold; ++h) {
    const uint8_t* from = s.seen + h * width + c.shift[1];
    uint8_t* to = s.across + h * out_columns;
    std::memset(to, 0, static_cast<size_t>(out_columns));
    for (int64_t i = 0; i < c.kernel[1]; ++i) or_every(to, from + i, out_columns, fold);
  }
  uint8_t* outputs = s.live.outputs + image * out_rows * out_columns;
  for (int64_t h = 0; h < out_rows; ++h) {
    const uint8_t* from = s.across + (h * fold + c.shift[0]) * out_columns;
    uint8_t* to = outputs + h * out_columns;
    std::memset(to, 0, static_cast<size_t>(out_columns));
    for (int64_t i = 0; i < c.kernel[0]; ++i) or_every(to, from + i * out_columns, out_columns, 1);
    uint8_t* row = tiles + h / side * tiling.columns.size();
    for (int64_t w = 0; w < out_columns; ++w) row[w / side] &= to[w];
  }
}

// Transformed input v [product][channel group][tile][Float::n] of `tiles` tiles in all, from a task's images.
template <class E, int POINTS>
void transform_inputs(const Call& c, const Task& t, const Tiling& tiling, int64_t tiles, float* patch,
                      float* v, int64_t pitch, const LiveScratch& live) {
  constexpr int64_t n = Float::n;
  const int64_t side = tile_side(c), groups = channel_groups(c);
  const int64_t rows = patch_extent(c, tiling.rows.size()), columns = patch_extent(c, tiling.columns.size());
  const int64_t top = tiling.rows.begin * side - folded_padding(c, 0);
  const int64_t left = tiling.columns.begin * side - folded_padding(c, 1);
  for (int64_t image = t.images.begin; image < t.images.end; ++image) {
    for (int64_t group = 0; group < groups; ++group) {
      fill_patch<E>(c, image, group * n, top, left, rows, columns, patch);
      gather_bits(patch, rows * columns * n, group == 0, live.bits);
      float* to = v + (group * tiles + (image - t.images.begin) * tiling.per_image()) * n;
      for (int64_t r = 0; r < tiling.rows.size(); ++r) {
        for (int64_t s = 0; s < tiling.columns.size(); ++s, to += n) {
          const float* from = patch + (r * side * columns + s * side) * n;
          transform_tile<POINTS>(from, columns * n, n, to, pitch);
        }
      }
    }
    c.fold == 1 ? find_seen<1>(live.bits, rows, columns, live.seen)
                : find_seen<2>(live.bits, rows, columns, live.seen);
    mark_live(c, tiling, top, left, rows, columns, live, image - t.images.begin);
  }
}

// One channel of the input that a tile's direct sums see, [rows][columns] from (top, left) on.
template <class E>
void fill_seen(const Call& c, int64_t image, int64_t channel, int64_t top, int64_t left, int64_t rows,
               int64_t columns, float* to) {
  const E* plane = static_cast<const E*>(c.x) + image * c.x_strides[0] + channel * c.x_strides[1];
  for (int64_t h = top; h < top + rows; ++h, to += columns) {
    if (h < 0 || h >= c.in[0]) {
      std::memset(to, 0, sizeof(float) * static_cast<size_t>(columns));
    } else {
      fill_segment(to, columns, plane + h * c.x_strides[2], c.in[1], c.x_strides[3], left, 1);
    }
  }
}

// One vector of output channels of one tile by direct sums, in the order of direct.h. Rare, but not slow: a
// network that has come to NaN has no other tiles.
template <class E, int SIDE>
void direct_tile(const Call& c, int64_t image, int64_t first, int64_t channels, int64_t top, int64_t left,
                 float* to, int64_t row_pitch) {
  constexpr int64_t n = Float::n,
                    kMostReach = 16;  // rows seen of the input: twice the points, with a stride of 2
  const int64_t chain = chain_channels(c, c.Cg), taps = c.kernel[0] * c.kernel[1];
  const int64_t rows = (SIDE - 1) * c.stride[0] + c.kernel[0],
                columns = (SIDE - 1) * c.stride[1] + c.kernel[1];
  const int64_t down = top * c.stride[0] - c.padding[0], right = left * c.stride[1] - c.padding[1];
  float seen[kMostReach * kMostReach], unpooled[kMostReach * kMostReach * n],
      weights[kMostReach * kMostReach * n] = {};
  // Taps in memory's order, which is the other way round where the filters are turned.
  const bool turned = c.w_strides[3] < 0, dense = c.w_strides[2] == c.kernel[1] * c.w_strides[3];
  const int64_t step = turned ? -c.w_strides[3] : c.w_strides[3];
  const auto load_weights = [&](int64_t ch) {
    const E* w = static_cast<const E*>(c.weight) + first * c.w_strides[0] + ch * c.w_strides[1];
    const int64_t runs = dense ? 1 : c.kernel[0], length = taps / runs;
    for (int64_t r = 0; r < runs; ++r) {
      const E* row = w + r * c.w_strides[2] + (turned ? (length - 1) * c.w_strides[3] : 0);
      interleave(row, c.w_strides[0], step, channels, length, weights + r * length * n);
    }
    return length;
  };
  Reg sum[SIDE][SIDE];
  const auto start_chain = [&sum] {
    for (auto& row : sum) {
      for (Reg& value : row) value = Float::zero();
    }
  };
  start_chain();
  for (int64_t ch = 0; ch < c.C; ++ch) {
    if (!c.unpool) {
      fill_seen<E>(c, image, ch, down, right, rows, columns, seen);
    } else {
      if (ch % n == 0)
        fill_unpooled<E>(c, image, ch, least(n, c.C - ch), down, right, rows, columns, unpooled);
      for (int64_t i = 0; i < rows * columns; ++i) seen[i] = unpooled[i * n + ch % n];
    }
    const int64_t length = load_weights(ch);
    for (int64_t tap = 0; tap < taps; ++tap) {
      const int64_t r = tap / c.kernel[1], s = tap % c.kernel[1];
      const int64_t at = turned ? tap / length * length + length - 1 - tap % length : tap;
      const Reg weight = Float::load(weights + at * n);
      const float* from = seen + r * columns + s;
      for (int i = 0; i < SIDE; ++i) {
        for (int j = 0; j < SIDE; ++j) {
          const float value = from[i * c.stride[0] * columns + j * c.stride[1]];
          if (c.unpool && value == 0) continue;  // no gradient, not even where the weight is infinite
          sum[i][j] = Float::fma(Float::set1(value), weight, sum[i][j]);
        }
      }
    }
    if ((ch + 1) % chain != 0 && ch + 1 != c.C) continue;
    for (int i = 0; i < SIDE; ++i) {
      for (int j = 0; j < SIDE; ++j) {
        float* at = to + i * row_pitch + j * kBlock<float>;
        Float::store(at, ch >= chain ? Float::add(Float::load(at), sum[i][j]) : sum[i][j]);
      }
    }
    start_chain();
  }
}

// Above 2^64 a tile is not trusted: the largest value's rounding is felt in all of its outputs, and beside
// 1e37 that of a neighbour's 1 is more than a number can lose. Times this, such an output is infinite.
constexpr float kTooLarge = 0x1p64f;

// The products of some tiles, m [product][tile][kBlock], from tile `first` on.
template <int POINTS>
struct Products {
  const float* m;
  int64_t pitch, first;

  // One vector of channels of a column of a tile's points.
  ZB_INLINE void read(int64_t tile, int vector, int column, Reg (&in)[POINTS]) const {
    const float* from = m + column * pitch + (tile - first) * kBlock<float> + vector * Float::n;
#pragma GCC unroll 8
    for (int i = 0; i < POINTS; ++i) in[i] = Float::load(from + i * POINTS * pitch);
  }
};

// From the products of some tiles of one image to its map, whose memory holds whole tiles.
template <class E, int POINTS, int SIDE, class From>
void transform_outputs(const Call& c, const Tiling& tiling, int64_t image, Range tiles, const Block& b,
                       const From& products, float* map, int64_t row_pitch, const Live& live) {
  const int vectors = b.size > Float::n ? 2 : 1;
  const int64_t live_pitch = tiling.columns.size() * SIDE;
  for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
    const int64_t r = tile / tiling.columns.size(), s = tile % tiling.columns.size();
    for (int v = 0; v < vectors; ++v) {
      float* to = map + r * SIDE * row_pitch + s * SIDE * kBlock<float> + v * Float::n;
      Reg in[POINTS], half[SIDE * POINTS], out[SIDE];
#pragma GCC unroll 8
      for (int j = 0; j < POINTS; ++j) {
        products.read(tile, v, j, in);
        transform_output<POINTS, SIDE>(in, half + j, POINTS);
      }
      Reg nothing = Float::zero();  // 0, or NaN where anything is too large or not finite
#pragma GCC unroll 5
      for (int i = 0; i < SIDE; ++i) {
        transform_output<POINTS, SIDE>(half + i * POINTS, out, 1);
#pragma GCC unroll 5
        for (int j = 0; j < SIDE; ++j) {
          Float::store(to + i * row_pitch + j * kBlock<float>, out[j]);
          nothing = Float::fma(scaled(kTooLarge, out[j]), Float::zero(), nothing);
        }
      }
      if (Float::bits(Float::is_nan(nothing))) {
        direct_tile<E, SIDE>(c, image, b.first + v * Float::n, least(Float::n, b.size - v * Float::n),
                             (tiling.rows.begin + r) * SIDE, (tiling.columns.begin + s) * SIDE, to,
                             row_pitch);
      } else if (!live.tiles[tile]) {
        for (int i = 0; i < SIDE; ++i) {
          for (int j = 0; j < SIDE; ++j) {
            if (live.outputs[(r * SIDE + i) * live_pitch + s * SIDE + j]) continue;
            Float::store(to + i * row_pitch + j * kBlock<float>, Float::zero());
          }
        }
      }
    }
  }
}

// How a task's tiles are multiplied: the tiles of one image in batches, those of several small images at
// once.
struct Batches {
  int64_t count, size;
};

ZB_INLINE int64_t most_in_batch(const Call& c) {
  return kProductBytes / (products_of(c) * kBlock<float> * static_cast<int64_t>(sizeof(float)));
}

ZB_INLINE Batches batches_of(const Call& c, int64_t images, int64_t tiles) {
  const int64_t count = images > 1 ? 1 : up_div(tiles, most_in_batch(c));
  return {count, up_div(tiles, count)};
}

struct WinogradScratch {
  float *patch, *v, *m, *map, *value, *position;
  LiveScratch live;
  Runs<float> runs;
};

ZB_INLINE WinogradScratch winograd_scratch(const Call& c, Scratch& memory) {
  const int64_t side = tile_side(c), rows = c.map_rows / side, columns = c.map_columns / side;
  const int64_t tiles = c.images.block * rows * columns,
                outputs = c.rows.block * c.columns.block * kBlock<float>;
  const int64_t batch = c.images.block > 1 ? tiles : least(tiles, most_in_batch(c));
  WinogradScratch s;
  s.patch = memory.take<float>(patch_extent(c, rows) * patch_extent(c, columns) * Float::n);
  if (c.few) {
    s.v = memory.take<float>(tiles * c.C * products_of(c));
    s.m = nullptr;
  } else {
    s.v = memory.take<float>(products_of(c) * product_pitch(channel_groups(c) * tiles * Float::n));
    s.m = memory.take<float>(products_of(c) * product_pitch(batch * kBlock<float>));
  }
  s.map = memory.take<float>(c.map_rows * c.map_columns * kBlock<float>);
  s.value = memory.take<float>(outputs);
  s.position = memory.take<float>(outputs);
  const int64_t patch_rows = patch_extent(c, rows), patch_columns = patch_extent(c, columns);
  s.live.bits = memory.take<uint32_t>(patch_rows * patch_columns * Float::n);
  s.live.seen = memory.take<uint8_t>(patch_rows * patch_columns * c.fold * c.fold);
  s.live.across = memory.take<uint8_t>(patch_rows * c.fold * columns * side);
  s.live.live.outputs = memory.take<uint8_t>(tiles * side * side);
  s.live.live.tiles = memory.take<uint8_t>(tiles);
  s.runs = take_runs<float>(c, c.map_rows * c.map_columns, c.rows.block * c.columns.block, memory);
  return s;
}

void plan_winograd(Call& c) {
  const int64_t side = tile_side(c), channels = packed_channels(c);
  const int64_t most_tiles =
      clamped(kTransformedBytes / (products_of(c) * channels * 4), 2 * kTilePixels, kMostTiles);
  // Extents rounded up to tiles, which may begin and end outside of what is needed.
  const auto whole_tiles = [&](int d, int64_t outputs) {
    return least(up_to(map_extent(c, d, outputs), side) + side, up_to(c.map[d], side));
  };
  c.columns = cut_evenly(c.out[1], outputs_within(c, 1, kColumns));
  c.map_columns = whole_tiles(1, c.columns.block);
  c.images = {c.N, 1, c.N};
  const int64_t all_rows = up_div(c.map[0], side), tile_rows = most(1, most_tiles / (c.map_columns / side));
  // Whole rows of tiles, where the pool allows it: then no tile is computed twice.
  const bool aligned =
      c.pool_kernel[0] == c.pool_stride[0] && c.pool_padding[0] == 0 && side % c.pool_stride[0] == 0;
  const int64_t step = aligned ? side / c.pool_stride[0] : 1;
  const int64_t even_rows = up_div(all_rows, up_div(all_rows, tile_rows));
  const int64_t some = aligned ? even_rows * step : outputs_within(c, 0, most(even_rows, 4) * side);
  spread(c, even_rows >= all_rows ? c.out[0] : some, step);
  c.map_rows = whole_tiles(0, c.rows.block);
  if (c.rows.count == 1 && c.columns.count == 1) {
    const int64_t fit = least(most_in_batch(c), most_tiles) / (c.map_rows / side * (c.map_columns / side));
    c.images = cut_evenly(c.N, clamped(fit, 1, most(1, c.N / (c.threads * kTasksPerThread))));
  }
  c.weight_units = c.blocks * channels;
  c.weight_bytes = c.weight_units * products_of(c) * kBlock<float> * 4;
  Scratch count{nullptr, 0};
  winograd_scratch(c, count);
  c.scratch_bytes = count.used;
}

template <class E>
void run_winograd(const Call& c, const Task& t, Scratch& memory) {
  WinogradScratch s = winograd_scratch(c, memory);
  const Tiling tiling = tiling_of(c, t.rows, t.columns);
  const int64_t side = tile_side(c), products = products_of(c), channels = channel_groups(c) * Float::n;
  const int64_t per_image = tiling.per_image(), tiles = t.images.size() * per_image;
  const int64_t row_pitch = tiling.columns.size() * side * kBlock<float>;
  const Batches batches = batches_of(c, t.images.size(), tiles);
  const int64_t v_pitch = product_pitch(channels * tiles),
                m_pitch = product_pitch(batches.size * kBlock<float>);
  const int64_t group_pitch = tiles * Float::n;
  const auto outputs = [&](int64_t image, Range of, const Block& b, const float* m) {
    const int64_t number = image - t.images.begin;
    const Live live{s.live.live.outputs + number * per_image * side * side,
                    s.live.live.tiles + number * per_image};
    const auto transform = [&](auto points, auto side) {
      constexpr int kPoints = points.value, kSide = side.value;
      transform_outputs<E, kPoints, kSide>(c, tiling, image, of, b, Products<kPoints>{m, m_pitch, of.begin},
                                           s.map, row_pitch, live);
    };
    c.filter == 2   ? transform(Int<6>{}, Int<5>{})
    : c.filter == 3 ? transform(Int<6>{}, Int<4>{})
    : c.filter == 4 ? transform(Int<8>{}, Int<5>{})
    : c.filter == 5 ? transform(Int<8>{}, Int<4>{})
    : c.filter == 6 ? transform(Int<8>{}, Int<3>{})
                    : transform(Int<8>{}, Int<2>{});
  };
  const int64_t down = t.rows.begin - tiling.rows.begin * side;
  const int64_t right = t.columns.begin - tiling.columns.begin * side;
  const Map<float> map{s.map + down * row_pitch + right * kBlock<float>, t.rows, t.columns, row_pitch};
  const Pooled<float> pooled{s.value, s.position, t.out_rows, t.out_columns};

  c.points == 6 ? transform_inputs<E, 6>(c, t, tiling, tiles, s.patch, s.v, v_pitch, s.live)
                : transform_inputs<E, 8>(c, t, tiling, tiles, s.patch, s.v, v_pitch, s.live);
  for (int64_t i = t.blocks.begin; i < t.blocks.end; ++i) {
    const Block b = block_at(c, i);
    const float* u = static_cast<const float*>(c.packed_weight) + i * products * channels * kBlock<float>;
    for (int64_t first = 0; first < tiles; first += batches.size) {
      const int64_t size = least(batches.size, tiles - first);
      for (int64_t product = 0; product < products; ++product) {
        const float* v = s.v + product * v_pitch + first * Float::n;
        for (int64_t ch = 0; ch < folded_channels(c); ch += kChannelChain) {
          tile_run<float, Float::n>(size, b.size, v + ch / Float::n * group_pitch, &group_pitch,
                                    least(kChannelChain, folded_channels(c) - ch),
                                    u + (product * channels + ch) * kBlock<float>, s.m + product * m_pitch,
                                    ch > 0);
        }
      }
      if (t.images.size() == 1) outputs(t.images.begin, {first, first + size}, b, s.m);
    }
    for (int64_t image = t.images.begin; image < t.images.end; ++image) {
      if (t.images.size() > 1) {
        outputs(image, {0, per_image}, b, s.m + (image - t.images.begin) * per_image * kBlock<float>);
      }
      after_convolution<E>(c, map, pooled, s.runs, image, b, true);
      write_outputs<E>(c, pooled, s.runs, image, b);
    }
    finish_block<E, float>(c, t, i);
  }
}

}  // namespace
}  // namespace zb::conv_relu_pool::cpu
