// The gradient of the weight straight from the position codes of a max pool, for few input channels.
//
// A pooled output that passes a gradient g adds g · (the patch of x under its winner) to the gradient of its
// channel's weight: one multiplication a tap and pooled output, a quarter of the dense product's for 2×2
// windows, and no gradient of the un-pooled map. Windows may overlap.
//
// A block takes 32 output channels and about 27 taps through a slice of the batch, tile by tile: the piece
// of x that the tile's windows see, and each output's g and the place of its winner's patch in that piece,
// lie in shared memory. A lane is an output channel and keeps its sums in registers; the warps share the
// outputs. In a warp all lanes are at one window, so that they read a few neighbouring numbers of x.
// Depthwise each lane has an input channel of its own and x lies in shared memory by channels.
//
// Floor (bytes): grad, code and x once. Floor (operations): a read of shared memory for each multiplication,
// 32 a clock and SM: cifar1 (128 images, 3 → 64 channels, 32², 3×3) 8 µs on an H100, mnist1 6, stem 33.
//
// Ladder
//   1  as said. Predicted: cifar1 15 µs (as many instructions go into staging as into sums), against 23 µs
//      for the bytes alone by way of the un-pooled gradient. Not yet measured on a card.
#include "conv_relu_pool/cuda/backward.h"

namespace zb::conv_relu_pool {
namespace {

using cuda::Sum;

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kChannels = 32, kPitch = kChannels + 1;
constexpr int kMostOutputs = 64;           // of a channel in a tile
constexpr size_t kMostShared = 48 * 1024;  // two blocks on every SM, without asking

// A thread has sums for so many runs of RUN neighbouring taps, each at one address and RUN - 1 fixed
// distances from it. RUN is the width of the kernel, or 1.
template <class A>
constexpr int runs_of(int run) {
  return (run == 1 ? 16 : 28 / run) / (sizeof(A) == 8 ? 2 : 1);
}

struct Tiles {
  int64_t down, across;         // tiles of an image
  int p, q;                     // pooled outputs of a tile
  int channels, rows, columns;  // of x under a tile
  int pitch;                    // of a row in shared memory
  int64_t blocks;    // of 32 output channels, in a group; of all channels where lanes have their own
  int chunks, runs;  // pieces of a channel's taps, and the runs of a piece
  int64_t slices, slice_length;  // in tiles

  ZB_HOST_DEVICE int64_t per_image() const { return down * across; }
  ZB_HOST_DEVICE int64_t numbers() const { return int64_t{channels} * rows * pitch; }
};

// Which output of a tile is staged i-th: neighbours are neighbours in memory.
struct Output {
  int output, k, row, column;

