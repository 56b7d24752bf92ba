// conv → act → pool on a GPU, forward, for few input channels (first layers, depthwise), directly.
//
// Floor (bytes): x, weight and y once (+ code: 1 byte a pooled output, sig: 1 bit a unit).
// Floor (operations): N·K·H1·W1·Cg·R·S float32 multiply-adds. On an H100 (3.35 TB/s, 30 T multiply-adds/s),
// in float32:
//
//            x + y     bytes     multiply-adds      binds
//   mnist1   7.2 MB    2.2 µs    161 M   5.4 µs     multiply-adds, 2.5 times
//   cifar1   10 MB     3.0 µs    226 M   7.5 µs     multiply-adds, 2.5 times
//   stem     11 MB     3.4 µs    944 M   31 µs      multiply-adds, 9 times
//
// so what counts is that nearly every instruction is a multiply-add; kernels of fewer taps (depthwise 3×3)
// are bound by bytes.
//
// Ladder
//   1  a thread owns 4 × 4 map positions of 4 channels: 64 sums, and 13 to 25 multiply-adds for each
//      16-byte load from shared memory. Emulated and compiled; not yet run on a card.
//
// A block takes a rectangle of such squares of one image and up to 32 channels. It loads what it needs of x
// and of the weights into shared memory as float32; then the results, pooled, pass through the same memory on
// their way out. Windows of 2×2 that don't overlap are pooled in registers. Others, and calls that want bits
// of the un-pooled map, are pooled from the block's part of the map in shared memory; where windows overlap
// the borders of two blocks, both compute the positions that they share.
//
// Sums run over (channel, row, column) of the kernel in ascending order, as in the general kernel.
#include "conv_relu_pool/cuda/first_layer.h"

#include "common/cuda/ptx.h"

namespace zb::conv_relu_pool {
namespace {

constexpr int kSide = 4;           // a thread's square of map positions
constexpr int kLanes = 4;          // and its channels
constexpr int kMostThreads = 256;  // of a block; with at most 128 registers two blocks fit an SM
constexpr int kMostQuads = 8;      // of 4 channels, in a block
constexpr int kWeightPitch = kMostQuads * kLanes + 4;  // of one tap; 4 more: fewer bank conflicts

using Four = cuda::Vector<float, 4>;

enum class Pooling { kNone, kRegisters, kShared };

// What a block takes, all in elements of the tile.
struct Tile {
  int down, across;             // squares
  int quads;                    // of channels
  int threads;                  // squares · quads, in whole warps
  int out_rows, out_columns;    // windows
  int patch_rows, patch_pitch;  // of x, each channel
  int map_pitch, out_pitch;     // of one channel of what is staged; odd, so that channels meet other banks
  int64_t items_h, items_w, channel_blocks;

  ZB_HOST_DEVICE int rows() const { return down * kSide; }
  ZB_HOST_DEVICE int columns() const { return across * kSide; }
  ZB_HOST_DEVICE int channels() const { return quads * kLanes; }
  ZB_HOST_DEVICE int patch_plane() const { return patch_rows * patch_pitch; }
  ZB_HOST_DEVICE int64_t items(const Geometry& g) const {
    return g.N * items_h * items_w * g.groups * channel_blocks;
  }
};

// x, from the tile's first tap on, to [Cg, patch_rows, patch_pitch]: 16 bytes at once where neighbours follow
// on each other, zeros outside the image.
template <class T, int STRIDE>
ZB_DEVICE void load_patch(const Geometry& g, const Tile& t, const Item& item, const T* __restrict__ x,
                          const Strides& s, float* patch) {
  constexpr int kEach = 16 / sizeof(T);
  const int chunks = (t.patch_pitch + 2 * kEach - 2) / kEach;  // that a row can touch
  const int64_t top = item.top * g.h.stride - g.h.padding, left = item.left * STRIDE - g.w.padding;
  x += item.n * s.n + item.group * g.Cg * s.c;
  const int count = static_cast<int>(g.Cg) * t.patch_rows * chunks;
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < count; i += t.threads) {
    const int row = i / chunks, c = row / t.patch_rows;
    const int64_t h = top + (row - c * t.patch_rows);
    const bool exists = h >= 0 && h < g.h.in;
    const T* const line = x + (exists ? c * s.c + h * s.h : 0);
    const int past = past_alignment(line);
    // Chunks start where 16 divides the address; the first holds column `left`.
    const int64_t w = ((left + past) & ~int64_t{kEach - 1}) - past + (i - row * chunks) * kEach;
    const int column = static_cast<int>(w - left);
    cuda::Vector<T, kEach> v;
    if (exists && s.w == 1 && w >= 0 && w + kEach <= g.w.in) {
      v = cuda::load_vector<cuda::Vector<T, kEach>>(line + w);
    } else {
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        const bool inside = exists && w + e >= 0 && w + e < g.w.in && column + e < t.patch_pitch;
        v.v[e] = inside ? line[(w + e) * s.w] : T(0.f);
      }
    }
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const int at = column + e;
      if (at >= 0 && at < t.patch_pitch) patch[row * t.patch_pitch + at] = cuda::widen(v.v[e]);
    }
  }
}

