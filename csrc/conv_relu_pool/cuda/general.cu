// conv → act → pool on a GPU, forward: the general kernel, for every dtype, stride, dilation, group and pool.
//
// Floor (bytes): x once, weight once, y once (+ code: 1 byte a pooled output, sig: 1 bit a unit).
// Floor (operations): N·K·H1·W1·Cg·R·S multiply-adds in float32 (float64) outside the tensor cores.
//
// Ladder
//   1  a thread owns one pool window of LANES output channels, neighbouring threads neighbouring windows;
//      the pool happens in registers and the un-pooled map is never written. Emulated and compiled; not
//      yet run on a card.
//
// Overlapping windows compute the shared map values once for each window.
#include "conv_relu_pool/cuda/forward.h"
#include "conv_relu_pool/cuda/pack_weight.h"

namespace zb::conv_relu_pool {
namespace {

using cuda::Sum;

constexpr int kThreads = 128;
constexpr int kBlocksPerSm = 3;  // at most 168 registers: at four blocks (128) three of the kernels spill

// LANES channels of one group at one place of (image, row, column): what a thread works on.
template <int LANES>
struct Task {
  bool live;
  int64_t n, at;  // the image, and the position in its plane of `plane` positions
  int64_t group, k;
  int channels;  // of the LANES, how many exist

  ZB_DEVICE Task(const Geometry& g, int64_t item, int64_t plane) {
    const int64_t blocks = cuda::pieces(g.Kg, LANES), all = g.groups * blocks;
    const int64_t index = item / all * kThreads + threadIdx.x;
    group = item % all / blocks;
    const int64_t first = item % blocks * LANES;
    k = group * g.Kg + first;
    channels = static_cast<int>(g.Kg - first < LANES ? g.Kg - first : LANES);
    live = index < g.N * plane;
    n = live ? index / plane : 0;
    at = live ? index % plane : 0;
  }