  ZB_DEVICE Output(int i, bool by_channel, int across)
      : output(by_channel ? i / kChannels : i % kMostOutputs),
        k(by_channel ? i % kChannels : i / kMostOutputs),
        row(output / across),
        column(output % across) {}
  ZB_DEVICE int64_t offset(int64_t from, const Strides& s) const {
    return from + k * s.c + row * s.h + column * s.w;
  }
};

// OWN: each lane has an input channel of its own, and a position of x has kPitch numbers.
template <class T, int RUN, bool OWN>
__global__ void __launch_bounds__(kThreads, 2)
    direct_weight(Geometry g, Tiles tiles, const T* __restrict__ grad, Strides grad_strides, Code code,
                  const T* __restrict__ x, Strides x_strides, Sum<T>* __restrict__ slices) {
  using A = Sum<T>;
  ZB_SHARED_MEMORY(A, shared);
  A* const grads = shared;                         // [kMostOutputs][kPitch]
  A* const image = grads + kMostOutputs * kPitch;  // [channels][rows][pitch], or [rows][pitch][kPitch]
  constexpr int kStep = OWN ? kPitch : 1, kRuns = runs_of<A>(RUN);
  // [kMostOutputs][kPitch]; -1: no gradient
  int* const places = reinterpret_cast<int*>(image + tiles.numbers() * kStep);
  const int t = static_cast<int>(threadIdx.x), lane = t % 32, warp = t / 32;
  const A slope = static_cast<A>(g.slope);
  const int R = static_cast<int>(g.h.kernel), S = static_cast<int>(g.w.kernel);
  const int all_taps = static_cast<int>(g.Cg) * R * S, outputs = tiles.p * tiles.q;
  const int64_t all_tiles = g.N * tiles.per_image();
  const bool by_channel = grad_strides.c == 1;
  const int64_t blocks = OWN ? tiles.blocks : tiles.blocks * g.groups;
  for (int64_t item = blockIdx.x; item < tiles.slices * blocks * tiles.chunks; item += gridDim.x) {
    const int first_tap = static_cast<int>(item % tiles.chunks) * tiles.runs * RUN;
    const int tap_count = all_taps - first_tap < tiles.runs * RUN ? all_taps - first_tap : tiles.runs * RUN;
    const int64_t block = item / tiles.chunks % blocks, slice = item / tiles.chunks / blocks;
    const int64_t group = OWN ? 0 : block / tiles.blocks;
    const int64_t first_k = OWN ? block * kChannels : group * g.Kg + block % tiles.blocks * kChannels;
    const int64_t end_k = OWN ? g.K : (group + 1) * g.Kg;
    const int channels = end_k - first_k < kChannels ? static_cast<int>(end_k - first_k) : kChannels;
    const int first_c = first_tap / (R * S), planes = (first_tap + tap_count - 1) / (R * S) - first_c + 1;

    int offsets[kRuns];
    A sums[kRuns][RUN];
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      const int tap = first_tap + (i * RUN < tap_count ? i * RUN : 0);
      const int row = (tap / (R * S) - first_c) * tiles.rows + tap / S % R * static_cast<int>(g.h.dilation);
      offsets[i] = (row * tiles.pitch + tap % S * static_cast<int>(g.w.dilation)) * kStep;
#pragma unroll
      for (int j = 0; j < RUN; ++j) sums[i][j] = 0;
    }

    const int64_t begin = slice * tiles.slice_length;
    const int64_t end = begin + tiles.slice_length < all_tiles ? begin + tiles.slice_length : all_tiles;
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t n = tile / tiles.per_image(), p = tile % tiles.per_image() / tiles.across * tiles.p,
                    q = tile % tiles.across * tiles.q;

      const auto start = [&](const Strides& s) { return n * s.n + first_k * s.c + p * s.h + q * s.w; };
      const int64_t codes_from = start(code.strides), grads_from = start(grad_strides);

      // --- x under the tile; 0 outside of the image
      const int64_t top = g.h.window_start(p) * g.h.stride - g.h.padding;
      const int64_t left = g.w.window_start(q) * g.w.stride - g.w.padding;
      const int c_count = OWN ? channels : planes, positions = tiles.rows * tiles.columns;
      const bool x_by_channel = OWN && x_strides.c == 1;
#pragma unroll 4
      for (int i = t; i < c_count * positions; i += kThreads) {
        const int c = x_by_channel ? i % c_count : i / positions,
                  at = x_by_channel ? i / c_count : i % positions;
        const int row = at / tiles.columns, column = at % tiles.columns;
        const int64_t h = top + row, w = left + column;
        const bool inside = h >= 0 && h < g.h.in && w >= 0 && w < g.w.in;
        const int64_t channel = OWN ? (first_k + c) / g.Kg : group * g.Cg + first_c + c;
        const A value =
            inside
                ? cuda::widen(x[n * x_strides.n + channel * x_strides.c + h * x_strides.h + w * x_strides.w])
                : A(0);
        image[OWN ? (row * tiles.pitch + column) * kStep + c
                  : (c * tiles.rows + row) * tiles.pitch + column] = value;
      }

      // --- the outputs: what each passes, and where its winner's patch begins. All loads come first.
      constexpr int kAtOnce = 4;
#pragma unroll 1
      for (int first = t; first < kMostOutputs * kChannels; first += kAtOnce * kThreads) {
        int winners[kAtOnce];
        T values[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const Output o(first + i * kThreads, by_channel, tiles.q);
          const bool live =
              o.output < outputs && p + o.row < g.h.out && q + o.column < g.w.out && o.k < channels;
          winners[i] = live ? code.winner(o.offset(codes_from, code.strides)) : 0;
          values[i] = live ? grad[o.offset(grads_from, grad_strides)] : T{};
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const Output o(first + i * kThreads, by_channel, tiles.q);
          const int position = winner_position(winners[i], slope), across = static_cast<int>(g.w.window);
          const int h = (o.row * static_cast<int>(g.h.window_stride) + position / across) *
                        static_cast<int>(g.h.stride);
          const int w = (o.column * static_cast<int>(g.w.window_stride) + position % across) *
                        static_cast<int>(g.w.stride);
          const bool none = winners[i] == 0 || position >= g.h.window * g.w.window;
          places[o.output * kPitch + o.k] = none ? -1 : (h * tiles.pitch + w) * kStep;
          grads[o.output * kPitch + o.k] = passed<T>(cuda::widen(values[i]), winners[i], slope);
        }
      }
      __syncthreads();

      for (int output = warp; output < outputs; output += kWarps) {
        const int place = places[output * kPitch + lane];
        if (place < 0) continue;
        const A value = grads[output * kPitch + lane];
        const A* const patch = image + place + (OWN ? lane : 0);
#pragma unroll
        for (int i = 0; i < kRuns; ++i) {
          const A* const at = patch + offsets[i];
#pragma unroll
          for (int j = 0; j < RUN; ++j) sums[i][j] = cuda::multiply_add(value, at[j * kStep], sums[i][j]);
        }
      }
      __syncthreads();
    }

