// conv → act → pool on a GPU, backward, without atomics: each result is one sum in one fixed order.
//
// With the position codes of a max pool and few input channels, straight from the codes (backward_weight.cu,
// backward_input.cu). Everything else by way of the un-pooled gradient:
//
// 1. spread_grad   the gradient of the un-pooled map [N, K, H1, W1], from grad and the forward pass's code
// 2. input_grad    a thread sums one input position of LANES channels over the map positions that it reached
// 3. weight_tiles  (or weight_sums, for few channels) sums over slices of the batch, then add_slices over the
//                  slices
//
// Floor (bytes): grad, code, x, weight once, grad_x, grad_weight once. Floor (operations): 2·N·K·H1·W1·Cg·R·S
// multiply-adds, fewer where the code's zeros are used.
//
// Why not cuDNN for 2 and 3: results here repeat bit by bit, and aten::convolution_backward repeats only
// where the process has asked for it (torch.backends.cudnn.deterministic), which LibTorch's stable ABI can
// neither read nor set. aten::cudnn_convolution_transpose takes `deterministic` as an argument and could make
// the gradient of the input; the gradient of the weight as aten::cudnn_convolution with x and grad transposed
// would be one product of C·R·S by K with nothing to split its N·H1·W1 terms among blocks.
//
// Ladder
//   1  the un-pooled gradient is written once and read by both products, in the dtype of x as torch's own
//      chain of backward passes has it. Not yet run on a card.
//   2  few input channels and depthwise straight from the codes. The choice is by predicted times, not yet
//      measured on a card.
#include "conv_relu_pool/cuda/backward.h"

#include "common/cuda/tile_product.h"
#include "common/last_kernel.h"
#include "conv_relu_pool/cuda/geometry.h"
#include "conv_relu_pool/cuda/pack_weight.h"

