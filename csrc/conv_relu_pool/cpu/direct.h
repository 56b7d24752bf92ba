// Direct convolution of some rows of the map. Part of forward_kernel.h.
//
// The input that a task needs is copied once into a slab of rows [row][channel][column], converted to T, with
// the padding filled in, so that the loops below have no branches. The columns of a row are stored by phase
// (column modulo stride), which makes every convolution one of stride 1; where few of the columns are used
// (1x1 kernels with a stride, large dilations) they are stored once a tap instead.
//
// Every pre-activation is a sum over channel, row, column of the filter, in chains of fused multiply-adds
// over at most kChain taps (or one channel's), which are added in order: values do not depend on memory
// format, batch, threads or instruction set, and the error grows with the length of a chain, not with the
// channels.
//
// Versions, forward with max pooling, NCHW float32, CPU milliseconds of one thread on a busy Xeon with
// AVX-512 (medians of 3; torch's eager channels_last in the same run in brackets):
//                                              mnist1        cifar1
//   loops over channels and over taps           6.8 [49.2]    9.1 [60.4]
//   one flat loop over both                     5.0 [32.8]    5.8 [37.8]
// and on an EPYC (Zen 4, AVX-512), best of one thread:
//   as above                                    5.6           7.5
//   y turned over 16 by 16 in registers         5.0           6.4
//   a few rows pooled at a time, while they are
//   in the first-level cache                    4.5           6.2
#pragma once

#include "conv_relu_pool/cpu/task.h"