    // --- the warps' sums, one after the other: [tap][kChannels]
#pragma unroll 1
    for (int w = 0; w < kWarps; ++w) {
      if (w == warp) {
#pragma unroll
        for (int i = 0; i < kRuns * RUN; ++i) {
          A& sum = shared[i * kChannels + lane];
          sum = (w == 0 ? A(0) : sum) + sums[i / RUN][i % RUN];
        }
      }
      __syncthreads();
    }
    for (int i = t; i < tap_count * kChannels; i += kThreads) {
      const int k = i % kChannels;
      if (k < channels)
        slices[(slice * g.K + first_k + k) * all_taps + first_tap + i / kChannels] = shared[i];
    }
    __syncthreads();
  }
}

// The shape of the tiles that loads least, or false where none fits into shared memory.
bool choose_tiles(const Geometry& g, size_t element, bool own, int run, int most_runs, Tiles& best) {
  constexpr int64_t kLargest = 4096;  // keeps products small; nothing larger would fit
  for (const Axis& a : {g.h, g.w}) {
    if (a.stride > kLargest || a.window > kLargest || a.window_stride > kLargest ||
        (a.kernel > 1 && a.dilation > kLargest)) {
      return false;
    }
  }
  const int64_t taps = g.Cg * g.h.kernel * g.w.kernel, plane = g.h.kernel * g.w.kernel;
  Tiles t{};
  const int64_t runs = taps / run;
  t.runs = static_cast<int>(cuda::pieces(runs, cuda::pieces(runs, most_runs)));
  t.chunks = static_cast<int>(cuda::pieces(runs, t.runs));
  for (int64_t first = 0; first < taps; first += t.runs * run) {
    const int64_t last = (first + t.runs * run < taps ? first + t.runs * run : taps) - 1;
    const int planes = static_cast<int>(last / plane - first / plane) + 1;
    t.channels = planes > t.channels ? planes : t.channels;
  }
  t.blocks = cuda::pieces(own ? g.K : g.Kg, kChannels);
  const auto seen = [](const Axis& a, int64_t outputs) {
    return ((outputs - 1) * a.window_stride + a.window - 1) * a.stride + (a.kernel - 1) * a.dilation + 1;
  };
  double least = 0;
  const auto consider = [&](int64_t p, int64_t q) {
    const int64_t rows = seen(g.h, p), columns = seen(g.w, q);
    // The windows' neighbours below and beside are in other banks.
    int64_t pitch = columns;
    while (!own && (pitch % 32 < 2 || pitch % 32 > 30)) ++pitch;
    const double bytes =
        double(kMostOutputs) * kPitch * double(element + sizeof(int)) +
        double(t.channels) * double(rows) * double(pitch) * (own ? kPitch : 1) * double(element);
    if (bytes > kMostShared) return;
    t.p = static_cast<int>(p), t.q = static_cast<int>(q);
    t.rows = static_cast<int>(rows), t.columns = static_cast<int>(columns), t.pitch = static_cast<int>(pitch);
    t.down = cuda::pieces(g.h.out, p), t.across = cuda::pieces(g.w.out, q);
    const double loads =
        double(t.per_image()) * (double(t.channels) * double(rows * columns) * (own ? kChannels : 1) +
                                 2.0 * kMostOutputs * kChannels);
    if (least == 0 || loads < least) least = loads, best = t;
  };
  for (int64_t p = 1; p <= kMostOutputs && p <= g.h.out; ++p) {
    for (int64_t q = kMostOutputs / p < g.w.out ? kMostOutputs / p : g.w.out; q > 0; q /= 2) consider(p, q);
  }
  if (least == 0) return false;
  // The slices depend on sizes alone, so that results do not depend on the device.
  const int64_t tiles = g.N * best.per_image();
  const int64_t wanted = cuda::pieces(512, best.blocks * (own ? 1 : g.groups) * best.chunks);
  best.slice_length = cuda::pieces(tiles, wanted < tiles ? wanted : tiles);
  best.slices = cuda::pieces(tiles, best.slice_length);
  return true;
}

