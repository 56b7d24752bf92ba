// Convolution by minimal filtering: F(4x4, 3x3) and F(2x2, 5x5). Part of forward_kernel.h.
//
// Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015 (arXiv:1509.09308), equation 13:
//   Y = Aᵀ [ (G g Gᵀ) ⊙ (Bᵀ d B) ] A,  summed over the input channels before A is applied.
// Both use tiles d of 6x6 inputs and the points 0, 1, -1, 2, -2 and infinity, so they share Bᵀ; a tile gives
// 4x4 or 2x2 pre-activations with 36 multiplications a channel instead of 144 or 100. The 36 products over the
// channels are matrix products [tiles, C] x [C, K], computed by the register tile of direct.h.
//
// The tiles lie on a fixed grid of the map, so that no value depends on the cut into tasks. A tile that comes
// out not finite is computed again by direct sums: a NaN or inf in the input spreads over its tile in the
// transforms, which a convolution does not do.
#pragma once

namespace zb::conv_relu_pool::cpu {
namespace {

constexpr int kPoints = 6, kProducts = kPoints * kPoints;
using Float = Vec<float>;
using Reg = Float::reg;

constexpr int64_t kTransformedBytes = 2 << 20;  // transformed input of one task
constexpr int64_t kMostTiles = 128;

ZB_INLINE int64_t tile_side(const Call& c) { return c.kernel[0] == 3 ? 4 : 2; }
ZB_INLINE int64_t channel_groups(const Call& c) { return up_div(c.C, Float::n); }

// Bᵀ d
ZB_INLINE void transform_input(const Reg* d, int step, Reg* out, int out_step) {
  const Reg four = Float::set1(4), two = Float::set1(2);
  const Reg d0 = d[0], d1 = d[step], d2 = d[2 * step], d3 = d[3 * step], d4 = d[4 * step], d5 = d[5 * step];
  const Reg minus4 = Float::set1(-4), minus5 = Float::set1(-5), minus2 = Float::set1(-2);
  const Reg even = Float::fma(minus4, d2, d4), odd = Float::fma(minus4, d1, d3);
  const Reg even2 = Float::sub(d4, d2), odd2 = Float::sub(d3, d1);
  out[0] = Float::fma(four, d0, Float::fma(minus5, d2, d4));
  out[out_step] = Float::add(even, odd);
  out[2 * out_step] = Float::sub(even, odd);
  out[3 * out_step] = Float::fma(two, odd2, even2);
  out[4 * out_step] = Float::fma(minus2, odd2, even2);
  out[5 * out_step] = Float::fma(four, d1, Float::fma(minus5, d3, d5));
}

// Aᵀ m, for SIDE outputs
template <int SIDE>
ZB_INLINE void transform_output(const Reg* m, int step, Reg* out, int out_step) {
  const Reg m0 = m[0], m5 = m[5 * step];
  const Reg sum1 = Float::add(m[step], m[2 * step]), sum2 = Float::add(m[3 * step], m[4 * step]);
  const Reg diff1 = Float::sub(m[step], m[2 * step]), diff2 = Float::sub(m[3 * step], m[4 * step]);
  out[0] = Float::add(m0, Float::add(sum1, sum2));
  if constexpr (SIDE == 2) {
    out[out_step] = Float::add(Float::fma(Float::set1(2), diff2, diff1), m5);
  } else {
    out[out_step] = Float::fma(Float::set1(2), diff2, diff1);
    out[2 * out_step] = Float::fma(Float::set1(4), sum2, sum1);
    out[3 * out_step] = Float::add(Float::fma(Float::set1(8), diff2, diff1), m5);
  }
}

// G g: the filter as a polynomial, at the six points.
template <int SIZE>
ZB_INLINE void transform_filter(const Reg* g, int step, Reg* out, int out_step) {
  Reg even = g[0], odd = g[step], even2 = g[0], odd2 = Float::mul(Float::set1(2), g[step]);
  even = Float::add(even, g[2 * step]);
  even2 = Float::fma(Float::set1(4), g[2 * step], even2);
  if constexpr (SIZE == 5) {
    odd = Float::add(odd, g[3 * step]), even = Float::add(even, g[4 * step]);
    odd2 = Float::fma(Float::set1(8), g[3 * step], odd2);
    even2 = Float::fma(Float::set1(16), g[4 * step], even2);
  }
  const Reg sixth = Float::set1(-1.0f / 6), small = Float::set1(1.0f / 24);
  out[0] = Float::mul(Float::set1(0.25f), g[0]);
  out[out_step] = Float::mul(sixth, Float::add(even, odd));
  out[2 * out_step] = Float::mul(sixth, Float::sub(even, odd));
  out[3 * out_step] = Float::mul(small, Float::add(even2, odd2));
  out[4 * out_step] = Float::mul(small, Float::sub(even2, odd2));
  out[5 * out_step] = g[(SIZE - 1) * step];
}

// Transformed filters [block][product][channel, rounded up][kBlock]. Unit: (block, channel).
template <class E, class T, int SIZE>
void pack_filters(const Call& c, int64_t begin, int64_t end) {
  const int64_t channels = channel_groups(c) * Float::n;
  for (int64_t unit = begin; unit < end; ++unit) {
    const Block b = block_at(c, unit / channels);
    const int64_t channel = unit % channels;
    float* to = static_cast<float*>(c.packed_weight) + (b.index * kProducts * channels + channel) * kBlock<float>;
    for (int64_t v = 0; v < 2; ++v, to += Float::n) {
      float lanes[SIZE * SIZE][Float::n] = {};
      const int64_t first = b.first + v * Float::n, size = clamped(b.size - v * Float::n, 0, Float::n);
      for (int64_t k = 0; k < (channel < c.C ? size : 0); ++k) {
        const E* w = static_cast<const E*>(c.weight) + (first + k) * c.w_strides[0] + channel * c.w_strides[1];
        for (int r = 0; r < SIZE; ++r) {
          for (int s = 0; s < SIZE; ++s) {
            lanes[r * SIZE + s][k] = value_of(w[r * c.w_strides[2] + s * c.w_strides[3]]);
          }
        }
      }
      Reg g[SIZE * SIZE], half[kPoints * SIZE], u[kProducts];
      for (int i = 0; i < SIZE * SIZE; ++i) g[i] = Float::load(lanes[i]);
      for (int s = 0; s < SIZE; ++s) transform_filter<SIZE>(g + s, SIZE, half + s, SIZE);
      for (int r = 0; r < kPoints; ++r) transform_filter<SIZE>(half + r * SIZE, 1, u + r * kPoints, 1);
      for (int i = 0; i < kProducts; ++i) Float::store(to + i * channels * kBlock<float>, u[i]);
    }
  }
}

template <class E, class T>
void pack_winograd(const Call& c, int64_t begin, int64_t end) {
  c.kernel[0] == 3 ? pack_filters<E, T, 3>(c, begin, end) : pack_filters<E, T, 5>(c, begin, end);
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

ZB_INLINE int64_t patch_extent(const Call& c, int64_t tiles) {
  return tiles * tile_side(c) + c.kernel[0] - 1;
}

// Float::n channels of the input under some tiles, [row][column][channel], zeros in the padding.
template <class E>
void fill_patch(const Call& c, int64_t image, int64_t channel, int64_t top, int64_t left, int64_t rows,
                int64_t columns, float* to) {
  constexpr int64_t n = Float::n;
  const int64_t channels = least(n, c.C - channel);
  const int64_t w0 = clamped(-left, 0, columns), w1 = clamped(c.in[1] - left, w0, columns);
  for (int64_t h = 0; h < rows; ++h, to += columns * n) {
    if (top + h < 0 || top + h >= c.in[0]) {
      std::memset(to, 0, sizeof(float) * columns * n);
      continue;
    }
    std::memset(to, 0, sizeof(float) * w0 * n);
    std::memset(to + w1 * n, 0, sizeof(float) * (columns - w1) * n);
    if (channels < n) std::memset(to + w0 * n, 0, sizeof(float) * (w1 - w0) * n);
    if (w0 == w1) continue;
    const E* from = static_cast<const E*>(c.x) + image * c.x_strides[0] + channel * c.x_strides[1] +
                    (top + h) * c.x_strides[2] + (left + w0) * c.x_strides[3];
    if (c.x_strides[1] == 1 && channels == n) {
      for (int64_t w = w0; w < w1; ++w, from += c.x_strides[3]) Float::store(to + w * n, load_as(from));
    } else {
      for (int64_t ch = 0; ch < channels; ++ch) {
        for (int64_t w = w0; w < w1; ++w) {
          to[w * n + ch] = value_of(from[ch * c.x_strides[1] + (w - w0) * c.x_strides[3]]);
        }
      }
    }
  }
}

// Transformed input v [product][channel group][tile][Float::n] of `tiles` tiles in all, from a task's images.
template <class E>
void transform_inputs(const Call& c, const Task& t, const Tiling& tiling, int64_t tiles, float* patch, float* v) {
  constexpr int64_t n = Float::n;
  const int64_t side = tile_side(c), groups = channel_groups(c);
  const int64_t rows = patch_extent(c, tiling.rows.size()), columns = patch_extent(c, tiling.columns.size());
  const int64_t top = tiling.rows.begin * side - c.padding[0], left = tiling.columns.begin * side - c.padding[1];
  for (int64_t image = t.images.begin; image < t.images.end; ++image) {
    for (int64_t group = 0; group < groups; ++group) {
      fill_patch<E>(c, image, group * n, top, left, rows, columns, patch);
      float* to = v + (group * tiles + (image - t.images.begin) * tiling.per_image()) * n;
      for (int64_t r = 0; r < tiling.rows.size(); ++r) {
        for (int64_t s = 0; s < tiling.columns.size(); ++s, to += n) {
          const float* from = patch + (r * side * columns + s * side) * n;
          Reg d[kProducts], half[kProducts];
          for (int i = 0; i < kPoints; ++i) {
            for (int j = 0; j < kPoints; ++j) d[i * kPoints + j] = Float::load(from + (i * columns + j) * n);
          }
          for (int j = 0; j < kPoints; ++j) transform_input(d + j, kPoints, half + j, kPoints);
          for (int i = 0; i < kPoints; ++i) transform_input(half + i * kPoints, 1, d + i * kPoints, 1);
          for (int i = 0; i < kProducts; ++i) Float::store(to + i * groups * tiles * n, d[i]);
        }
      }
    }
  }
}

// One vector of output channels of one tile by direct sums, in the order of direct.h.
template <class E, int SIDE>
void direct_tile(const Call& c, int64_t image, int64_t first, int64_t channels, int64_t top, int64_t left,
                 float* to, int64_t row_pitch) {
  constexpr int SIZE = 7 - SIDE;  // of the filter
  Reg sum[SIDE * SIDE];
  for (Reg& s : sum) s = Float::zero();
  for (int64_t ch = 0; ch < c.C; ++ch) {
    float patch[kPoints][kPoints];
    for (int i = 0; i < kPoints; ++i) {
      for (int j = 0; j < kPoints; ++j) {
        const int64_t h = top + i - c.padding[0], w = left + j - c.padding[1];
        const bool inside = h >= 0 && h < c.in[0] && w >= 0 && w < c.in[1];
        patch[i][j] = inside ? value_of(static_cast<const E*>(c.x)[image * c.x_strides[0] + ch * c.x_strides[1] +
                                                                  h * c.x_strides[2] + w * c.x_strides[3]])
                             : 0;
      }
    }
    for (int r = 0; r < SIZE; ++r) {
      for (int s = 0; s < SIZE; ++s) {
        float lanes[Float::n] = {};
        for (int64_t k = 0; k < channels; ++k) {
          lanes[k] = value_of(static_cast<const E*>(c.weight)[(first + k) * c.w_strides[0] + ch * c.w_strides[1] +
                                                              r * c.w_strides[2] + s * c.w_strides[3]]);
        }
        const Reg weight = Float::load(lanes);
        for (int i = 0; i < SIDE; ++i) {
          for (int j = 0; j < SIDE; ++j) {
            sum[i * SIDE + j] = Float::fma(Float::set1(patch[i + r][j + s]), weight, sum[i * SIDE + j]);
          }
        }
      }
    }
  }
  for (int i = 0; i < SIDE; ++i) {
    for (int j = 0; j < SIDE; ++j) Float::store(to + i * row_pitch + j * kBlock<float>, sum[i * SIDE + j]);
  }
}

// From products m [product][tile][kBlock] to one image's map, whose memory holds whole tiles.
template <class E, int SIDE>
void transform_outputs(const Call& c, const Tiling& tiling, int64_t image, int64_t tiles, const Block& b,
                       const float* m, float* map, int64_t row_pitch) {
  const int vectors = b.size > Float::n ? 2 : 1;
  for (int64_t r = 0; r < tiling.rows.size(); ++r) {
    for (int64_t s = 0; s < tiling.columns.size(); ++s, m += kBlock<float>) {
      for (int v = 0; v < vectors; ++v) {
        float* to = map + r * SIDE * row_pitch + s * SIDE * kBlock<float> + v * Float::n;
        Reg in[kProducts], half[SIDE * kPoints], out[SIDE * SIDE];
        for (int i = 0; i < kProducts; ++i) in[i] = Float::load(m + i * tiles * kBlock<float> + v * Float::n);
        for (int j = 0; j < kPoints; ++j) transform_output<SIDE>(in + j, kPoints, half + j, kPoints);
        Reg nothing = Float::zero();  // 0, or NaN where anything is not finite
        for (int i = 0; i < SIDE; ++i) {
          transform_output<SIDE>(half + i * kPoints, 1, out + i * SIDE, 1);
          for (int j = 0; j < SIDE; ++j) {
            Float::store(to + i * row_pitch + j * kBlock<float>, out[i * SIDE + j]);
            nothing = Float::fma(out[i * SIDE + j], Float::zero(), nothing);
          }
        }
        if (Float::bits(Float::is_nan(nothing))) {
          direct_tile<E, SIDE>(c, image, b.first + v * Float::n, least(Float::n, b.size - v * Float::n),
                               (tiling.rows.begin + r) * SIDE, (tiling.columns.begin + s) * SIDE, to, row_pitch);
        }
      }
    }
  }
}

struct WinogradScratch {
  float *patch, *v, *m, *map, *value, *position;
};

ZB_INLINE WinogradScratch winograd_scratch(const Call& c, Scratch& memory) {
  const int64_t side = tile_side(c), groups = channel_groups(c);
  const int64_t rows = c.map_rows / side, columns = c.map_columns / side;  // most of a task, in tiles
  const int64_t tiles = c.images.block * rows * columns, outputs = c.rows.block * c.columns.block * kBlock<float>;
  WinogradScratch s;
  s.patch = memory.take<float>(patch_extent(c, rows) * patch_extent(c, columns) * Float::n);
  s.v = memory.take<float>(kProducts * groups * tiles * Float::n);
  s.m = memory.take<float>(kProducts * tiles * kBlock<float>);
  s.map = memory.take<float>(c.map_rows * c.map_columns * kBlock<float>);
  s.value = memory.take<float>(outputs);
  s.position = memory.take<float>(outputs);
  return s;
}

void plan_winograd(Call& c) {
  const int64_t side = tile_side(c), groups = channel_groups(c);
  const int64_t most_tiles = clamped(kTransformedBytes / (kProducts * groups * Float::n * 4), 2 * kTilePixels, kMostTiles);
  // Extents rounded up to tiles, which may begin and end outside of what is needed.
  const auto whole_tiles = [&](int d, int64_t outputs) {
    return least(up_to(map_extent(c, d, outputs), side) + side, up_to(c.map[d], side));
  };
  c.columns = cut_evenly(c.out[1], outputs_within(c, 1, kColumns));
  c.map_columns = whole_tiles(1, c.columns.block);
  int64_t tile_rows = most(1, most_tiles / (c.map_columns / side));
  c.images = {c.N, 1, c.N};
  const int64_t all_rows = up_div(c.map[0], side);
  // Whole rows of tiles, where the pool allows it: then no tile is computed twice.
  const bool aligned = c.pool_kernel[0] == c.pool_stride[0] && c.pool_padding[0] == 0 && side % c.pool_stride[0] == 0;
  const int64_t step = aligned ? side / c.pool_stride[0] : 1;
  const int64_t even_rows = up_div(all_rows, up_div(all_rows, tile_rows));
  const int64_t block = aligned ? even_rows * step : outputs_within(c, 0, most(even_rows * side, 4 * side));
  if (even_rows >= all_rows) {
    spread(c, c.out[0], step);
  } else {
    spread(c, block, step);
  }
  c.map_rows = whole_tiles(0, c.rows.block);
  const int64_t tiles = c.map_rows / side * (c.map_columns / side);
  if (c.rows.count == 1 && c.columns.count == 1) {
    c.images = cut_evenly(c.N, clamped(most_tiles / tiles, 1, most(1, c.N / (c.threads * kTasksPerThread))));
  }
  c.weight_units = c.blocks * groups * Float::n;
  c.weight_bytes = c.weight_units * kProducts * kBlock<float> * 4;
  Scratch count{nullptr, 0};
  winograd_scratch(c, count);
  c.scratch_bytes = count.used;
}

template <class E, class T>
void run_winograd(const Call& c, const Task& t, Scratch& memory) {
  const WinogradScratch s = winograd_scratch(c, memory);
  const int64_t side = tile_side(c), groups = channel_groups(c);
  const Tiling tiling = tiling_of(c, t.rows, t.columns);
  const int64_t per_image = tiling.per_image(), tiles = t.images.size() * per_image;
  const int64_t row_pitch = tiling.columns.size() * side * kBlock<float>;
  const Pooled<float> pooled{s.value, s.position, t.out_rows, t.out_columns};
  int64_t lanes[Float::n];
  for (int64_t i = 0; i < Float::n; ++i) lanes[i] = i;

  transform_inputs<E>(c, t, tiling, tiles, s.patch, s.v);
  for (int64_t i = t.blocks.begin; i < t.blocks.end; ++i) {
    const Block b = block_at(c, i);
    const float* u = static_cast<const float*>(c.packed_weight) + i * kProducts * groups * Float::n * kBlock<float>;
    for (int64_t product = 0; product < kProducts; ++product) {
      // v is [channel group][tile][channel]: a group is a "channel", its channels are the "taps" of direct.h.
      tile_run<float, Float::n>(tiles, b.size, s.v + product * groups * tiles * Float::n, tiles * Float::n, groups,
                                lanes, Float::n, u + product * groups * Float::n * kBlock<float>,
                                s.m + product * tiles * kBlock<float>, false);
    }
    for (int64_t image = t.images.begin; image < t.images.end; ++image) {
      const float* m = s.m + (image - t.images.begin) * per_image * kBlock<float>;
      if (side == 4) {
        transform_outputs<E, 4>(c, tiling, image, tiles, b, m, s.map, row_pitch);
      } else {
        transform_outputs<E, 2>(c, tiling, image, tiles, b, m, s.map, row_pitch);
      }
      const int64_t down = t.rows.begin - tiling.rows.begin * side, right = t.columns.begin - tiling.columns.begin * side;
      const Map<float> map{s.map + down * row_pitch + right * kBlock<float>, t.rows, t.columns, row_pitch};
      after_convolution<E>(c, map, pooled, image, b);
      write_outputs<E>(c, pooled, image, b);
    }
  }
}

}  // namespace
}  // namespace zb::conv_relu_pool::cpu