namespace zb::conv_relu_pool::cpu {
namespace {

// Pixels of a register tile: 2 x 14 or 2 x 6 accumulators leave registers for the weights and one input.
#if defined(__AVX512F__)
constexpr int kTilePixels = 14;
#else
constexpr int kTilePixels = 6;
#endif
constexpr int64_t kChain = 192;   // taps; the weights of a chain for one block stay in the first-level cache
constexpr int kPixelVectors = 6;  // of the kernel whose vectors run along the columns

struct SlabShape {
  int64_t rows, pitch;  // slab rows of one image, values of one row of one channel
  int64_t segment;      // columns of one phase or tap
};

// Input rows / columns from the first to the last that `count` rows / columns of the map need.
ZB_INLINE int64_t input_span(const Call& c, int d, int64_t count) {
  return (count - 1) * c.stride[d] + (c.kernel[d] - 1) * c.dilation[d] + 1;
}

ZB_INLINE SlabShape slab_shape(const Call& c, int64_t map_rows, int64_t map_columns) {
  const int64_t segment = c.by_phase ? up_div(input_span(c, 1, map_columns), c.stride[1]) : map_columns;
  return {c.dense_rows ? least(input_span(c, 0, map_rows), c.in[0]) : map_rows * c.kernel[0],
          segment * (c.by_phase ? c.stride[1] : c.kernel[1]), segment};
}

// The smaller ways, for the largest task.
ZB_INLINE void choose_slab(Call& c, int64_t map_rows, int64_t map_columns) {
  c.dense_rows = least(input_span(c, 0, map_rows), c.in[0]) <= map_rows * c.kernel[0];
  c.by_phase = up_div(input_span(c, 1, map_columns), c.stride[1]) <= c.kernel[1] * map_columns / c.stride[1];
}

// to[i] = column start + i * step of the row, 0 outside of it.
template <class E, class T>
ZB_INLINE void fill_segment(T* to, int64_t count, const E* row, int64_t width, int64_t stride, int64_t start,
                            int64_t step) {
  const int64_t first = least(count, start >= 0 ? 0 : up_div(-start, step));
  const int64_t last = most(first, start >= width ? 0 : least(count, up_div(width - start, step)));
  for (int64_t i = 0; i < first; ++i) to[i] = 0;
  if (first < last) {
    const int64_t hop = step * stride;
    const E* from = row + (start + first * step) * stride;
    int64_t i = first;
    if (hop == 1) {
      for (; i + Vec<T>::n <= last; i += Vec<T>::n, from += Vec<T>::n) Vec<T>::store(to + i, load_as(from));
    }
    for (; i < last; ++i, from += hop) to[i] = value_of(*from);
  }
  for (int64_t i = last; i < count; ++i) to[i] = 0;
}

template <class T>
struct Slab {
  const T* data;
  SlabShape shape;
  int64_t first_row;  // input row of the first slab row, where rows are dense
  int64_t map_row;    // first map row
  int64_t row_pitch;  // all channels of one row
  int64_t image_pitch;
  int64_t zero_row;  // offset of a row of zeros, for rows of padding
};

template <class T>
ZB_INLINE int64_t slab_size(const Call& c, int64_t images, int64_t rows, int64_t pitch) {
  // vectors may reach past the last row
  return (images * rows + 1) * c.planes * pitch + kPixelVectors * Vec<T>::n;
}

// fill_row(to, row, left): all planes of one row of the input, of which `left` is the first column wanted.
template <class E, class T, class FillRow>
ZB_INLINE Slab<T> fill_slab(const Call& c, Range images, Range rows, Range columns, T* data,
                            const FillRow& fill_row) {
  const SlabShape shape = slab_shape(c, rows.size(), columns.size());
  Slab<T> slab{data, shape, 0, rows.begin, c.planes * shape.pitch, 0, 0};
  slab.image_pitch = shape.rows * slab.row_pitch;
  slab.zero_row = images.size() * slab.image_pitch;
  slab.first_row = clamped(rows.begin * c.stride[0] - c.padding[0], 0, most(0, c.in[0] - shape.rows));
  const int64_t left = columns.begin * c.stride[1] - c.padding[1];
  for (int64_t image = 0; image < images.size(); ++image) {
    const E* x = static_cast<const E*>(c.x) + (images.begin + image) * c.x_strides[0];
    for (int64_t r = 0; r < shape.rows; ++r) {
      const int64_t in = c.dense_rows ? slab.first_row + r
                                      : (rows.begin + r / c.kernel[0]) * c.stride[0] - c.padding[0] +
                                            (r % c.kernel[0]) * c.dilation[0];
      if (in < 0 || in >= c.in[0]) continue;  // never read: see tap_offsets
      fill_row(data + image * slab.image_pitch + r * slab.row_pitch, x + in * c.x_strides[2], left);
    }
  }
  std::memset(data + slab.zero_row, 0, sizeof(T) * (c.planes * shape.pitch + kPixelVectors * Vec<T>::n));
  return slab;
}

// The planes are the channels.
template <class E, class T>
Slab<T> fill_channels(const Call& c, Range images, Range rows, Range columns, T* data) {
  const SlabShape shape = slab_shape(c, rows.size(), columns.size());
  const int64_t segments = c.by_phase ? c.stride[1] : c.kernel[1];
  const int64_t hop = c.by_phase ? 1 : c.dilation[1];
  return fill_slab<E, T>(c, images, rows, columns, data, [&](T* to, const E* row, int64_t left) {
    for (int64_t ch = 0; ch < c.C; ++ch, row += c.x_strides[1]) {
      for (int64_t s = 0; s < segments; ++s, to += shape.segment) {
        fill_segment(to, shape.segment, row, c.in[1], c.x_strides[3], left + s * hop, c.stride[1]);
      }
    }
  });
}

// offsets[r * S + s]: where tap (r, s) of the first column of map row h begins, for channel 0.
template <class T>
ZB_INLINE void tap_offsets(const Call& c, const Slab<T>& slab, int64_t image, int64_t h, int64_t* offsets) {
  for (int64_t r = 0; r < c.kernel[0]; ++r) {
    const int64_t in = h * c.stride[0] - c.padding[0] + r * c.dilation[0];
    const int64_t row = c.dense_rows ? in - slab.first_row : (h - slab.map_row) * c.kernel[0] + r;
    const int64_t base =
        in < 0 || in >= c.in[0] ? slab.zero_row : image * slab.image_pitch + row * slab.row_pitch;
    int64_t phase = 0, column = 0;  // of tap s, where columns are stored by phase
    for (int64_t s = 0; s < c.kernel[1]; ++s) {
      *offsets++ = base + (c.by_phase ? phase * slab.shape.segment + column : s * slab.shape.segment);
      phase += c.dilation[1];
      if (phase >= c.stride[1]) column += phase / c.stride[1], phase %= c.stride[1];
    }
  }
}

// sum + x * w, lane by lane.
template <class T>
struct Product {
  using reg = typename Vec<T>::reg;
  static ZB_INLINE reg add(reg x, reg w, reg sum) { return Vec<T>::fma(x, w, sum); }
};

// acc[j][v] += x[j * STEP] * w[v]
template <class T, class P, int PIXELS, int VECTORS, int STEP>
ZB_INLINE void multiply_add(typename Vec<T>::reg (&acc)[PIXELS][VECTORS], const T* x, const T* w) {
  using V = Vec<T>;
  typename V::reg weight[VECTORS];
#pragma GCC unroll 4
  for (int v = 0; v < VECTORS; ++v) weight[v] = V::load(w + v * V::n);
#pragma GCC unroll 16
  for (int j = 0; j < PIXELS; ++j) {
    const typename V::reg in = V::set1(x[j * STEP]);
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) acc[j][v] = P::add(in, weight[v], acc[j][v]);
  }
}

// out[j][v] (+)= sum over i < count of x[at(i) + j * STEP] * w[i][v]: PIXELS pixels times VECTORS vectors of
// output channels, all in registers, in one flat loop whose exit is mispredicted once a tile. With STEP 1,
// at(i) = at[i] (channels and taps of a slab); else x holds groups of STEP channels, at[0] apart.
template <class T, class P, int PIXELS, int VECTORS, int STEP>
void tile(const T* x, const int64_t* at, int64_t count, const T* w, T* out, bool more) {
  using V = Vec<T>;
  typename V::reg acc[PIXELS][VECTORS];
#pragma GCC unroll 16
  for (int j = 0; j < PIXELS; ++j) {
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) acc[j][v] = V::zero();
  }
  if constexpr (STEP == 1) {
#pragma GCC unroll 2
    for (int64_t i = 0; i < count; ++i, w += kBlock<T>)
      multiply_add<T, P, PIXELS, VECTORS, STEP>(acc, x + at[i], w);
  } else {
    const int64_t pitch = at[0];
    for (; count >= STEP; count -= STEP, x += pitch, w += STEP * kBlock<T>) {
#pragma GCC unroll 8
      for (int i = 0; i < STEP; ++i) multiply_add<T, P, PIXELS, VECTORS, STEP>(acc, x + i, w + i * kBlock<T>);
    }
    for (int64_t i = 0; i < count; ++i)
      multiply_add<T, P, PIXELS, VECTORS, STEP>(acc, x + i, w + i * kBlock<T>);
  }
#pragma GCC unroll 16
  for (int j = 0; j < PIXELS; ++j) {
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) {
      T* to = out + j * kBlock<T> + v * V::n;
      V::store(to, more ? V::add(V::load(to), acc[j][v]) : acc[j][v]);
    }
  }
}