template <class T, int RUN, bool OWN>
bool run(const BackwardCall& call, const Tensor& grad_weight) {
  using A = Sum<T>;
  const Geometry& g = call.g;
  Tiles tiles;
  if (!choose_tiles(g, sizeof(A), OWN, RUN, runs_of<A>(RUN), tiles)) return false;
  const int64_t taps = g.Cg * g.h.kernel * g.w.kernel;
  const Tensor slices = empty_on(call.x, {tiles.slices, g.K, taps}, cuda::sum_dtype<T>());
  const auto& s = call.p.x_strides;
  const size_t shared = (kMostOutputs * kPitch + tiles.numbers() * (OWN ? kPitch : 1)) * sizeof(A) +
                        kMostOutputs * kPitch * sizeof(int);
  cuda::launch(call.place, "conv_relu_pool direct_weight", direct_weight<T, RUN, OWN>,
               tiles.slices * tiles.blocks * (OWN ? 1 : g.groups) * tiles.chunks, kThreads, shared, g, tiles,
               cuda::read<T>(call.grad), strides_of(call.grad), call.code, cuda::read<T>(call.x),
               Strides{s[0], s[1], s[2], s[3]}, cuda::write<A>(slices));
  run_add_slices<T>(call.place, g, slices, tiles.slices, 0, grad_weight);
  return true;
}

}  // namespace

bool direct_weight_grad(const BackwardCall& call, const Tensor& grad_weight) {
  const Geometry& g = call.g;
  // Lanes are output channels of one group, or, one input channel each, of all.
  const bool own = g.Cg == 1 && g.Kg < kChannels / 2;
  if (!own && g.groups > 1 && g.Kg < kChannels / 2) return false;
  const int64_t width = g.w.dilation == 1 ? g.w.kernel : 1;
  bool done = false;
  cuda::dispatch(call.p.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto run_it = own          ? (width == 3 ? run<T, 3, true> : run<T, 1, true>)
                        : width == 3 ? run<T, 3, false>
                        : width == 5 ? run<T, 5, false>
                        : width == 7 ? run<T, 7, false>
                                     : run<T, 1, false>;
    done = run_it(call, grad_weight);
  });
  return done;
}

}  // namespace zb::conv_relu_pool