// The weights of the tile's channels, to [taps, kWeightPitch]; zeros past the last channel. Lanes take
// neighbouring taps, which are neighbours in memory.
template <class T, int S>
ZB_DEVICE void load_weights(const Geometry& g, const Tile& t, const Item& item, const T* __restrict__ weight,
                            const Strides& s, float* to) {
  const int rows = static_cast<int>(g.h.kernel), taps = static_cast<int>(g.Cg) * rows * S;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  for (int tap = lane; tap < taps; tap += 32) {
    const int line = tap / S, c = line / rows;
    const T* const from = weight + item.k * s.n + c * s.c + (line - c * rows) * s.h + tap % S * s.w;
#pragma unroll 4
    for (int k = warp; k < t.channels(); k += t.threads / 32) {
      to[tap * kWeightPitch + k] = k < item.channels ? cuda::widen(from[k * s.n]) : 0.f;
    }
  }
}

// The sums of one square: [row][column][channel].
using Square = float[kSide][kSide][kLanes];

template <class F>
ZB_DEVICE void each_sum(Square& sums, F&& f) {
#pragma unroll
  for (int i = 0; i < kSide; ++i) {
#pragma unroll
    for (int j = 0; j < kSide; ++j) {
#pragma unroll
      for (int l = 0; l < kLanes; ++l) f(i, j, l, sums[i][j][l]);
    }
  }
}

// `patch`: this square's first tap; `weights`: this thread's four channels at the first tap.
template <int S, int STRIDE>
ZB_DEVICE void convolve(const Geometry& g, const Tile& t, const float* patch, const float* weights,
                        Square& sums) {
  constexpr int kVectors = ((kSide - 1) * STRIDE + S + 3) / 4;
  each_sum(sums, [](int, int, int, float& sum) { sum = 0; });
  const int rows = static_cast<int>(g.h.kernel), channels = static_cast<int>(g.Cg);
  const int down = static_cast<int>(g.h.stride) * t.patch_pitch;
#pragma unroll 1
  for (int c = 0; c < channels; ++c) {
    const float* line = patch + c * t.patch_plane();
#pragma unroll 1
    for (int r = 0; r < rows; ++r) {
      Four tap[S];
#pragma unroll
      for (int s = 0; s < S; ++s) tap[s] = cuda::load_vector<Four>(weights + s * kWeightPitch);
#pragma unroll
      for (int i = 0; i < kSide; ++i) {
        Four value[kVectors];
#pragma unroll
        for (int v = 0; v < kVectors; ++v) value[v] = cuda::load_vector<Four>(line + i * down + v * 4);
#pragma unroll
        for (int s = 0; s < S; ++s) {
#pragma unroll
          for (int j = 0; j < kSide; ++j) {
            const int at = j * STRIDE + s;
#pragma unroll
            for (int l = 0; l < kLanes; ++l) {
              sums[i][j][l] = cuda::multiply_add(value[at / 4].v[at % 4], tap[s].v[l], sums[i][j][l]);
            }
          }
        }
      }
      line += t.patch_pitch;
      weights += S * kWeightPitch;
    }
  }
}

// A window's result so far, in row-major order.
struct Pooled {
  float value = 0;
  int winner = 0;
  bool first = true;

