// The gradient of the un-pooled map, written once, for the kernels that read each position many times.
//
// Floor (bytes): grad and code once, the map once.
//
// Ladder
//   1  a thread a position, in the order of the map: NCHW, four 64-bit divisions each.
//   2  squares of 32 positions × 32 channels that turn in shared memory: reads beside each other in the
//      format of grad, writes in that of the map; what a position's windows are is found once for all its
//      channels. Emulated and compiled; not yet run on a card.
#include "conv_relu_pool/cuda/backward.h"

namespace zb::conv_relu_pool {
namespace {

using cuda::Sum;

constexpr int kThreads = 256, kSide = 32;

// A position of the map, and the windows that hold it; n < 0: none.
struct Spot {
  int64_t n, h, w, p_first, p_last, q_first, q_last;
};

// A channel of all, and its distance in the map; k < 0: padding.
struct Channel {
  int64_t k, to;
};

// The gradient that reaches a position before the activation's factor. From position codes, `unscaled` says
// whether there is one.
template <class T>
ZB_DEVICE Sum<T> from_winners(const Geometry& g, const T* __restrict__ grad, const Strides& s,
                              const Code& code, const Spot& spot, int64_t k, bool& unscaled) {
  using A = Sum<T>;
  A sum = 0;
  for (int64_t p = spot.p_first; p <= spot.p_last; ++p) {
    for (int64_t q = spot.q_first; q <= spot.q_last; ++q) {
      const Strides& c = code.strides;
      const int winner = code.winner(spot.n * c.n + k * c.c + p * c.h + q * c.w);
      if (winner == 0) continue;
      const int64_t position = (spot.h - g.h.window_start(p)) * g.w.window + spot.w - g.w.window_start(q);
      if (winner_position(winner, static_cast<A>(g.slope)) != position) continue;
      unscaled = g.slope == 0 || (winner - 1) % 2 == 0;
      sum += cuda::widen(grad[spot.n * s.n + k * s.c + p * s.h + q * s.w]);
    }
  }
  return sum;
}

template <class T>
ZB_DEVICE Sum<T> from_averages(const Geometry& g, const T* __restrict__ grad, const Strides& s,
                               const Spot& spot, int64_t k) {
  using A = Sum<T>;
  A sum = 0;
  for (int64_t p = spot.p_first; p <= spot.p_last; ++p) {
    for (int64_t q = spot.q_first; q <= spot.q_last; ++q) {
      const A value = cuda::widen(grad[spot.n * s.n + k * s.c + p * s.h + q * s.w]);
      sum += value / static_cast<A>(g.divisor(p, q));
    }
  }
  return sum;
}

template <class T, bool AVERAGE>
ZB_DEVICE T map_grad(const Geometry& g, const T* __restrict__ grad, const Strides& s, const Code& code,
                     const Spot& spot, int64_t k) {
  bool unscaled = true;
  Sum<T> sum;
  if (g.pool == Pool::kNone) {
    sum = cuda::widen(grad[spot.n * s.n + k * s.c + spot.h * s.h + spot.w * s.w]);
  } else if (AVERAGE) {
    sum = from_averages(g, grad, s, spot, k);
  } else {
    sum = from_winners(g, grad, s, code, spot, k, unscaled);
  }
  if (g.pool != Pool::kMax) {
    const int64_t at = spot.h * g.w.map + spot.w;
    const uint64_t word =
        static_cast<const uint64_t*>(code.data)[(spot.n * g.K + k) * code.plane_words + at / 64];
    unscaled = (word >> (at % 64)) & 1;
  }
  const auto slope = static_cast<Sum<T>>(g.slope);
  if (!unscaled) sum = slope == 0 ? Sum<T>(0) : cuda::multiply(cuda::rounded<T>(sum), slope);
  return cuda::narrow<T>(sum);
}

// AVERAGE pooling is a kernel of its own: its division takes registers that the others need not have.
template <class T, bool AVERAGE>
__global__ void __launch_bounds__(kThreads, 3)
    spread_grad(Geometry g, const T* __restrict__ grad, Strides strides, Code code, T* __restrict__ to,
                Strides to_strides, int64_t to_group, int64_t channels) {
  constexpr int kPitch = kSide + 1, kAtOnce = kThreads / kSide;
  ZB_SHARED_ARRAY(T, square, kSide * kPitch);  // [channel][position]
  ZB_SHARED_ARRAY(Spot, spots, kSide);
  ZB_SHARED_ARRAY(Channel, kernels, kSide);
  const int t = static_cast<int>(threadIdx.x), low = t % kSide, high = t / kSide;
  const bool read_by_channel = strides.c == 1, write_by_channel = to_strides.c == 1;
  const int64_t plane = g.map_size(), positions = g.N * plane, all = g.groups * channels;
  const int64_t across = cuda::pieces(all, kSide);
  for (int64_t item = blockIdx.x; item < across * cuda::pieces(positions, kSide); item += gridDim.x) {
    if (t < kSide) {
      const int64_t i = item / across * kSide + t;
      Spot spot{-1, i / g.w.map % g.h.map, i % g.w.map, 0, 0, 0, 0};
      if (i < positions) spot.n = i / plane;
      if (g.pool != Pool::kNone) {
        spot.p_first = g.h.first_window(spot.h), spot.p_last = g.h.last_window(spot.h);
        spot.q_first = g.w.first_window(spot.w), spot.q_last = g.w.last_window(spot.w);
      }
      spots[t] = spot;
    } else if (t < 2 * kSide) {
      const int64_t c = item % across * kSide + low, group = c / channels, in_group = c % channels;
      const bool exists = c < all && in_group < g.Kg;
      kernels[low] = {exists ? group * g.Kg + in_group : -1, group * to_group + in_group * to_strides.c};
    }
    __syncthreads();
#pragma unroll 1
    for (int i = high; i < kSide; i += kAtOnce) {
      const int c = read_by_channel ? low : i, position = read_by_channel ? i : low;
      const Spot& spot = spots[position];
      const int64_t k = kernels[c].k;
      square[c * kPitch + position] =
          spot.n >= 0 && k >= 0 ? map_grad<T, AVERAGE>(g, grad, strides, code, spot, k) : cuda::narrow<T>(0);
    }
    __syncthreads();
    for (int i = high; i < kSide; i += kAtOnce) {
      const int c = write_by_channel ? low : i, position = write_by_channel ? i : low;
      const Spot& spot = spots[position];
      if (spot.n < 0 || item % across * kSide + c >= all) continue;
      to[spot.n * to_strides.n + kernels[c].to + spot.h * to_strides.h + spot.w * to_strides.w] =
          square[c * kPitch + position];
    }
    __syncthreads();
  }
}

}  // namespace

MapGrad spread_grad(const BackwardCall& call, bool for_tiles) {
  const Geometry& g = call.g;
  const int64_t plane = g.map_size(), each = 16 / (call.p.dtype == ScalarType::Float ? 4 : 2);
  MapGrad map{};
  if (for_tiles) {
    map.channels = cuda::pieces(g.Kg, each) * each;
    const int64_t all = g.groups * map.channels;
    map.data = empty_on(call.x, {g.N, plane, all}, call.p.dtype);
    map.strides = {plane * all, 1, g.w.map * all, all};
    map.group = map.channels;
  } else {
    map.channels = g.Kg;
    map.data = empty_on(call.x, {g.N, g.K, plane}, call.p.dtype);
    map.strides = {g.K * plane, plane, g.w.map, 1};
    map.group = g.Kg * plane;
  }
  const int64_t items = cuda::pieces(g.groups * map.channels, kSide) * cuda::pieces(g.N * plane, kSide);
  cuda::dispatch(call.p.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    cuda::launch(call.place, "conv_relu_pool spread_grad",
                 g.pool == Pool::kAvg ? spread_grad<T, true> : spread_grad<T, false>, items, kThreads, 0, g,
                 cuda::read<T>(call.grad), strides_of(call.grad), call.code, cuda::write<T>(map.data),
                 map.strides, map.group, map.channels);
  });
  return map;
}

}  // namespace zb::conv_relu_pool
