// Both gradients from that of the un-pooled map, on the ordinary (SIMT) units, for what the tiles don't take:
// float64, groups of few channels, a stride together with a dilation.
//
// input_grad    a thread sums one input position of LANES channels over the map positions that it reached
// weight_tiles  (or weight_sums, for few channels) sums over slices of the batch, then add_slices over the
//               slices
//
// Floor (bytes): the map, x, weight once, grad_x, grad_weight once. Floor (operations): 2·N·K·H1·W1·Cg·R·S
// multiply-adds.
#include "conv_relu_pool/cuda/backward.h"

#include "common/cuda/tile_product.h"
#include "conv_relu_pool/cuda/pack_weight.h"

namespace zb::conv_relu_pool {
namespace {

using cuda::Sum;

constexpr int kThreads = 128;
constexpr int kSumThreads = 256;

// What kernels see of a MapGrad.
struct MapView {
  Strides strides;
  int64_t group;
};

template <class T, int LANES>
__global__ void __launch_bounds__(kThreads)
    input_grad(Geometry g, const T* __restrict__ map_grad, MapView view,
               const Lanes<Sum<T>, LANES>* __restrict__ packed, T* __restrict__ grad_x, Strides strides) {
  const int64_t pixels = g.N * g.h.in * g.w.in;
  const int64_t blocks = cuda::pieces(g.Cg, LANES), all = g.groups * blocks;
  const int64_t items = cuda::pieces(pixels, kThreads) * all;
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const int64_t pixel = item / all * kThreads + threadIdx.x;
    if (pixel >= pixels) continue;
    const int64_t group = item % all / blocks, first = item % blocks * LANES;
    const int64_t w = pixel % g.w.in, h = pixel / g.w.in % g.h.in, n = pixel / g.w.in / g.h.in;
    const T* const planes = map_grad + n * view.strides.n + group * view.group;
    const Lanes<Sum<T>, LANES>* tap = packed + item % all * g.h.kernel * g.w.kernel * g.Kg;
    Sum<T> sums[LANES];
#pragma unroll
    for (int j = 0; j < LANES; ++j) sums[j] = 0;
    Reached row, column;
    row.begin(g.h, h);
    for (int64_t r = 0; r < g.h.kernel; ++r, row.next(g.h)) {
      column.begin(g.w, w);
      for (int64_t s = 0; s < g.w.kernel; ++s, column.next(g.w)) {
        if (!row.exists(g.h) || !column.exists(g.w)) {
          tap += g.Kg;
          continue;
        }
        const T* from = planes + row.index * view.strides.h + column.index * view.strides.w;
        for (int64_t k = 0; k < g.Kg; ++k, ++tap, from += view.strides.c) {
          const Sum<T> value = cuda::widen(*from);
          const Lanes<Sum<T>, LANES> weight = *tap;
#pragma unroll
          for (int j = 0; j < LANES; ++j) sums[j] = cuda::multiply_add(value, weight.v[j], sums[j]);
        }
      }
    }
    const int64_t c = group * g.Cg + first;
    T* const to = grad_x + n * strides.n + c * strides.c + h * strides.h + w * strides.w;
#pragma unroll
    for (int j = 0; j < LANES; ++j) {
      if (first + j < g.Cg) to[j * strides.c] = cuda::narrow<T>(sums[j]);
    }
  }
}

// A walk through the map positions of the batch, (n, row, column) for index l, in steps without divisions.
struct Walk {
  int64_t n, row, column;

  ZB_DEVICE void begin(const Geometry& g, int64_t l) {
    column = l % g.w.map;
    row = l / g.w.map % g.h.map;
    n = l / g.w.map / g.h.map;
  }
  ZB_DEVICE void step(const Geometry& g, int64_t by) {
    column += by;
    while (column >= g.w.map) {
      column -= g.w.map;
      if (++row == g.h.map) row = 0, ++n;
    }
  }
};

// One tap of one channel: what the walk is multiplied with.
struct Tap {
  int64_t base, h, w;  // offset of the channel in x; offsets of the tap inside the image
  bool exists;

