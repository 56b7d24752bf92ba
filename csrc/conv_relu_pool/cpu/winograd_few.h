// Minimal filtering for first layers, of a few input channels. Part of forward_kernel.h.
//
// Of so few channels no matrix product can be made, and vectors of channels would be all but empty on the way
// in. So vectors of the input transform run along the tiles, and a tile's products are made where the output
// transform reads them, one multiply-add a channel and point: they are never in memory. Everything else is
// winograd.h's.
//
// Versions, forward with max pooling, NCHW float32, milliseconds of one thread of an EPYC (Zen 4, AVX-512),
// best:
//                                       mnist1   cifar1
//   direct.h                             4.5      6.2
//   products and filters [point][channel], sums of addresses in memory      5.6      6.5
//   [channel][point], so that every offset is a constant                    3.5      4.4
//   blank pixels found by vectors                                           3.3      4.1
//   (with the AVX2 files: direct.h 5.4, 6.8; this 4.3, 5.9)
#pragma once

#include "conv_relu_pool/cpu/winograd.h"

namespace zb::conv_relu_pool::cpu {
namespace {

// Transformed input v [image][tile][channel][point].
template <class E, int POINTS>
void transform_few_inputs(const Call& c, const Task& t, const Tiling& tiling, float* patch, float* v,
                          const LiveScratch& live) {
  constexpr int64_t n = Float::n, points = POINTS * POINTS;
  const int64_t side = tile_side(c), per_image = tiling.per_image(), across = tiling.columns.size();
  const int64_t rows = patch_extent(c, tiling.rows.size()), columns = patch_extent(c, across);
  const int64_t top = tiling.rows.begin * side - c.padding[0],
                left = tiling.columns.begin * side - c.padding[1];
  for (int64_t image = t.images.begin; image < t.images.end; ++image, v += per_image * c.C * points) {
    for (int64_t ch = 0; ch < c.C; ++ch) {
      fill_seen<E>(c, image, ch, top, left, rows, columns, patch);
      gather_bits(patch, rows * columns, ch == 0, live.bits);
      for (int64_t first = 0; first < per_image; first += n) {
        const int64_t some = least(n, per_image - first);
        alignas(64) float buffer[points * n] = {};
        for (int64_t tile = first; tile < first + some;) {  // those that lie in one row of tiles
          const int64_t r = tile / across, s = tile % across,
                        together = least(across - s, first + some - tile);
          for (int i = 0; i < POINTS; ++i) {
            transpose_tile(patch + (r * side + i) * columns + s * side, side, together, POINTS,
                           buffer + i * POINTS * n + tile - first, n);
          }
          tile += together;
        }
        transform_tile<POINTS>(buffer, POINTS * n, n, buffer, n);
        transpose(buffer, n, points, some, v + (first * c.C + ch) * points, c.C * points);
      }
    }
    const uint32_t* bits = live.bits;
    uint8_t* __restrict seen = live.seen;
    for (int64_t i = 0; i < rows * columns; ++i) seen[i] = (bits[i] << 1) != 0;
    mark_live(c, tiling, top, left, rows, columns, live, image - t.images.begin);
  }
}

// The products of a tile, made from v [tile][channel][point] and the filters u [channel][point][kBlock].
template <int POINTS>
struct FewProducts {
  const float *v, *u;
  int64_t channels;

  ZB_INLINE void read(int64_t tile, int vector, int column, Reg (&in)[POINTS]) const {
    constexpr int64_t points = POINTS * POINTS;
    const float* input = v + tile * channels * points + column;
    const float* filter = u + column * kBlock<float> + vector * Float::n;
#pragma GCC unroll 8
    for (int i = 0; i < POINTS; ++i) {
      in[i] = Float::mul(Float::set1(input[i * POINTS]), Float::load(filter + i * POINTS * kBlock<float>));
    }
#pragma GCC unroll 1
    for (int64_t ch = 1; ch < channels; ++ch) {
      input += points, filter += points * kBlock<float>;
#pragma GCC unroll 8
      for (int i = 0; i < POINTS; ++i) {
        in[i] = Float::fma(Float::set1(input[i * POINTS]), Float::load(filter + i * POINTS * kBlock<float>),
                           in[i]);
      }
    }
  }
};

template <class E, int POINTS, int SIDE>
void run_few(const Call& c, const Task& t, Scratch& memory) {
  WinogradScratch s = winograd_scratch(c, memory);
  const Tiling tiling = tiling_of(c, t.rows, t.columns);
  const int64_t per_image = tiling.per_image(), across = tiling.columns.size();
  const int64_t row_pitch = across * SIDE * kBlock<float>, image_size = per_image * c.C * POINTS * POINTS;
  const int64_t right = t.columns.begin - tiling.columns.begin * SIDE;
  const Pooled<float> pooled{s.value, s.position, t.out_rows, t.out_columns};
  transform_few_inputs<E, POINTS>(c, t, tiling, s.patch, s.v, s.live);
  for (int64_t i = t.blocks.begin; i < t.blocks.end; ++i) {
    const Block b = block_at(c, i);
    const float* u = static_cast<const float*>(c.packed_weight) + i * POINTS * POINTS * c.C * kBlock<float>;
    for (int64_t image = t.images.begin; image < t.images.end; ++image) {
      const int64_t number = image - t.images.begin;
      const FewProducts<POINTS> products{s.v + number * image_size, u, c.C};
      const Live live{s.live.live.outputs + number * per_image * SIDE * SIDE,
                      s.live.live.tiles + number * per_image};
      // A row of tiles at a time is pooled while it is in the first-level cache.
      for (int64_t r = 0; r < tiling.rows.size(); ++r) {
        const int64_t top = (tiling.rows.begin + r) * SIDE;
        const Range rows{most(top, t.rows.begin), least(top + SIDE, t.rows.end)};
        float* map = s.map - r * SIDE * row_pitch;  // where row 0 of the tiles would be
        transform_outputs<E, POINTS, SIDE>(c, tiling, image, {r * across, (r + 1) * across}, b, products, map,
                                           row_pitch, live);
        const bool last = rows.end == t.rows.end;
        const Map<float> chunk{s.map + (rows.begin - top) * row_pitch + right * kBlock<float>, rows,
                               t.columns, row_pitch};
        after_convolution<E>(c, chunk, pooled, s.runs, image, b, last);
        if (last) write_outputs<E>(c, pooled, s.runs, image, b);
      }
    }
    finish_block<E, float>(c, t, i);
  }
}

template <class E>
void run_few_channels(const Call& c, const Task& t, Scratch& memory) {
  c.filter == 3 ? run_few<E, 6, 4>(c, t, memory) : run_few<E, 8, 4>(c, t, memory);
}

}  // namespace
}  // namespace zb::conv_relu_pool::cpu