template <class T, class P, int VECTORS, int STEP, int PIXELS = kTilePixels>
ZB_INLINE void tile_of(int64_t pixels, const T* x, const int64_t* at, int64_t count, const T* w, T* out,
                       bool more) {
  if constexpr (PIXELS > 0) {
    if (pixels == PIXELS) {
      tile<T, P, PIXELS, VECTORS, STEP>(x, at, count, w, out, more);
    } else {
      tile_of<T, P, VECTORS, STEP, PIXELS - 1>(pixels, x, at, count, w, out, more);
    }
  }
}

// A run of pixels STEP values apart, in tiles of nearly equal length.
template <class T, int STEP, class P = Product<T>>
ZB_INLINE void tile_run(int64_t pixels, int64_t block_size, const T* x, const int64_t* at, int64_t count,
                        const T* w, T* out, bool more) {
  for (int64_t left = up_div(pixels, kTilePixels), done = 0; left > 0; --left) {
    const int64_t size = up_div(pixels - done, left);
    if (block_size <= Vec<T>::n) {
      tile_of<T, P, 1, STEP>(size, x + done * STEP, at, count, w, out + done * kBlock<T>, more);
    } else {
      tile_of<T, P, 2, STEP>(size, x + done * STEP, at, count, w, out + done * kBlock<T>, more);
    }
    done += size;
  }
}

// Packed weights [block][channel of the group][tap][kBlock], zeros beyond the block's size. Unit: (block,
// channel).
template <class E, class T>
void pack_direct(const Call& c, int64_t begin, int64_t end) {
  const int64_t taps = c.kernel[0] * c.kernel[1];
  for (int64_t unit = begin; unit < end; ++unit) {
    const Block b = block_at(c, unit / c.Cg);
    T* to = static_cast<T*>(c.packed_weight) + unit * taps * kBlock<T>;
    const E* from =
        static_cast<const E*>(c.weight) + b.first * c.w_strides[0] + (unit % c.Cg) * c.w_strides[1];
    for (int64_t k = 0; k < kBlock<T>; ++k, from += c.w_strides[0]) {
      for (int64_t t = 0; t < taps; ++t) {
        to[t * kBlock<T> + k] =
            k < b.size ? value_of(from[t / c.kernel[1] * c.w_strides[2] + t % c.kernel[1] * c.w_strides[3]])
                       : 0;
      }
    }
  }
}

// Of these a chain's channels, all their taps.
ZB_INLINE int64_t chain_channels(const Call& c, int64_t channels) {
  return clamped(kChain / (c.kernel[0] * c.kernel[1]), 1, most(channels, 1));
}