  ZB_DEVICE void set(const Geometry& g, const Strides& s, int64_t group, int64_t column) {
    exists = column < g.Cg * g.h.kernel * g.w.kernel;
    w = column % g.w.kernel * g.w.dilation - g.w.padding;
    h = column / g.w.kernel % g.h.kernel * g.h.dilation - g.h.padding;
    base = (group * g.Cg + column / g.w.kernel / g.h.kernel) * s.c;
  }
  template <class T>
  ZB_DEVICE Sum<T> load(const Geometry& g, const T* __restrict__ x, const Strides& s, const Walk& at) const {
    const int64_t y = at.row * g.h.stride + h, z = at.column * g.w.stride + w;
    if (!exists || y < 0 || y >= g.h.in || z < 0 || z >= g.w.in) return 0;
    return cuda::widen(x[at.n * s.n + base + y * s.h + z * s.w]);
  }
};

// Rows of map_grad seen as [K of the group, N·H1·W1], for tile_product.
template <class T>
struct MapRows {
  const Geometry& g;
  const T* data;  // of the group
  const Strides& strides;
  int64_t channel;  // the first of the tile
  Walk at;

  ZB_DEVICE void begin(int64_t l) { at.begin(g, l); }
  ZB_DEVICE void next() { at.step(g, cuda::kTileDepth); }
  ZB_DEVICE Sum<T> load(int i) const {
    const int64_t k = channel + threadIdx.x / 16 + 16 * i;
    if (k >= g.Kg) return 0;
    return cuda::widen(data[at.n * strides.n + k * strides.c + at.row * strides.h + at.column * strides.w]);
  }
};

// x seen as [Cg·R·S of the group, N·H1·W1], for tile_product.
template <class T>
struct Patches {
  const Geometry& g;
  const T* data;
  const Strides& strides;
  Tap taps[4];
  Walk at;

  ZB_DEVICE void begin(int64_t l) { at.begin(g, l); }
  ZB_DEVICE void next() { at.step(g, cuda::kTileDepth); }
  ZB_DEVICE Sum<T> load(int i) const { return taps[i].load(g, data, strides, at); }
};

// slices[slice][K, Cg·R·S]: the weight's gradient from the map positions of one slice of the batch.
template <class T>
__global__ void __launch_bounds__(cuda::kTileThreads)
    weight_tiles(Geometry g, const T* __restrict__ map_grad, MapView view, const T* __restrict__ x,
                 Strides strides, int64_t slice_length, int64_t slice_count, Sum<T>* __restrict__ slices) {
  using A = Sum<T>;
  ZB_SHARED_MEMORY(A, shared);
  const int64_t columns = g.Cg * g.h.kernel * g.w.kernel, length = g.N * g.map_size();
  const int64_t across = cuda::pieces(columns, cuda::kTile), down = cuda::pieces(g.Kg, cuda::kTile);
  const int64_t items = slice_count * g.groups * down * across;
  const int low = static_cast<int>(threadIdx.x) % 16, high = static_cast<int>(threadIdx.x) / 16;
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const int64_t column = item % across * cuda::kTile, tile = item / across;
    const int64_t group = tile / down % g.groups, slice = tile / down / g.groups;
    const int64_t k = tile % down * cuda::kTile, begin = slice * slice_length;
    MapRows<T> left{g, map_grad + group * view.group, view.strides, k, {}};
    Patches<T> right{g, x, strides, {}, {}};
#pragma unroll
    for (int i = 0; i < 4; ++i) right.taps[i].set(g, strides, group, column + high + 16 * i);
    A sums[4][4] = {};
    cuda::tile_product(shared, begin, begin + slice_length < length ? begin + slice_length : length, left,
                       right, sums);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t row = k + high + 16 * i;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int64_t to = column + low + 16 * j;
        if (row < g.Kg && to < columns) {
          slices[(slice * g.K + group * g.Kg + row) * columns + to] = sums[i][j];
        }
      }
    }
  }
}

