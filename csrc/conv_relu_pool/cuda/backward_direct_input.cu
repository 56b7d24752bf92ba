// The gradient of the input straight from the position codes of a max pool, for depthwise convolutions.
//
// A block takes a tile of x (some channels, rows and columns of one image), makes the gradient of the part of
// the un-pooled map that the tile reached in shared memory, each position summing over the windows that hold
// it, and then each position of x sums over its taps. What is in shared memory is rounded as the un-pooled
// gradient in global memory would be, so that both ways give the same bits.
//
// Floor (bytes): grad and code once, grad_x once: for 2×2 windows 5.25 numbers a pooled output, against 13.25
// by way of the un-pooled gradient, which is written and read.
//
// Ladder
//   1  as said. Predicted for 128 images of 64 channels, 32², 3×3, on an H100: 13 µs of memory traffic, 40
//      µs of instructions (60 a map position, 60 a position of x). Not yet measured on a card.
#include "conv_relu_pool/cuda/backward.h"

namespace zb::conv_relu_pool {
namespace {

using cuda::Sum;

constexpr int kThreads = 256;
constexpr int64_t kPixels = 2048;  // of a tile, at most
constexpr size_t kMostShared = 48 * 1024;

// A row or column of the map: the windows that hold it, and its place in the first of them.
struct Holders {
  int first, last, place;
};

struct InputTiles {
  bool by_channel;               // neighbours in memory are channels
  int channels, rows, columns;   // of x in a tile
  int map_rows, map_columns;     // that a tile can reach
  int64_t across, down, blocks;  // tiles of an image along each