  ZB_DEVICE void take(Pool pool, float act, int position) {
    if (pool == Pool::kAvg) {
      value += act;
    } else if (first || act > value || act != act) {
      // The first of equals wins, and the last NaN, as in torch's max_pool2d.
      value = act;
      winner = position;
    }
    first = false;
  }
  template <class T>
  ZB_DEVICE void finish(const Geometry& g, int64_t p, int64_t q) {
    if (g.pool == Pool::kAvg) value = cuda::rounded<T>(value / static_cast<float>(g.divisor(p, q)));
  }
};

// Pooled values on their way out: [channel][out_pitch], where window (row, column) is row · columns + column.
struct Staged {
  float* values;
  uint8_t* winners;
};

// One 16-byte piece of to[0..length), or what of it lies inside.
template <class E, class F>
ZB_DEVICE void store_piece(E* to, int length, int piece, F&& element) {
  constexpr int kEach = 16 / sizeof(E);
  const int begin = piece * kEach - past_alignment(to);
  if (begin >= 0 && begin + kEach <= length) {
    cuda::Vector<E, kEach> v;
#pragma unroll
    for (int e = 0; e < kEach; ++e) v.v[e] = element(begin + e);
    cuda::store_vector(to + begin, v);
  } else {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      if (begin + e >= 0 && begin + e < length) to[begin + e] = element(begin + e);
    }
  }
}

// Writes element(index in Staged) for all outputs of the item. What is neighbours in `to` (channels, a row of
// windows, or all rows where the tile is as wide as the plane) is a run of pieces.
template <class E, class F>
ZB_DEVICE void write_outputs(const Geometry& g, const Tile& t, const Item& item, E* to, const Strides& s,
                             F&& element) {
  constexpr int kEach = 16 / sizeof(E);
  to += item.n * s.n + item.k * s.c + item.p * s.h + item.q * s.w;
  const bool along_channels = s.c == 1 && g.K > 1;
  const int across = item.out_columns, windows = item.out_rows * across;
  const int length = along_channels ? item.channels : across == g.w.out ? windows : across;
  const auto aligned = [](int64_t step) { return step % kEach == 0; };
  const bool all_aligned =
      past_alignment(to) == 0 &&
      (along_channels ? aligned(s.h) && aligned(s.w) : aligned(s.c) && (length == windows || aligned(s.h)));
  const int pieces = (length + (all_aligned ? 0 : kEach - 1) + kEach - 1) / kEach;
  const int runs_each = windows / (along_channels ? 1 : length);  // of each channel, or of all channels
  const int runs = along_channels ? runs_each : item.channels * runs_each;
  for (int i = static_cast<int>(threadIdx.x); i < runs * pieces; i += t.threads) {
    const int run = i / pieces, k = run / runs_each;
    const int window = (run - k * runs_each) * (along_channels ? 1 : length);
    const int row = window / across;
    const int from = k * t.out_pitch + window, step = along_channels ? t.out_pitch : 1;
    store_piece(to + k * s.c + row * s.h + (window - row * across) * s.w, length, i - run * pieces,
                [&](int e) { return element(from + e * step); });
  }
}

template <class T>
ZB_DEVICE void write(const Geometry& g, const Tile& t, const Item& item, const Staged& out, T* y,
                     const Strides& y_strides, const Sinks& sinks) {
  const int across = item.out_columns, windows = item.out_rows * across;
  if (windows == 0) return;
  const float slope = static_cast<float>(g.slope);
  write_outputs(g, t, item, y, y_strides, [&](int at) { return cuda::narrow<T>(out.values[at]); });
  if (sinks.position_code) {  // bytes: windows are small
    write_outputs(g, t, item, static_cast<uint8_t*>(sinks.position_code), sinks.code_strides, [&](int at) {
      return static_cast<uint8_t>(position_code(out.values[at], slope, out.winners[at]));
    });
  }
  const auto at = [&](int k, int row, int column) { return k * t.out_pitch + row * across + column; };
  write_output_bits(
      g, t.threads, item, sinks, [&](int k, int row, int column) { return out.values[at(k, row, column)]; },
      [&](int k, int row, int column) { return out.winners[at(k, row, column)]; });
}