// The same for few channels (depthwise), where tiles would be nearly empty: a block sums one weight of one
// slice.
template <class T>
__global__ void __launch_bounds__(kSumThreads)
    weight_sums(Geometry g, const T* __restrict__ map_grad, MapView view, const T* __restrict__ x,
                Strides strides, int64_t slice_length, int64_t slice_count, Sum<T>* __restrict__ slices) {
  using A = Sum<T>;
  ZB_SHARED_MEMORY(A, shared);
  const int64_t columns = g.Cg * g.h.kernel * g.w.kernel, length = g.N * g.map_size();
  const int64_t items = slice_count * g.K * columns;
  const int t = static_cast<int>(threadIdx.x);
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const int64_t k = item / columns % g.K, begin = item / columns / g.K * slice_length;
    const int64_t end = begin + slice_length < length ? begin + slice_length : length;
    Tap tap;
    tap.set(g, strides, k / g.Kg, item % columns);
    Walk at;
    at.begin(g, begin + t);
    const T* const planes = map_grad + k / g.Kg * view.group + k % g.Kg * view.strides.c;
    A sum = 0;
    for (int64_t l = begin + t; l < end; l += kSumThreads, at.step(g, kSumThreads)) {
      const A value =
          cuda::widen(planes[at.n * view.strides.n + at.row * view.strides.h + at.column * view.strides.w]);
      sum = cuda::multiply_add(value, tap.load(g, x, strides, at), sum);
    }
    shared[t] = sum;
    __syncthreads();
    for (int half = kSumThreads / 2; half > 0; half /= 2) {
      if (t < half) shared[t] += shared[t + half];
      __syncthreads();
    }
    if (t == 0) slices[item] = shared[0];
    __syncthreads();
  }
}

template <class T, int LANES>
void run_input(const BackwardCall& call, const MapGrad& map, const Tensor& grad_x) {
  const Problem& p = call.p;
  const auto& s = p.w_strides;
  const WeightOrder order{p.groups, p.Cg, {p.R, p.S, p.Kg}, p.Kg * s[0], s[1], {s[2], s[3], s[0]}};
  const Tensor packed = packed_weight<T, LANES>(call.place, order, call.weight);
  const int64_t items = cuda::pieces(p.N * p.H * p.W, kThreads) * p.groups * cuda::pieces(p.Cg, LANES);
  cuda::launch(call.place, "conv_relu_pool input_grad", input_grad<T, LANES>, items, kThreads, 0, call.g,
               cuda::read<T>(map.data), MapView{map.strides, map.group},
               static_cast<const Lanes<Sum<T>, LANES>*>(packed.const_data_ptr()), cuda::write<T>(grad_x),
               strides_of(grad_x));
}

template <class T>
void run_weight(const BackwardCall& call, const MapGrad& map, const Tensor& grad_weight) {
  const Problem& p = call.p;
  // The slices depend on sizes alone, so that results do not depend on the device.
  const int64_t columns = p.Cg * p.R * p.S, length = p.N * p.H1 * p.W1;
  const bool tiles = p.Kg >= 8 && columns >= 8;
  const int64_t per_slice =
      tiles ? p.groups * cuda::pieces(p.Kg, cuda::kTile) * cuda::pieces(columns, cuda::kTile) : p.K * columns;
  const int64_t wanted = cuda::pieces(tiles ? 512 : 2048, per_slice),
                most = cuda::pieces(length, tiles ? 256 : 2048);
  const int64_t slice_length = cuda::pieces(length, wanted < most ? wanted : most);
  const int64_t slice_count = cuda::pieces(length, slice_length);
  const Tensor slices = empty_on(call.x, {slice_count, p.K, columns}, cuda::sum_dtype<T>());
  const Strides x_strides{p.x_strides[0], p.x_strides[1], p.x_strides[2], p.x_strides[3]};
  cuda::launch(call.place, tiles ? "conv_relu_pool weight_tiles" : "conv_relu_pool weight_sums",
               tiles ? weight_tiles<T> : weight_sums<T>, slice_count * per_slice,
               tiles ? cuda::kTileThreads : kSumThreads,
               tiles ? cuda::tile_shared_bytes<Sum<T>>() : kSumThreads * sizeof(Sum<T>), call.g,
               cuda::read<T>(map.data), MapView{map.strides, map.group}, cuda::read<T>(call.x), x_strides,
               slice_length, slice_count, cuda::write<Sum<T>>(slices));
  run_add_slices<T>(call.place, call.g, slices, slice_count, 0, grad_weight);
}

}  // namespace

void simt_input_grad(const BackwardCall& call, const MapGrad& map, const Tensor& grad_x) {
  cuda::dispatch(call.p.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kLanes = sizeof(T) == 8 ? 4 : 8;
    const bool wide = call.p.Cg > kLanes / 2;
    (wide ? run_input<T, kLanes> : run_input<T, 1>)(call, map, grad_x);
  });
}

void simt_weight_grad(const BackwardCall& call, const MapGrad& map, const Tensor& grad_weight) {
  cuda::dispatch(call.p.dtype,
                 [&](auto type) { run_weight<typename decltype(type)::type>(call, map, grad_weight); });
}

}  // namespace zb::conv_relu_pool