  static ZB_HOST_DEVICE int64_t items(const Geometry& g, int64_t plane) {
    return cuda::pieces(g.N * plane, kThreads) * g.groups * cuda::pieces(g.Kg, LANES);
  }
};

// The pre-activations of LANES channels at map position (row, column), rounded to T. One order of summation
// (channel, row, column of the kernel), whoever calls. `x` points at the first channel of the group.
template <class T, int LANES>
ZB_DEVICE void convolve(const Geometry& g, const T* __restrict__ x, const Strides& strides,
                        const Lanes<Sum<T>, LANES>* __restrict__ taps, int64_t row, int64_t column,
                        Sum<T> (&pre)[LANES]) {
#pragma unroll
  for (int j = 0; j < LANES; ++j) pre[j] = 0;
  const int64_t top = row * g.h.stride - g.h.padding, left = column * g.w.stride - g.w.padding;
  for (int64_t c = 0; c < g.Cg; ++c) {
    for (int64_t r = 0; r < g.h.kernel; ++r) {
      const int64_t h = top + r * g.h.dilation;
      // Padding is multiplied as any zero: by a weight that is not finite it gives NaN, as on every device.
      const int64_t end = h >= 0 && h < g.h.in ? g.w.in : 0;
      const T* const line = x + c * strides.c + h * strides.h;
      int64_t w = left;
      for (int64_t s = 0; s < g.w.kernel; ++s, ++taps, w += g.w.dilation) {
        const Sum<T> value = w >= 0 && w < end ? cuda::widen(line[w * strides.w]) : Sum<T>(0);
        const Lanes<Sum<T>, LANES> tap = *taps;
#pragma unroll
        for (int j = 0; j < LANES; ++j) pre[j] = cuda::multiply_add(value, tap.v[j], pre[j]);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < LANES; ++j) pre[j] = cuda::rounded<T>(pre[j]);
}

// Adds the residual at a map position to what convolve gave.
template <class T, int LANES>
ZB_DEVICE void add_residual(const Added<T>& added, const Task<LANES>& task, int64_t row, int64_t column,
                            Sum<T> (&pre)[LANES]) {
  const int64_t first = task.n * added.at.n + task.k * added.at.c + row * added.at.h + column * added.at.w;
#pragma unroll
  for (int j = 0; j < LANES; ++j) {
    if (j < task.channels) pre[j] = added.to(pre[j], first + j * added.at.c);
  }
}

// Bits of up to 32 neighbouring map positions of one window row, for each channel.
template <int LANES>
struct RowBits {
  uint32_t on[LANES], pass[LANES];
  int count;

  ZB_DEVICE void clear() {
    count = 0;
#pragma unroll
    for (int j = 0; j < LANES; ++j) on[j] = pass[j] = 0;
  }

  // `end`: the map index after the last position taken.
  ZB_DEVICE void flush(const Sinks& sinks, const Geometry& g, const Task<LANES>& task, int64_t end) {
    const int64_t size = g.map_size(), first = end - count;
#pragma unroll
    for (int j = 0; j < LANES; ++j) {
      if (j >= task.channels) break;
      const int64_t k = task.k + j;
      if (sinks.map_sig) cuda::or_bits(sinks.map_sig, task.n * sinks.image_bits + k * size + first, on[j]);
      if (sinks.map_code) {
        cuda::or_bits(sinks.map_code, (task.n * g.K + k) * sinks.plane_bits + first, pass[j]);
      }
    }
    clear();
  }
};

template <class T, int LANES, bool ADDS>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    windows(Geometry g, const T* __restrict__ x, Strides x_strides,
            const Lanes<Sum<T>, LANES>* __restrict__ packed, Added<T> added, T* __restrict__ y,
            Strides y_strides, Sinks sinks) {
  using A = Sum<T>;
  const A slope = static_cast<A>(g.slope);
  const int64_t plane = g.out_size(), taps = g.Cg * g.h.kernel * g.w.kernel;
  const int64_t items = Task<LANES>::items(g, plane);
  const bool map_bits = g.pool != Pool::kNone && (sinks.map_sig || sinks.map_code);
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const Task<LANES> task(g, item, plane);
    const int64_t p = task.at / g.w.out, q = task.at % g.w.out;
    A result[LANES];
    int winner[LANES];
#pragma unroll
    for (int j = 0; j < LANES; ++j) result[j] = 0, winner[j] = 0;

    if (task.live) {
      const T* const image = x + task.n * x_strides.n + task.group * g.Cg * x_strides.c;
      const Lanes<A, LANES>* const weight =
          packed + (task.group * cuda::pieces(g.Kg, LANES) + (task.k - task.group * g.Kg) / LANES) * taps;
      const int64_t top = g.h.window_start(p), left = g.w.window_start(q);
      const int64_t i_first = top < 0 ? -top : 0, j_first = left < 0 ? -left : 0;
      const int64_t i_end = g.h.window < g.h.map - top ? g.h.window : g.h.map - top;
      const int64_t j_end = g.w.window < g.w.map - left ? g.w.window : g.w.map - left;
      bool first = true;
      RowBits<LANES> bits;
      bits.clear();
      for (int64_t i = i_first; i < i_end; ++i) {
        for (int64_t j = j_first; j < j_end; ++j) {
          A act[LANES];
          convolve<T, LANES>(g, image, x_strides, weight, top + i, left + j, act);
          if constexpr (ADDS) add_residual<T, LANES>(added, task, top + i, left + j, act);
          const int position = static_cast<int>(i * g.w.window + j);
#pragma unroll
          for (int l = 0; l < LANES; ++l) {
            act[l] = cuda::activate<T>(act[l], slope);
            if (g.pool == Pool::kAvg) {
              result[l] += act[l];
            } else if (first || act[l] > result[l] || act[l] != act[l]) {
              // The first of equals wins, and the last NaN, as in torch's max_pool2d.
              result[l] = act[l];
              winner[l] = position;
            }
            if (map_bits) {
              bits.on[l] |= static_cast<uint32_t>(act[l] > 0) << bits.count;
              bits.pass[l] |= static_cast<uint32_t>(passes(act[l], slope)) << bits.count;
            }
          }
          first = false;
          if (map_bits && (++bits.count == 32 || j + 1 == j_end)) {
            bits.flush(sinks, g, task, (top + i) * g.w.map + left + j + 1);
          }
        }
      }
      if (g.pool == Pool::kAvg) {
        const A divisor = static_cast<A>(g.divisor(p, q));
#pragma unroll
        for (int l = 0; l < LANES; ++l) result[l] = cuda::rounded<T>(result[l] / divisor);
      }
    }

#pragma unroll
    for (int l = 0; l < LANES; ++l) {
      if (l >= task.channels) break;
      const int64_t k = task.k + l;
      const A value = result[l];
      if (task.live) {
        y[task.n * y_strides.n + k * y_strides.c + p * y_strides.h + q * y_strides.w] =
            cuda::narrow<T>(value);
        if (sinks.position_code) {
          const int code = position_code(value, slope, winner[l]);
          const Strides& s = sinks.code_strides;
          const int64_t at = task.n * s.n + k * s.c + p * s.h + q * s.w;
          if (sinks.wide) {
            static_cast<int32_t*>(sinks.position_code)[at] = code;
          } else {
            static_cast<uint8_t*>(sinks.position_code)[at] = static_cast<uint8_t>(code);
          }
        }
        if (sinks.winner_sig && value > 0) {
          cuda::or_bits(sinks.winner_sig, task.n * sinks.image_bits + (k * plane + task.at) * sinks.unit_bits,
                        static_cast<uint32_t>(1 + winner[l]));
        }
      }
      if (sinks.output_sig) {
        cuda::or_lanes(sinks.output_sig, task.n * sinks.image_bits + k * plane + task.at, task.at, plane,
                       task.live, value > 0);
      }
      if (sinks.map_code && g.pool == Pool::kNone) {
        cuda::or_lanes(sinks.map_code, (task.n * g.K + k) * sinks.plane_bits + task.at, task.at, plane,
                       task.live, passes(value, slope));
      }
    }
  }
}

// The map bits of positions that lie in no window (the rest that floor leaves, or a stride above the kernel).
template <class T, int LANES, bool ADDS>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    uncovered(Geometry g, const T* __restrict__ x, Strides x_strides,
              const Lanes<Sum<T>, LANES>* __restrict__ packed, Added<T> added, Sinks sinks) {
  const Sum<T> slope = static_cast<Sum<T>>(g.slope);
  const int64_t plane = g.map_size(), taps = g.Cg * g.h.kernel * g.w.kernel;
  const int64_t items = Task<LANES>::items(g, plane);
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const Task<LANES> task(g, item, plane);
    const int64_t row = task.at / g.w.map, column = task.at % g.w.map;
    if (!task.live || (g.h.covered(row) && g.w.covered(column))) continue;
    Sum<T> act[LANES];
    convolve<T, LANES>(
        g, x + task.n * x_strides.n + task.group * g.Cg * x_strides.c, x_strides,
        packed + (task.group * cuda::pieces(g.Kg, LANES) + (task.k - task.group * g.Kg) / LANES) * taps, row,
        column, act);
    if constexpr (ADDS) add_residual<T, LANES>(added, task, row, column, act);
    RowBits<LANES> bits;
    bits.count = 1;
#pragma unroll
    for (int l = 0; l < LANES; ++l) {
      act[l] = cuda::activate<T>(act[l], slope);
      bits.on[l] = act[l] > 0;
      bits.pass[l] = passes(act[l], slope);
    }
    bits.flush(sinks, g, task, task.at + 1);
  }
}

// Calls f(Type<T>{}, lanes, adds) for the dtype, the number of output channels and the residual at hand. With
// a residual, whose addresses take registers, a thread has at most 4 channels: with 8 of them half precision
// spills.
template <class F>
void dispatch_lanes(const Call& c, F&& f) {
  cuda::dispatch(c.p.dtype, [&](auto type) {
    constexpr int kLanes = sizeof(typename decltype(type)::type) == 8 ? 4 : 8;
    constexpr std::integral_constant<int, 1> one;
    if (c.residual) {
      constexpr std::integral_constant<int, 4> four;
      c.p.Kg > 2 ? f(type, four, std::true_type{}) : f(type, one, std::true_type{});
    } else if (c.p.Kg > kLanes / 2) {
      f(type, std::integral_constant<int, kLanes>{}, std::false_type{});
    } else {
      f(type, one, std::false_type{});
    }
  });
}

template <class T, int LANES>
Tensor taps_of(const Call& c) {
  const auto& s = c.p.w_strides;
  const WeightOrder order{c.p.groups,    c.p.Kg, {c.p.Cg, c.p.R, c.p.S},
                          c.p.Kg * s[0], s[0],   {s[1], s[2], s[3]}};
  return packed_weight<T, LANES>(c.place, order, c.weight);
}

Strides strides_of_x(const Call& c) {
  const auto& s = c.p.x_strides;
  return {s[0], s[1], s[2], s[3]};
}

void run(const Call& c) {
  dispatch_lanes(c, [&](auto type, auto lanes, auto adds) {
    using T = typename decltype(type)::type;
    constexpr int kLanes = decltype(lanes)::value;
    const Tensor taps = taps_of<T, kLanes>(c);
    cuda::launch(c.place, "conv_relu_pool windows", windows<T, kLanes, decltype(adds)::value>,
                 Task<kLanes>::items(c.g, c.g.out_size()), kThreads, 0, c.g, cuda::read<T>(c.x),
                 strides_of_x(c), static_cast<const Lanes<Sum<T>, kLanes>*>(taps.const_data_ptr()),
                 added_in<T>(c), cuda::write<T>(c.out.y), strides_of(c.out.y), c.sinks);
  });
  write_uncovered(c);
}

}  // namespace

void write_uncovered(const Call& c) {
  const bool wanted = c.p.pool != Pool::kNone && (c.sinks.map_sig || c.sinks.map_code);
  if (!wanted || (c.g.h.all_covered() && c.g.w.all_covered())) return;
  dispatch_lanes(c, [&](auto type, auto lanes, auto adds) {
    using T = typename decltype(type)::type;
    constexpr int kLanes = decltype(lanes)::value;
    const Tensor taps = taps_of<T, kLanes>(c);
    cuda::launch(c.place, "conv_relu_pool uncovered", uncovered<T, kLanes, decltype(adds)::value>,
                 Task<kLanes>::items(c.g, c.g.map_size()), kThreads, 0, c.g, cuda::read<T>(c.x),
                 strides_of_x(c), static_cast<const Lanes<Sum<T>, kLanes>*>(taps.const_data_ptr()),
                 added_in<T>(c), c.sinks);
  });
}

const ForwardKernel kGeneral{"general simt", [](const Call&) -> const char* { return nullptr; }, run};

}  // namespace zb::conv_relu_pool