// Pools the 2×2 windows of one square. Of a max pool at slope 0 `acts` are not activated yet.
template <class T>
ZB_DEVICE void pool_square(const Geometry& g, const Tile& t, const Item& item, int row, int column, int quad,
                           float slope, Square& acts, const Staged& out) {
  const bool average = g.pool == Pool::kAvg;
  if (row < item.row_begin || row + kSide > item.row_end || column < item.column_begin ||
      column + kSide > item.column_end) {
    const float missing = average ? 0.f : -INFINITY;
    each_sum(acts, [&](int i, int j, int, float& act) {
      const bool exists = row + i >= item.row_begin && row + i < item.row_end &&
                          column + j >= item.column_begin && column + j < item.column_end;
      if (!exists) act = missing;
    });
  }
#pragma unroll
  for (int i = 0; i < kSide; i += 2) {
#pragma unroll
    for (int j = 0; j < kSide; j += 2) {
      const int p = (row + i) / 2, q = (column + j) / 2;
      if (p >= item.out_rows || q >= item.out_columns) continue;
      const int at = quad * kLanes * t.out_pitch + p * item.out_columns + q;
      if (average) {
        const float divisor = static_cast<float>(g.divisor(item.p + p, item.q + q));
#pragma unroll
        for (int l = 0; l < kLanes; ++l) {
          const float sum = acts[i][j][l] + acts[i][j + 1][l] + acts[i + 1][j][l] + acts[i + 1][j + 1][l];
          out.values[at + l * t.out_pitch] = cuda::rounded<T>(sum / divisor);
        }
        continue;
      }
      const int first = (row + i < item.row_begin ? 2 : 0) + (column + j < item.column_begin ? 1 : 0);
#pragma unroll
      for (int l = 0; l < kLanes; ++l) {
        float value = acts[i][j][l];
        int winner = first;
#pragma unroll
        for (int position = 1; position < 4; ++position) {
          const float act = acts[i + position / 2][j + position % 2][l];
          if (act > value || act != act) value = act, winner = position;
        }
        out.values[at + l * t.out_pitch] = slope == 0 ? cuda::activate<T>(value, 0.f) : value;
        out.winners[at + l * t.out_pitch] = static_cast<uint8_t>(winner);
      }
    }
  }
}

template <class T, int S, int STRIDE, Pooling POOLING>
__global__ void __launch_bounds__(kMostThreads, 2)
    first_layer(Geometry g, Tile t, const T* __restrict__ x, Strides x_strides, const T* __restrict__ weight,
                Strides w_strides, T* __restrict__ y, Strides y_strides, Sinks sinks) {
  ZB_SHARED_MEMORY(float, shared);
  float* const patch = shared;
  float* const weights = shared + static_cast<int>(g.Cg) * t.patch_plane();
  // Takes the place of both once all threads have their sums.
  float* const map = shared;
  const int map_size = POOLING == Pooling::kShared ? t.channels() * t.map_pitch : 0;
  float* const values = shared + map_size;
  const Staged out{values, reinterpret_cast<uint8_t*>(values + t.channels() * t.out_pitch)};

  ZB_SHARED_ARRAY(Item, shared_item, 1);  // takes no registers while the sums run
  const Item& item = *shared_item;
  const float slope = static_cast<float>(g.slope);
  const int thread = static_cast<int>(threadIdx.x);
  const int square = thread / t.quads, quad = thread - square * t.quads;
  const bool live = square < t.down * t.across;
  const int row = live ? square / t.across * kSide : 0, column = live ? square % t.across * kSide : 0;
  const int64_t items = t.items(g);
  for (int64_t number = blockIdx.x; number < items; number += gridDim.x) {
    if (thread == 0) shared_item->set(g, t, number);
    __syncthreads();
    load_patch<T, STRIDE>(g, t, item, x, x_strides, patch);
    load_weights<T, S>(g, t, item, weight, w_strides, weights);
    __syncthreads();
    Square sums;
    convolve<S, STRIDE>(g, t, patch + row * static_cast<int>(g.h.stride) * t.patch_pitch + column * STRIDE,
                        weights + quad * kLanes, sums);
    __syncthreads();

    // At slope 0 the maximum's activation is the activations' maximum, and the winner of a window that is all
    // off doesn't show: one activation for each window is enough.
    const bool activates = POOLING != Pooling::kRegisters || slope != 0 || g.pool == Pool::kAvg;
    each_sum(sums, [&](int, int, int, float& sum) { sum = cuda::rounded<T>(sum); });
    if (activates) each_sum(sums, [&](int, int, int, float& act) { act = cuda::activate<T>(act, slope); });
    if constexpr (POOLING == Pooling::kRegisters) {
      if (live) pool_square<T>(g, t, item, row, column, quad, slope, sums, out);
    } else {
      const bool whole = POOLING == Pooling::kShared;  // else only what is an output
      float* const to = whole ? map : out.values;
      const int pitch = whole ? t.map_pitch : t.out_pitch, across = whole ? t.columns() : item.out_columns;
      float* const corner = to + quad * kLanes * pitch + row * across + column;
      each_sum(sums, [&](int i, int j, int l, float& act) {
        const bool wanted = live && (whole || (row + i < item.out_rows && column + j < item.out_columns));
        if (wanted) corner[l * pitch + i * across + j] = act;
      });
    }
    __syncthreads();

    if constexpr (POOLING == Pooling::kShared) {
      write_map_bits(g, t.threads, item, sinks, [&](int k, int row, int column) {
        return map[k * t.map_pitch + row * t.columns() + column];
      });
      const int across = item.out_columns, windows = item.out_rows * across;
      for (int i = thread; i < item.channels * windows; i += t.threads) {
        const int k = i / windows, window = i - k * windows, p = window / across, q = window - p * across;
        const int high = static_cast<int>(g.h.window), wide = static_cast<int>(g.w.window);
        const int top = p * static_cast<int>(g.h.window_stride),
                  left = q * static_cast<int>(g.w.window_stride);
        Pooled pooled;
        for (int a = 0; a < high; ++a) {
          if (top + a < item.row_begin || top + a >= item.row_end) continue;
          for (int b = 0; b < wide; ++b) {
            if (left + b < item.column_begin || left + b >= item.column_end) continue;
            pooled.take(g.pool, map[k * t.map_pitch + (top + a) * t.columns() + left + b], a * wide + b);
          }
        }
        pooled.finish<T>(g, item.p + p, item.q + q);
        out.values[k * t.out_pitch + window] = pooled.value;
        out.winners[k * t.out_pitch + window] = static_cast<uint8_t>(pooled.winner);
      }
      __syncthreads();
    }
    write(g, t, item, out, y, y_strides, sinks);
    __syncthreads();  // all are done with the memory that the next item fills
  }
}