namespace zb::conv_relu_pool {
namespace {

using cuda::Sum;

constexpr int kThreads = 128;
constexpr int kSumThreads = 256;

// The gradient that reaches map position (h, w) of plane (n, k) from the windows that hold it, before the
// factor of the activation; `factor` is set from the position codes (max pooling).
template <class T>
ZB_DEVICE Sum<T> from_windows(const Geometry& g, const T* __restrict__ grad, const Strides& s,
                              const Code& code, int64_t n, int64_t k, int64_t h, int64_t w, bool& unscaled) {
  using A = Sum<T>;
  const bool leaky = g.slope > 0;
  A sum = 0;
  const int64_t p_last = g.h.last_window(h), q_first = g.w.first_window(w), q_last = g.w.last_window(w);
  for (int64_t p = g.h.first_window(h); p <= p_last; ++p) {
    for (int64_t q = q_first; q <= q_last; ++q) {
      const int64_t at = n * s.n + k * s.c + p * s.h + q * s.w;
      if (g.pool == Pool::kAvg) {
        sum += cuda::widen(grad[at]) / static_cast<A>(g.divisor(p, q));
        continue;
      }
      const int64_t c = n * code.strides.n + k * code.strides.c + p * code.strides.h + q * code.strides.w;
      const int winner = code.winner(c);
      if (winner == 0) continue;
      const int64_t position = (h - g.h.window_start(p)) * g.w.window + w - g.w.window_start(q);
      if (winner_position(winner, static_cast<A>(g.slope)) != position) continue;
      unscaled = !leaky || (winner - 1) % 2 == 0;
      sum += cuda::widen(grad[at]);
    }
  }
  return sum;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    spread_grad(Geometry g, const T* __restrict__ grad, Strides strides, Code code,
                T* __restrict__ map_grad) {
  using A = Sum<T>;
  const A slope = static_cast<A>(g.slope);
  const int64_t plane = g.map_size(), count = g.N * g.K * plane;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kThreads) {
    const int64_t at = i % plane, nk = i / plane;
    const int64_t n = nk / g.K, k = nk % g.K, h = at / g.w.map, w = at % g.w.map;
    bool unscaled = true;
    A sum;
    if (g.pool == Pool::kNone) {
      sum = cuda::widen(grad[n * strides.n + k * strides.c + h * strides.h + w * strides.w]);
    } else {
      sum = from_windows(g, grad, strides, code, n, k, h, w, unscaled);
    }
    if (g.pool != Pool::kMax) {
      const uint64_t word = static_cast<const uint64_t*>(code.data)[nk * code.plane_words + at / 64];
      unscaled = (word >> (at % 64)) & 1;
    }
    if (!unscaled) sum = slope == 0 ? A(0) : cuda::multiply(cuda::rounded<T>(sum), slope);
    map_grad[i] = cuda::narrow<T>(sum);
  }
}

template <class T, int LANES>
__global__ void __launch_bounds__(kThreads)
    input_grad(Geometry g, const T* __restrict__ map_grad, const Lanes<Sum<T>, LANES>* __restrict__ packed,
               T* __restrict__ grad_x, Strides strides) {
  const int64_t pixels = g.N * g.h.in * g.w.in, plane = g.map_size();
  const int64_t blocks = cuda::pieces(g.Cg, LANES), all = g.groups * blocks;
  const int64_t items = cuda::pieces(pixels, kThreads) * all;
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const int64_t pixel = item / all * kThreads + threadIdx.x;
    if (pixel >= pixels) continue;
    const int64_t group = item % all / blocks, first = item % blocks * LANES;
    const int64_t w = pixel % g.w.in, h = pixel / g.w.in % g.h.in, n = pixel / g.w.in / g.h.in;
    const T* const planes = map_grad + (n * g.K + group * g.Kg) * plane;
    const Lanes<Sum<T>, LANES>* tap = packed + item % all * g.h.kernel * g.w.kernel * g.Kg;
    Sum<T> sums[LANES];
#pragma unroll
    for (int j = 0; j < LANES; ++j) sums[j] = 0;
    for (int64_t r = 0; r < g.h.kernel; ++r) {
      const int64_t row = g.h.reached(h, r);
      for (int64_t s = 0; s < g.w.kernel; ++s) {
        const int64_t column = row < 0 ? -1 : g.w.reached(w, s);
        if (column < 0) {
          tap += g.Kg;
          continue;
        }
        const T* from = planes + row * g.w.map + column;
        for (int64_t k = 0; k < g.Kg; ++k, ++tap, from += plane) {
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
  const T* data;
  int64_t channel, end;  // the first channel of the tile, and the end of the group
  Walk at;

  ZB_DEVICE void begin(int64_t l) { at.begin(g, l); }
  ZB_DEVICE void next() { at.step(g, cuda::kTileDepth); }
  ZB_DEVICE Sum<T> load(int i) const {
    const int64_t k = channel + threadIdx.x / 16 + 16 * i;
    if (k >= end) return 0;
    return cuda::widen(data[((at.n * g.K + k) * g.h.map + at.row) * g.w.map + at.column]);
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
    weight_tiles(Geometry g, const T* __restrict__ map_grad, const T* __restrict__ x, Strides strides,
                 int64_t slice_length, int64_t slice_count, Sum<T>* __restrict__ slices) {
  using A = Sum<T>;
  ZB_SHARED_MEMORY(A, shared);
  const int64_t columns = g.Cg * g.h.kernel * g.w.kernel, length = g.N * g.map_size();
  const int64_t across = cuda::pieces(columns, cuda::kTile), down = cuda::pieces(g.Kg, cuda::kTile);
  const int64_t items = slice_count * g.groups * down * across;
  const int low = static_cast<int>(threadIdx.x) % 16, high = static_cast<int>(threadIdx.x) / 16;
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const int64_t column = item % across * cuda::kTile, tile = item / across;
    const int64_t group = tile / down % g.groups, slice = tile / down / g.groups;
    const int64_t k = group * g.Kg + tile % down * cuda::kTile, k_end = (group + 1) * g.Kg;
    const int64_t begin = slice * slice_length;
    MapRows<T> left{g, map_grad, k, k_end, {}};
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
        if (row < k_end && to < columns) slices[(slice * g.K + row) * columns + to] = sums[i][j];
      }
    }
  }
}

// The same for few channels (depthwise), where tiles would be nearly empty: a block sums one weight of one
// slice.
template <class T>
__global__ void __launch_bounds__(kSumThreads)
    weight_sums(Geometry g, const T* __restrict__ map_grad, const T* __restrict__ x, Strides strides,
                int64_t slice_length, int64_t slice_count, Sum<T>* __restrict__ slices) {
  using A = Sum<T>;
  ZB_SHARED_MEMORY(A, shared);
  const int64_t columns = g.Cg * g.h.kernel * g.w.kernel, plane = g.map_size(), length = g.N * plane;
  const int64_t items = slice_count * g.K * columns;
  const int t = static_cast<int>(threadIdx.x);
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const int64_t k = item / columns % g.K, begin = item / columns / g.K * slice_length;
    const int64_t end = begin + slice_length < length ? begin + slice_length : length;
    Tap tap;
    tap.set(g, strides, k / g.Kg, item % columns);
    Walk at;
    at.begin(g, begin + t);
    A sum = 0;
    for (int64_t l = begin + t; l < end; l += kSumThreads, at.step(g, kSumThreads)) {
      const A value = cuda::widen(map_grad[(at.n * g.K + k) * plane + at.row * g.w.map + at.column]);
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
void run_input(const cuda::Place& place, const Problem& p, const Geometry& g, const Tensor& map_grad,
               const Tensor& weight, const Tensor& grad_x) {
  const auto& s = p.w_strides;
  const WeightOrder order{p.groups, p.Cg, {p.R, p.S, p.Kg}, p.Kg * s[0], s[1], {s[2], s[3], s[0]}};
  const Tensor packed = packed_weight<T, LANES>(place, order, weight);
  const int64_t items = cuda::pieces(p.N * p.H * p.W, kThreads) * p.groups * cuda::pieces(p.Cg, LANES);
  cuda::launch(place, "conv_relu_pool input_grad", input_grad<T, LANES>, items, kThreads, 0, g,
               cuda::read<T>(map_grad), static_cast<const Lanes<Sum<T>, LANES>*>(packed.const_data_ptr()),
               cuda::write<T>(grad_x), strides_of(grad_x));
}

template <class T>
void run_weight(const cuda::Place& place, const Problem& p, const Geometry& g, const Tensor& map_grad,
                const Tensor& x, const Tensor& grad_weight) {
  // The slices depend on sizes alone, so that results do not depend on the device.
  const int64_t columns = p.Cg * p.R * p.S, length = p.N * p.H1 * p.W1;
  const bool tiles = p.Kg >= 8 && columns >= 8;
  const int64_t per_slice =
      tiles ? p.groups * cuda::pieces(p.Kg, cuda::kTile) * cuda::pieces(columns, cuda::kTile) : p.K * columns;
  const int64_t wanted = cuda::pieces(tiles ? 512 : 2048, per_slice),
                most = cuda::pieces(length, tiles ? 256 : 2048);
  const int64_t slice_length = cuda::pieces(length, wanted < most ? wanted : most);
  const int64_t slice_count = cuda::pieces(length, slice_length);
  const Tensor slices = empty_on(x, {slice_count, p.K, columns}, cuda::sum_dtype<T>());
  const Strides x_strides{p.x_strides[0], p.x_strides[1], p.x_strides[2], p.x_strides[3]};
  cuda::launch(place, tiles ? "conv_relu_pool weight_tiles" : "conv_relu_pool weight_sums",
               tiles ? weight_tiles<T> : weight_sums<T>, slice_count * per_slice,
               tiles ? cuda::kTileThreads : kSumThreads,
               tiles ? cuda::tile_shared_bytes<Sum<T>>() : kSumThreads * sizeof(Sum<T>), g,
               cuda::read<T>(map_grad), cuda::read<T>(x), x_strides, slice_length, slice_count,
               cuda::write<Sum<T>>(slices));
  run_add_slices<T>(place, g, slices, slice_count, grad_weight);
}

// Which gradients are faster straight from the codes, as predicted for an H100 (3.35 TB/s; an SM reads 32
// numbers of shared memory a clock and multiplies 128). Not yet measured on a card.
//
// The weight's: one read of shared memory a tap and pooled output, and per 28 taps as much again to stage x,
// grad and code. By way of the map: the map written and read, and two reads (of a 4 × 4 tile's 8 for 16
// products) for each of its H1·W1 / (P·Q) = 4 positions. Staging again and again, and a matrix product on
// tensor cores, speak against many taps. The input's, depthwise: the bytes of the map saved, 8 of 13.25
// numbers a pooled output. With more channels a position of the map is used many times, and making it once is
// right.
struct Direct {
  bool input, weight;
};
Direct faster_directly(const Problem& p) {
  constexpr int64_t kMostTaps = 150, kMostKernels = 4;
  if (p.pool != Pool::kMax) return {false, false};
  return {p.Cg == 1 && p.Kg <= kMostKernels && p.R * p.S <= kMostTaps, p.Cg * p.R * p.S <= kMostTaps};
}

const char* name_of(bool spread_input, bool direct_input, bool spread_weight, bool direct_weight) {
  if (direct_input) {
    return direct_weight   ? "backward direct input + direct weight"
           : spread_weight ? "backward direct input + spread weight"
                           : "backward direct input";
  }
  if (spread_input) {
    return direct_weight   ? "backward spread input + direct weight"
           : spread_weight ? "backward spread input + spread weight"
                           : "backward spread input";
  }
  return direct_weight ? "backward direct weight" : "backward spread weight";
}

}  // namespace

std::tuple<Tensor, Tensor> backward(const Problem& p, const Tensor& grad, const Tensor& x,
                                    const Tensor& weight, const Tensor& code, bool need_x, bool need_weight) {
  const cuda::Place place("conv_relu_pool2d backward", x, &weight);
  const Ints x_sizes(x.sizes().begin(), x.sizes().end());
  const Tensor grad_x = empty_on(x, need_x ? x_sizes : Ints{0}, p.dtype, need_x && p.x_channels_last);
  const Tensor grad_weight = empty_on(x, need_weight ? Ints{p.K, p.Cg, p.R, p.S} : Ints{0}, p.dtype,
                                      need_weight && p.w_channels_last);
  if (p.N == 0) {
    if (need_weight) {
      cuda::dispatch(p.dtype, [&](auto type) {
        place.clear(grad_weight, grad_weight.numel() * sizeof(typename decltype(type)::type));
      });
    }
    return {grad_x, grad_weight};
  }
  if (!need_x && !need_weight) return {grad_x, grad_weight};

  const Geometry g = geometry_of(p);
  const bool positions = p.pool == Pool::kMax;
  const Tensor kept = positions ? code : torch::stable::contiguous(code);  // a bit code comes as it was given
  const Code codes{kept.const_data_ptr(), p.code_dtype == ScalarType::Int,
                   positions ? strides_of(kept) : Strides{}, p.map_words()};
  const BackwardCall call{place, p, g, grad, x, weight, codes};
  const Direct faster = faster_directly(p);
  const bool direct_weight = need_weight && faster.weight && direct_weight_grad(call, grad_weight);
  const bool direct_input = need_x && faster.input && direct_input_grad(call, grad_x);
  const bool spread_weight = need_weight && !direct_weight, spread_input = need_x && !direct_input;
  if (spread_weight || spread_input) {
    const Tensor map_grad = empty_on(x, {p.N, p.K, p.H1, p.W1}, p.dtype);
    cuda::dispatch(p.dtype, [&](auto type) {
      using T = typename decltype(type)::type;
      constexpr int kLanes = sizeof(T) == 8 ? 4 : 8;
      cuda::launch(place, "conv_relu_pool spread_grad", spread_grad<T>,
                   cuda::pieces(map_grad.numel(), kThreads), kThreads, 0, g, cuda::read<T>(grad),
                   strides_of(grad), codes, cuda::write<T>(map_grad));
      if (spread_input && p.Cg > kLanes / 2) run_input<T, kLanes>(place, p, g, map_grad, weight, grad_x);
      if (spread_input && p.Cg <= kLanes / 2) run_input<T, 1>(place, p, g, map_grad, weight, grad_x);
      if (spread_weight) run_weight<T>(place, p, g, map_grad, x, grad_weight);
    });
  }
  note_kernel(name_of(spread_input, direct_input, spread_weight, direct_weight));
  return {grad_x, grad_weight};
}

}  // namespace zb::conv_relu_pool