  ZB_HOST_DEVICE int cells() const { return channels * map_rows * map_columns; }
  // Neighbours in memory are neighbours in shared memory.
  ZB_DEVICE int channel(int i, int positions) const { return by_channel ? i % channels : i / positions; }
  ZB_DEVICE int position(int i, int positions) const { return by_channel ? i / channels : i % positions; }
};

// The first map index that a tile from x index `begin` on can reach.
ZB_HOST_DEVICE int64_t first_reached(const Axis& a, int64_t begin) {
  const int64_t t = begin + a.padding - (a.kernel - 1) * a.dilation;
  return t <= 0 ? 0 : (t + a.stride - 1) / a.stride;
}

// The map index reached at `place` through tap r, relative to the first one, or -1: Axis::reached in small
// numbers.
ZB_DEVICE int reached(const Axis& a, int place, int r, int count) {
  int o = place - r * static_cast<int>(a.dilation);
  if (o < 0) return -1;
  if (a.stride != 1) {
    const int stride = static_cast<int>(a.stride);
    if (o % stride != 0) return -1;
    o /= stride;
  }
  return o < count ? o : -1;
}

template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    direct_input(Geometry g, InputTiles tiles, const T* __restrict__ grad, Strides grad_strides, Code code,
                 const T* __restrict__ weight, Strides weight_strides, T* __restrict__ grad_x,
                 Strides x_strides) {
  using A = Sum<T>;
  ZB_SHARED_MEMORY(A, shared);
  const int Kg = static_cast<int>(g.Kg), R = static_cast<int>(g.h.kernel), S = static_cast<int>(g.w.kernel);
  A* const map = shared;                     // [Kg][map position, channel]
  A* const taps = map + Kg * tiles.cells();  // [Kg][channels][R·S]
  auto* const down = reinterpret_cast<Holders*>(taps + Kg * tiles.channels * R * S);  // [map_rows]
  Holders* const across = down + tiles.map_rows;                                      // [map_columns]
  const int t = static_cast<int>(threadIdx.x);
  const A slope = static_cast<A>(g.slope);
  const int64_t items = g.N * tiles.down * tiles.across * tiles.blocks;
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const int64_t first_c = item % tiles.blocks * tiles.channels, tile = item / tiles.blocks;
    const int64_t w0 = tile % tiles.across * tiles.columns,
                  h0 = tile / tiles.across % tiles.down * tiles.rows;
    const int64_t n = tile / tiles.across / tiles.down;
    const int64_t top = first_reached(g.h, h0), left = first_reached(g.w, w0);
    const int64_t first_p = g.h.first_window(top), first_q = g.w.first_window(left);
    const int channels = g.C - first_c < tiles.channels ? static_cast<int>(g.C - first_c) : tiles.channels;

    const auto hold = [](const Axis& a, int64_t at, int64_t first) {
      if (at >= a.map) return Holders{0, -1, 0};
      const int64_t o = a.first_window(at);
      return Holders{static_cast<int>(o - first), static_cast<int>(a.last_window(at) - first),
                     static_cast<int>(at - a.window_start(o))};
    };
    for (int i = t; i < tiles.map_rows; i += kThreads) down[i] = hold(g.h, top + i, first_p);
    for (int i = t; i < tiles.map_columns; i += kThreads) across[i] = hold(g.w, left + i, first_q);
    for (int i = t; i < Kg * channels * R * S; i += kThreads) {
      const int tap = i % (R * S), kernel = i / (R * S) % Kg, c = i / (R * S) / Kg;
      const int64_t at = ((first_c + c) * g.Kg + kernel) * weight_strides.n + tap / S * weight_strides.h +
                         tap % S * weight_strides.w;
      taps[(kernel * tiles.channels + c) * R * S + tap] = cuda::widen(weight[at]);
    }
    __syncthreads();

    // --- the map's gradient
    const int map_positions = tiles.map_rows * tiles.map_columns;
    for (int i = t; i < Kg * tiles.cells(); i += kThreads) {
      const int kernel = i / tiles.cells(), cell = i % tiles.cells();
      const int c = tiles.channel(cell, map_positions), position = tiles.position(cell, map_positions);
      const Holders v = down[position / tiles.map_columns], u = across[position % tiles.map_columns];
      const int64_t k = (first_c + c) * g.Kg + kernel;
      A sum = 0;
      bool scaled = false;
      for (int p = v.first; c < channels && p <= v.last; ++p) {
        for (int q = u.first; q <= u.last; ++q) {
          const int winner = code.winner(n * code.strides.n + k * code.strides.c +
                                         (first_p + p) * code.strides.h + (first_q + q) * code.strides.w);
          const int row = v.place - (p - v.first) * static_cast<int>(g.h.window_stride);
          const int column = u.place - (q - u.first) * static_cast<int>(g.w.window_stride);
          if (winner == 0 || winner_position(winner, slope) != row * static_cast<int>(g.w.window) + column)
            continue;
          scaled = slope > 0 && (winner - 1) % 2 != 0;
          sum += cuda::widen(grad[n * grad_strides.n + k * grad_strides.c + (first_p + p) * grad_strides.h +
                                  (first_q + q) * grad_strides.w]);
        }
      }
      sum = cuda::rounded<T>(sum);
      map[i] = scaled ? cuda::rounded<T>(cuda::multiply(sum, slope)) : sum;
    }
    __syncthreads();

    // --- and of x
    const int positions = tiles.rows * tiles.columns;
    const int h_place = static_cast<int>(h0 + g.h.padding - top * g.h.stride),
              w_place = static_cast<int>(w0 + g.w.padding - left * g.w.stride);
    for (int i = t; i < tiles.channels * positions; i += kThreads) {
      const int c = tiles.channel(i, positions), position = tiles.position(i, positions);
      const int row = position / tiles.columns, column = position % tiles.columns;
      if (c >= channels || h0 + row >= g.h.in || w0 + column >= g.w.in) continue;
      A sum = 0;
      for (int r = 0; r < R; ++r) {
        const int h = reached(g.h, h_place + row, r, tiles.map_rows);
        for (int s = 0; h >= 0 && s < S; ++s) {
          const int w = reached(g.w, w_place + column, s, tiles.map_columns);
          if (w < 0) continue;
          const int at = h * tiles.map_columns + w;
          const int cell = tiles.by_channel ? at * tiles.channels + c : c * map_positions + at;
          for (int kernel = 0; kernel < Kg; ++kernel) {
            sum = cuda::multiply_add(map[kernel * tiles.cells() + cell],
                                     taps[(kernel * tiles.channels + c) * R * S + r * S + s], sum);
          }
        }
      }
      grad_x[n * x_strides.n + (first_c + c) * x_strides.c + (h0 + row) * x_strides.h +
             (w0 + column) * x_strides.w] = cuda::narrow<T>(sum);
    }
    __syncthreads();
  }
}

size_t shared_bytes(const Geometry& g, const InputTiles& t, size_t element) {
  const int64_t taps = g.h.kernel * g.w.kernel;
  return static_cast<size_t>(g.Kg * (t.cells() + t.channels * taps)) * element +
         static_cast<size_t>(t.map_rows + t.map_columns) * sizeof(Holders);
}

// Tiles that fit into shared memory; false where none does.
bool choose_tiles(const Geometry& g, bool by_channel, size_t element, InputTiles& t) {
  constexpr int64_t kLargest = 4096;  // keeps products small; nothing larger would fit
  for (const Axis& a : {g.h, g.w}) {
    if (a.stride > kLargest || a.window > kLargest || (a.kernel > 1 && a.dilation > kLargest)) return false;
  }
  const auto least = [](int64_t a, int64_t b) { return static_cast<int>(a < b ? a : b); };
  const auto reach = [](const Axis& a, int size) {
    return static_cast<int>((size - 1 + (a.kernel - 1) * a.dilation) / a.stride + 1);
  };
  t.by_channel = by_channel;
  t.columns = least(g.w.in, by_channel ? 8 : 64);
  t.rows = least(g.h.in, by_channel ? 8 : 32);
  t.channels = least(g.C, by_channel ? 32 : cuda::pieces(kPixels, 2 * t.rows * t.columns));
  while (true) {
    t.map_rows = reach(g.h, t.rows), t.map_columns = reach(g.w, t.columns);
    if (int64_t{t.map_rows} * t.map_columns * t.channels <= int64_t{kMostShared} &&
        shared_bytes(g, t, element) <= kMostShared) {
      break;
    }
    int& largest = t.channels > 1 && !(by_channel && t.rows > 1) ? t.channels
                   : t.rows > 1                                  ? t.rows
                                                                 : t.columns;
    if (largest == 1) return false;
    largest = (largest + 1) / 2;
  }
  t.across = cuda::pieces(g.w.in, t.columns), t.down = cuda::pieces(g.h.in, t.rows);
  t.blocks = cuda::pieces(g.C, t.channels);
  return true;
}

}  // namespace

bool direct_input_grad(const BackwardCall& call, const Tensor& grad_x) {
  const Geometry& g = call.g;
  if (g.Cg != 1) return false;
  InputTiles tiles;
  const size_t element = call.p.dtype == ScalarType::Double ? sizeof(double) : sizeof(float);
  if (!choose_tiles(g, call.p.x_channels_last, element, tiles)) return false;
  cuda::dispatch(call.p.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto& s = call.p.w_strides;
    cuda::launch(call.place, "conv_relu_pool direct_input", direct_input<T>,
                 g.N * tiles.down * tiles.across * tiles.blocks, kThreads, shared_bytes(g, tiles, element), g,
                 tiles, cuda::read<T>(call.grad), strides_of(call.grad), call.code,
                 cuda::read<T>(call.weight), Strides{s[0], s[1], s[2], s[3]}, cuda::write<T>(grad_x),
                 strides_of(grad_x));
  });
  return true;
}

}  // namespace zb::conv_relu_pool