Pooling pooling_of(const Call& c) {
  if (c.p.pool == Pool::kNone) return Pooling::kNone;
  return pools_in_registers(c) ? Pooling::kRegisters : Pooling::kShared;
}

// How many windows `squares` in a row hold whole.
int windows_in(const Axis& a, int squares) {
  const int left = squares * kSide - static_cast<int>(a.window);
  return left < 0 ? 0 : left / static_cast<int>(a.window_stride) + 1;
}

Tile tile_of(const Geometry& g, int64_t high, int64_t wide, int down, int across, int quads) {
  const int stride_h = static_cast<int>(g.h.stride), stride_w = static_cast<int>(g.w.stride);
  Tile t{};
  t.down = down, t.across = across, t.quads = quads;
  t.threads = static_cast<int>(cuda::pieces(down * across * quads, 32) * 32);
  t.out_rows = windows_in(g.h, down), t.out_columns = windows_in(g.w, across);
  t.patch_rows = (t.rows() - 1) * stride_h + static_cast<int>(g.h.kernel);
  t.patch_pitch = (across - 1) * kSide * stride_w +
                  static_cast<int>(cuda::pieces((kSide - 1) * stride_w + g.w.kernel, 4) * 4);
  t.map_pitch = t.rows() * t.columns() + 1;
  t.out_pitch = t.out_rows * t.out_columns | 1;
  t.items_h = cuda::pieces(high, t.out_rows), t.items_w = cuda::pieces(wide, t.out_columns);
  t.channel_blocks = cuda::pieces(g.Kg, t.channels());
  return t;
}

// Floats of x and of the weights that a block loads.
int loaded(const Geometry& g, const Tile& t) {
  return static_cast<int>(g.Cg) *
         (t.patch_plane() + static_cast<int>(g.h.kernel * g.w.kernel) * kWeightPitch);
}

size_t shared_bytes(const Geometry& g, const Tile& t, Pooling pooling) {
  const size_t in = loaded(g, t) * sizeof(float);
  const size_t map = pooling == Pooling::kShared ? t.channels() * t.map_pitch * sizeof(float) : 0;
  const size_t out = map + t.channels() * t.out_pitch * (sizeof(float) + 1);
  return in > out ? in : out;
}

