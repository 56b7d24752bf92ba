// Operands of tiles.h: x as NHWC and weights as [K, taps, channels], channels padded to whole 16-byte chunks.
#pragma once

#include "conv_relu_pool/cuda/tiles.h"

namespace zb::conv_relu_pool {

constexpr int kCopyThreads = 256, kCopyTile = 32;

// x [N, groups · Cg, H, W] of any strides → [N, H, W, groups, channels]: squares of 32 pixels × 32 channels
// turn in shared memory, so that reads and writes both touch neighbours.
template <class T>
__global__ void __launch_bounds__(kCopyThreads)
    chunk_image(Geometry g, int64_t channels, const T* __restrict__ x, Strides s, T* __restrict__ to) {
  ZB_SHARED_ARRAY(T, tile, kCopyTile * (kCopyTile + 1));
  constexpr int kPitch = kCopyTile + 1, kAtOnce = kCopyThreads / kCopyTile;
  const int low = static_cast<int>(threadIdx.x) % kCopyTile, high = static_cast<int>(threadIdx.x) / kCopyTile;
  const int64_t plane = g.h.in * g.w.in, all = g.groups * channels;
  const int64_t down = cuda::pieces(plane, kCopyTile), across = cuda::pieces(all, kCopyTile);
  for (int64_t item = blockIdx.x; item < g.N * down * across; item += gridDim.x) {
    const int64_t n = item / across / down;
    const int64_t first_pixel = item / across % down * kCopyTile, first_channel = item % across * kCopyTile;
    const int64_t pixel = first_pixel + low;
    for (int i = high; i < kCopyTile; i += kAtOnce) {
      const int64_t padded = first_channel + i, c = padded % channels;
      const bool exists = pixel < plane && padded < all && c < g.Cg;
      const int64_t from =
          n * s.n + (padded / channels * g.Cg + c) * s.c + pixel / g.w.in * s.h + pixel % g.w.in * s.w;
      tile[i * kPitch + low] = exists ? x[from] : T(0.f);
    }
    __syncthreads();
    for (int i = high; i < kCopyTile; i += kAtOnce) {
      const int64_t row = first_pixel + i, padded = first_channel + low;
      if (row < plane && padded < all) to[(n * plane + row) * all + padded] = tile[low * kPitch + i];
    }
    __syncthreads();
  }
}

// Rows of taps and channels, from anywhere in a weight: element (row, tap r·S + s, channel c).
struct WeightView {
  int64_t rows, group_rows, taps, width, channels;  // of all groups, of one; R·S and S; channels of a tap
  int64_t group, row, channel, down, across;        // distances in elements, of r and s too
};

// → [rows, taps, padded]; rounded to TF32 where wanted.
template <class T>
__global__ void __launch_bounds__(kCopyThreads)
    chunk_weight(WeightView v, int64_t padded, const T* __restrict__ weight, bool tf32, T* __restrict__ to) {
  const int64_t count = v.rows * v.taps * padded;
  for (int64_t i = int64_t{blockIdx.x} * kCopyThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kCopyThreads) {
    const int64_t c = i % padded, tap = i / padded % v.taps, row = i / padded / v.taps;
    T value = T(0.f);
    if (c < v.channels) {
      value = weight[row / v.group_rows * v.group + row % v.group_rows * v.row + c * v.channel +
                     tap / v.width * v.down + tap % v.width * v.across];
    }
    if constexpr (sizeof(T) == 4) {
      if (tf32) value = cuda::bits_as<float>(cuda::round_tf32(cuda::bits_as<uint32_t>(value)));
    }
    to[i] = value;
  }
}

struct TileOperands {
  Tensor x, weight;  // hold the memory of `in`
  TileInput in;
};

template <class T>
int64_t whole_chunks(int64_t channels) {
  constexpr int64_t kEach = kChunk / sizeof(T);
  return cuda::pieces(channels, kEach) * kEach;
}

// x as it is where channels are neighbours in whole, aligned chunks; else a copy.
template <class T>
void chunk_operand(const cuda::Place& place, const Geometry& g, const Tensor& x, const Strides& xs,
                   TileOperands& o) {
  constexpr int64_t kEach = kChunk / sizeof(T), kSize = sizeof(T);
  const int64_t channels = whole_chunks<T>(g.Cg);
  const auto whole = [](int64_t stride) { return stride % kEach == 0; };
  const bool fits = (xs.c == 1 || g.C == 1) && channels == g.Cg && whole(xs.n) && whole(xs.h) &&
                    whole(xs.w) && reinterpret_cast<uintptr_t>(x.const_data_ptr()) % kChunk == 0;
  Strides s = xs;
  o.x = x;
  if (!fits) {
    const int64_t all = g.groups * channels, plane = g.h.in * g.w.in;
    o.x = empty_on(x, {g.N, plane, all}, x.scalar_type());
    cuda::launch(place, "conv_relu_pool chunk_image", chunk_image<T>,
                 g.N * cuda::pieces(plane, kCopyTile) * cuda::pieces(all, kCopyTile), kCopyThreads, 0, g,
                 channels, cuda::read<T>(x), xs, cuda::write<T>(o.x));
    s = {plane * all, 1, g.w.in * all, all};
  }
  o.in.x = static_cast<const unsigned char*>(o.x.const_data_ptr());
  o.in.n = s.n * kSize, o.in.h = s.h * kSize, o.in.w = s.w * kSize;
  o.in.chunks = static_cast<int>(channels / kEach);
}

template <class T>
void chunk_weights(const cuda::Place& place, const WeightView& v, const T* from, bool tf32,
                   const Tensor& like, TileOperands& o) {
  const int64_t padded = whole_chunks<T>(v.channels);
  o.weight = empty_on(like, {v.rows, v.taps, padded}, like.scalar_type());
  cuda::launch(place, "conv_relu_pool chunk_weight", chunk_weight<T>,
               cuda::pieces(o.weight.numel(), kCopyThreads), kCopyThreads, 0, v, padded, from, tf32,
               cuda::write<T>(o.weight));
  o.in.weight = static_cast<const unsigned char*>(o.weight.const_data_ptr());
}

// Operands are used as they are where they fit; else they are copied once.
template <class T>
TileOperands tile_operands(const cuda::Place& place, const Geometry& g, const Tensor& x, const Strides& xs,
                           const Tensor& weight, const Strides& ws, bool tf32) {
  TileOperands o{x, weight, {}};
  chunk_operand<T>(place, g, x, xs, o);
  const int64_t taps = g.h.kernel * g.w.kernel, channels = whole_chunks<T>(g.Cg);
  const auto is = [](int64_t size, int64_t stride, int64_t wanted) { return size == 1 || stride == wanted; };
  const bool fits = !tf32 && channels == g.Cg && is(g.Cg, ws.c, 1) && is(g.w.kernel, ws.w, channels) &&
                    is(g.h.kernel, ws.h, g.w.kernel * channels) && is(g.K, ws.n, taps * channels) &&
                    reinterpret_cast<uintptr_t>(weight.const_data_ptr()) % kChunk == 0;
  o.in.weight = static_cast<const unsigned char*>(weight.const_data_ptr());
  if (!fits) {
    const WeightView view{g.K, g.Kg, taps, g.w.kernel, g.Cg, g.Kg * ws.n, ws.n, ws.c, ws.h, ws.w};
    chunk_weights<T>(place, view, cuda::read<T>(weight), tf32, weight, o);
  }
  return o;
}

// What tiles.h can't do, whatever multiplies; nullptr where it can.
inline const char* tiles_refuse(const Call& c) {
  constexpr int64_t kMost = 1 << 30;  // positions, taps and their distances are counted in 32 bits
  const Geometry& g = c.g;
  if (c.p.dtype == ScalarType::Double) return "float64";
  if (g.Cg < 5) return "fewer than 5 input channels in a group";
  if (g.Kg < 8) return "fewer than 8 output channels in a group";
  if (g.pool != Pool::kNone) {
    const auto two = [](const Axis& a) {
      return a.window == 2 && a.window_stride == 2 && a.window_padding == 0;
    };
    if (!two(g.h) || !two(g.w)) return "a pool that is not 2 by 2 with stride 2 and without padding";
    if (c.sinks.wide) return "codes of four bytes";
    if (c.residual) return "a residual before a pool";
  }
  for (const Axis* a : {&g.h, &g.w}) {
    if (a->in + 2 * a->padding >= kMost || a->kernel * a->dilation >= kMost) return "an image too large";
  }
  if (g.h.kernel * g.w.kernel * g.Cg >= kMost) return "a filter too large";
  return nullptr;
}

template <class T, template <class, int> class Product>
void run_conv_tiles(const Call& c, const char* name, bool tf32) {
  const Problem& p = c.p;
  const Strides xs{p.x_strides[0], p.x_strides[1], p.x_strides[2], p.x_strides[3]};
  const Strides ws{p.w_strides[0], p.w_strides[1], p.w_strides[2], p.w_strides[3]};
  const TileOperands o = tile_operands<T>(c.place, c.g, c.x, xs, c.weight, ws, tf32);
  write_uncovered(c);
  T* const y = cuda::write<T>(c.out.y);
  if (c.residual) {
    run_adding_tiles<T, Product>(c.place, name, o.in, c.g, c.sinks, added_in<T>(c), y, strides_of(c.out.y));
  } else {
    run_tiles<T, Product>(c.place, name, o.in, c.g, c.sinks, y, strides_of(c.out.y));
  }
}

}  // namespace zb::conv_relu_pool