// Vectors of output channels.
template <class T>
void direct_block(const Call& c, const Block& b, const Slab<T>& slab, Range images, const Map<T>* maps,
                  int64_t* offsets) {
  const int64_t taps = c.kernel[0] * c.kernel[1], chain = chain_channels(c, c.Cg);
  const T* weights = static_cast<const T*>(c.packed_weight) + b.index * c.Cg * taps * kBlock<T>;
  for (int64_t ch = 0; ch < c.Cg; ch += chain) {
    const T* x = slab.data + (b.group * c.Cg + ch) * slab.shape.pitch;
    const int64_t count = least(chain, c.Cg - ch) * taps;
    for (int64_t image = images.begin; image < images.end; ++image) {
      const Map<T>& map = maps[image];
      for (int64_t h = map.rows.begin; h < map.rows.end; ++h) {
        tap_offsets(c, slab, image, h, offsets);
        for (int64_t i = taps; i < count; ++i) offsets[i] = offsets[i - taps] + slab.shape.pitch;
        tile_run<T, 1>(map.columns.size(), b.size, x, offsets, count, weights + ch * taps * kBlock<T>,
                       map.data + (h - map.rows.begin) * map.row_pitch, ch > 0);
      }
    }
  }
}

// Packed weights [K][channel of the group][tap]. Unit: an output channel.
template <class E, class T>
void pack_pixels(const Call& c, int64_t begin, int64_t end) {
  for (int64_t k = begin; k < end; ++k) {
    T* to = static_cast<T*>(c.packed_weight) + k * c.Cg * c.kernel[0] * c.kernel[1];
    for (int64_t ch = 0; ch < c.Cg; ++ch) {
      for (int64_t r = 0; r < c.kernel[0]; ++r) {
        for (int64_t s = 0; s < c.kernel[1]; ++s) {
          *to++ = value_of(static_cast<const E*>(
              c.weight)[k * c.w_strides[0] + ch * c.w_strides[1] + r * c.w_strides[2] + s * c.w_strides[3]]);
        }
      }
    }
  }
}

template <class T, int VECTORS>
ZB_INLINE void pixel_tile(const T* x, int64_t channel_pitch, int64_t channels, int64_t chain,
                          const int64_t* tap, int64_t taps, const T* w, T* out) {
  using V = Vec<T>;
  for (int64_t first = 0; first < channels; first += chain) {
    typename V::reg acc[VECTORS];
#pragma GCC unroll 8
    for (int j = 0; j < VECTORS; ++j) acc[j] = V::zero();
    const int64_t end = least(channels, first + chain);
    for (int64_t c = first; c < end; ++c, x += channel_pitch) {
      for (int64_t t = 0; t < taps; ++t) {
        const typename V::reg weight = V::set1(*w++);
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; ++j) acc[j] = V::fma(V::load(x + tap[t] + j * V::n), weight, acc[j]);
      }
    }
#pragma GCC unroll 8
    for (int j = 0; j < VECTORS; ++j) {
      V::store(out + j * V::n, first > 0 ? V::add(V::load(out + j * V::n), acc[j]) : acc[j]);
    }
  }
}

// Vectors along the columns, one output channel at a time: for groups of few output channels.
template <class T>
void pixels_block(const Call& c, const Block& b, const Slab<T>& slab, Range images, const Map<T>* maps,
                  int64_t* offsets) {
  constexpr int64_t n = Vec<T>::n;
  const int64_t taps = c.kernel[0] * c.kernel[1], chain = chain_channels(c, c.Cg);
  T line[kPixelVectors * n];
  for (int64_t image = images.begin; image < images.end; ++image) {
    const Map<T>& map = maps[image];
    for (int64_t h = map.rows.begin; h < map.rows.end; ++h) {
      tap_offsets(c, slab, image, h, offsets);
      for (int64_t k = 0; k < b.size; ++k) {
        const int64_t channel = b.first + k;
        const T* x = slab.data + channel / c.Kg * c.Cg * slab.shape.pitch;
        const T* w = static_cast<const T*>(c.packed_weight) + channel * c.Cg * taps;
        T* out = map.data + (h - map.rows.begin) * map.row_pitch + k;
        for (int64_t at = 0, size; at < map.columns.size(); at += size) {
          const int64_t left = map.columns.size() - at;
          if (left > 2 * n) {
            size = least(left, kPixelVectors * n);
            pixel_tile<T, kPixelVectors>(x + at, slab.shape.pitch, c.Cg, chain, offsets, taps, w, line);
          } else if (left > n) {
            size = left;
            pixel_tile<T, 2>(x + at, slab.shape.pitch, c.Cg, chain, offsets, taps, w, line);
          } else {
            size = left;
            pixel_tile<T, 1>(x + at, slab.shape.pitch, c.Cg, chain, offsets, taps, w, line);
          }
          for (int64_t i = 0; i < size; ++i) out[(at + i) * kBlock<T>] = line[i];
        }
      }
    }
  }
}

}  // namespace
}  // namespace zb::conv_relu_pool::cpu