// The tile with the fewest instructions: those of all threads' multiply-adds, idle threads included, and
// about ten for each number loaded into shared memory.
Tile best_tile(const Call& c, Pooling pooling) {
  const Geometry& g = c.g;
  const bool map_bits = pooling == Pooling::kShared && wants_map_bits(c);
  const int64_t high = windows_wanted(g.h, map_bits), wide = windows_wanted(g.w, map_bits);
  const double each = static_cast<double>(g.Cg * g.h.kernel * g.w.kernel * kSide * kSide * kLanes);
  Tile best{};
  double least = 0;
  int fitting = 1;
  while (fitting < kMostQuads && fitting * kLanes < g.Kg) fitting *= 2;
  // Half the channels, on a larger part of the map, may leave fewer threads idle.
  for (int quads = fitting; quads > 0 && quads * 2 >= fitting; quads /= 2) {
    const int most = kMostThreads / quads;
    for (int across = most < 32 ? most : 32; across > 0; --across) {
      if (windows_in(g.w, across - 1) >= wide || windows_in(g.w, across) == 0) continue;
      int down = most / across;
      while (windows_in(g.h, down) > 0 &&
             shared_bytes(g, tile_of(g, high, wide, down, across, quads), pooling) > kFirstMostShared) {
        --down;
      }
      if (windows_in(g.h, down) == 0) continue;
      // No higher than its number of items needs.
      const int64_t items = cuda::pieces(high, windows_in(g.h, down));
      while (windows_in(g.h, down - 1) * items >= high) --down;
      const Tile t = tile_of(g, high, wide, down, across, quads);
      const double cost = static_cast<double>(t.items(g)) * (t.threads * each + 10.0 * loaded(g, t));
      if (best.quads == 0 || cost < least) best = t, least = cost;
    }
  }
  return best;
}

const char* can_run(const Call& c) {
  if (const char* reason = first_layers_refuse(c)) return reason;
  const Axis& w = c.g.w;
  const bool known = (w.kernel == 3 && (w.stride == 1 || w.stride == 2)) ||
                     (w.kernel == 5 && w.stride == 1) || (w.kernel == 7 && w.stride == 2);
  if (!known) {
    return "a kernel that is not 3 wide with stride 1 or 2, 5 wide with stride 1, or 7 wide with stride 2";
  }
  return nullptr;
}

template <class T, int S, int STRIDE, Pooling POOLING>
void start(const Call& c) {
  const Tile tile = best_tile(c, POOLING);
  const auto& xs = c.p.x_strides;
  const auto& ws = c.p.w_strides;
  cuda::launch(c.place, "conv_relu_pool first_layer", first_layer<T, S, STRIDE, POOLING>, tile.items(c.g),
               tile.threads, shared_bytes(c.g, tile, POOLING), c.g, tile, cuda::read<T>(c.x),
               Strides{xs[0], xs[1], xs[2], xs[3]}, cuda::read<T>(c.weight),
               Strides{ws[0], ws[1], ws[2], ws[3]}, cuda::write<T>(c.out.y), strides_of(c.out.y), c.sinks);
}

template <class T, int S, int STRIDE>
void start(const Call& c) {
  const Pooling pooling = pooling_of(c);
  if (pooling == Pooling::kNone) return start<T, S, STRIDE, Pooling::kNone>(c);
  if constexpr (S <
                7) {  // seven taps' weights leave no registers for it, and are slow enough to hide the rest
    if (pooling == Pooling::kRegisters) return start<T, S, STRIDE, Pooling::kRegisters>(c);
  }
  start<T, S, STRIDE, Pooling::kShared>(c);
}

template <class T>
void start(const Call& c) {
  if (c.p.S == 7) return start<T, 7, 2>(c);
  if (c.p.S == 5) return start<T, 5, 1>(c);
  if (c.g.w.stride == 2) return start<T, 3, 2>(c);
  return start<T, 3, 1>(c);
}

void run(const Call& c) {
  switch (c.p.dtype) {
    case ScalarType::Float:
      return start<float>(c);
    case ScalarType::Half:
      return start<__half>(c);
    default:
      return start<__nv_bfloat16>(c);
  }
}

}  // namespace

const ForwardKernel kFirstLayer{"first layer", can_run, run};

}  // namespace zb::conv_relu_pool
