// HEADER
#include "conv_relu_pool/cuda/first_layer.h"

#include "common/cuda/ptx.h"

namespace zb::conv_relu_pool {
namespace {

constexpr int kUnitRows = 64;  // map positions that a warp multiplies at once: four fragments of 16
constexpr int kMostColumns = 7, kMostColumnStride = 2;   // of a kernel
constexpr int kMostPositions = 4096, kMostWindows = 256;  // of a tile; and of windows in a row or column of it

// Channels of a block in eights, and its threads: 128 sums a thread and 4 warps, or 64 and 8.
template <int EIGHTS>
constexpr int kThreads = EIGHTS == 8 ? 128 : 256;

using Four = cuda::Vector<uint32_t, 4>;

// number / by without a division, for number · by < 2^32.
struct Divider {
  int by;
  uint32_t inverse;  // 2^32 / by, rounded up

  static Divider of(int by) {
    return {by, by == 1 ? 0 : static_cast<uint32_t>((uint64_t{1} << 32) / by) + (by & (by - 1) ? 1 : 0)};
  }
  ZB_DEVICE int operator()(int number) const {
    return by == 1 ? number : static_cast<int>(uint64_t{static_cast<uint32_t>(number)} * inverse >> 32);
  }
};

// Results of one tile in shared memory, on their way out. Either [window][channel], where channels are
// neighbours in memory, or [channel][window]; then what is neighbours in memory (a row of windows, or all of a
// channel's) is a run that starts as many elements past a multiple of 16 bytes as it does in memory, so that
// 16 bytes at once go from one to the other.
struct Layout {
  bool along_channels, rows_follow;
  int channel, eight, row;  // distances in elements: of channels, what eight channels add, of rows
  int size;                 // elements in all
  int runs, pieces;         // runs of a channel (of all channels), 16-byte pieces that one can touch
  Divider by_runs, by_pieces;
};

// What a block takes.
struct Tile {
  int out_rows, out_columns;  // windows
  int map_rows, map_columns;  // positions
  int channel_count, units;
  // The product's shared dimension: pairs of neighbouring numbers of a filter row (columns × channels of it
  // follow on each other), row by row, eight to a step.
  int row_pairs, steps;
  int patch_rows, patch_pitch;  // pitch in bytes
  int odd;                      // distance of the patch's second copy in bytes; 0: there is none
  bool flat;                    // whether a pixel's channels are neighbours in x, and pixels too
  int runs, run_length, chunks;
  bool weights_follow;
  int taps;
  Divider by_runs, by_chunks, by_columns, by_windows, by_taps;
  Layout y, code;
  int map_pitch;  // bytes
  // Where things lie in shared memory, in bytes.
  int weight_pairs, spots, patch, weights, raw, map, values, codes, bytes;
  int64_t items_h, items_w, channel_blocks;

  ZB_HOST_DEVICE int rows() const { return map_rows; }
  ZB_HOST_DEVICE int columns() const { return map_columns; }
  ZB_HOST_DEVICE int channels() const { return channel_count; }
  ZB_HOST_DEVICE int positions() const { return map_rows * map_columns; }
  ZB_HOST_DEVICE int windows() const { return out_rows * out_columns; }
  ZB_HOST_DEVICE int64_t items(const Geometry& g) const {
    return g.N * items_h * items_w * g.groups * channel_blocks;
  }
};

// Of step s, lane l%4 = i reads pairs 8·s + i and 8·s + 4 + i: where they lie from a position's first tap on,
// and which of the two halves count.
struct Pair {
  int offset[2];
  uint32_t mask[2];
};

// Of a row of the product (of a window, where its positions are rows): its first tap in the patch, in bytes,
// and where it lies in the tile.
struct Spot {
  int offset;
  uint16_t row, column;
};

constexpr uint16_t kNowhere = 0x7fff;
constexpr uint32_t kNoTap = 0xffff;

// --- the way in ---------------------------------------------------------------------------------------

// Where in the raw weights of a channel number e of filter row r lies: x's order is row, column, channel, that
// of the weights channel, row, column.
ZB_DEVICE uint32_t raw_tap(const Geometry& g, int r, int e) {
  const int channels = static_cast<int>(g.Cg), s = e / channels, c = e - s * channels;
  return static_cast<uint32_t>((c * static_cast<int>(g.h.kernel) + r) * static_cast<int>(g.w.kernel) + s);
}

ZB_DEVICE void write_pairs(const Geometry& g, const Tile& t, int threads, Pair* pairs,
                           uint32_t* weight_pairs) {
  const int row_length = static_cast<int>(g.w.kernel * g.Cg);
  for (int j = static_cast<int>(threadIdx.x); j < t.steps * 8; j += threads) {
    const int r = j / t.row_pairs, e = 2 * (j - r * t.row_pairs);
    const bool exists = r < g.h.kernel, both = e + 1 < row_length;
    Pair& pair = pairs[j / 8 * 4 + j % 4];
    pair.offset[j / 4 % 2] = exists ? r * t.patch_pitch + e * 2 : 0;
    // What lies beside is another tap's number: 0 times it would be NaN where it is not finite.
    pair.mask[j / 4 % 2] = !exists ? 0 : both ? 0xffffffffu : 0xffffu;
    weight_pairs[j] = (exists ? raw_tap(g, r, e) : kNoTap) |
                      (exists && both ? raw_tap(g, r, e + 1) : kNoTap) << 16;
  }
}

template <bool REGISTERS>
ZB_DEVICE void write_spots(const Geometry& g, const Tile& t, int threads, Spot* spots) {
  const int count = t.units * (REGISTERS ? kUnitRows / 4 : kUnitRows);
  const int existing = REGISTERS ? t.windows() : t.positions();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += threads) {
    Spot spot{0, kNowhere, kNowhere};
    if (i < existing) {
      const int row = t.by_columns(i), column = i - row * t.by_columns.by;
      const int apart = REGISTERS ? 2 : 1;
      const int e = column * apart * static_cast<int>(g.w.stride * g.Cg);
      spot.offset =
          row * apart * static_cast<int>(g.h.stride) * t.patch_pitch + e / 2 * 4 + (e % 2 ? t.odd : 0);
      spot.row = static_cast<uint16_t>(row), spot.column = static_cast<uint16_t>(column);
    }
    spots[i] = spot;
  }
}

// The weights of the item's channels as they are, [channel][taps].
ZB_DEVICE void load_weights(const Geometry& g, const Tile& t, int threads, const Item& item,
                            const uint16_t* __restrict__ weight, const Strides& s, uint16_t* raw) {
  const int thread = static_cast<int>(threadIdx.x), count = item.channels * t.taps;
  weight += item.k * s.n;
  int begin = 0;
  if (t.weights_follow && past_alignment(weight) == 0) {
    begin = count & ~7;
    for (int i = thread * 8; i < begin; i += threads * 8) cuda::copy_async(raw + i, weight + i, true);
  }
  const int rows = static_cast<int>(g.h.kernel), columns = static_cast<int>(g.w.kernel);
  for (int i = begin + thread; i < count; i += threads) {
    const int k = t.by_taps(i), tap = i - k * t.taps, line = tap / columns, c = line / rows;
    raw[i] = weight[k * s.n + c * s.c + (line - c * rows) * s.h + (tap - line * columns) * s.w];
  }
  cuda::copy_async_commit();
}

// From the raw weights to the fragments of all steps: a lane's four registers for sixteen channels lie
// together.
template <int EIGHTS>
ZB_DEVICE void pack_weights(const Tile& t, const Item& item, const uint16_t* raw,
                            const uint32_t* weight_pairs, unsigned char* weights) {
  constexpr int kSixteens = EIGHTS / 2;
  for (int v = static_cast<int>(threadIdx.x); v < t.steps * kSixteens * 32; v += kThreads<EIGHTS>) {
    const int lane = v % 32, sixteen = v / 32 % kSixteens, step = v / 32 / kSixteens;
    Four four;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t taps = weight_pairs[step * 8 + i % 2 * 4 + lane % 4];
      const int k = sixteen * 16 + i / 2 * 8 + lane / 4;
      const uint16_t* const from = raw + k * t.taps;
      const uint32_t first = taps & 0xffff, second = taps >> 16;
      uint32_t two = 0;
      if (k < item.channels && first != kNoTap) two = from[first];
      if (k < item.channels && second != kNoTap) two |= static_cast<uint32_t>(from[second]) << 16;
      four.v[i] = two;
    }
    cuda::store_vector(weights + v * 16, four);
  }
}

// x, from the tile's first tap on, to [patch_rows][columns × channels], zeros outside the image, 16 bytes at
// once where neighbours follow on each other; and where positions may start at odd numbers a second time,
// shifted by one, so that any two neighbours can be read as one aligned word.
ZB_DEVICE void load_patch(const Geometry& g, const Tile& t, int threads, const Item& item,
                          const uint16_t* __restrict__ x, const Strides& s, unsigned char* patch) {
  constexpr int kEach = 8, kBatch = 4;  // chunks under way at once
  const int64_t top = item.top * g.h.stride - g.h.padding;
  const int64_t left = (item.left * g.w.stride - g.w.padding) * (t.flat ? g.Cg : 1);
  const int64_t length = t.flat ? g.w.in * g.Cg : g.w.in, each = t.flat ? 1 : s.w;
  const int step = t.runs;  // from one number of a run to the next, in the patch
  const int count = t.patch_rows * t.chunks * t.runs;
  x += item.n * s.n + item.group * g.Cg * s.c;
  for (int begin = static_cast<int>(threadIdx.x); begin < count; begin += kBatch * threads) {
    Four chunk[kBatch];  // two numbers in each word
    int column[kBatch];  // of the chunk's first number, in the patch
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int i = begin + b * threads;
      if (i >= count) break;
      const int line = t.by_runs(i), c = i - line * t.runs;
      const int row = t.by_chunks(line);
      const int64_t h = top + row;
      const bool exists = h >= 0 && h < g.h.in;
      const uint16_t* const from = x + (exists ? c * s.c + h * s.h : 0);
      const int past = past_alignment(from);
      // Chunks start where 16 divides the address; the first holds number `left`.
      const int64_t w = ((left + past) & ~int64_t{kEach - 1}) - past + (line - row * t.chunks) * kEach;
      column[b] = static_cast<int>(w - left);
      if (exists && each == 1 && w >= 0 && w + kEach <= length) {
        chunk[b] = cuda::load_vector<Four>(from + w);
      } else {
        chunk[b] = {};
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
          const bool inside = exists && w + e >= 0 && w + e < length && column[b] + e < t.run_length;
          if (inside) chunk[b].v[e / 2] |= static_cast<uint32_t>(from[(w + e) * each]) << e % 2 * 16;
        }
      }
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int i = begin + b * threads;
      if (i >= count) break;
      const int line = t.by_runs(i), c = i - line * t.runs;
      auto* const to = reinterpret_cast<uint16_t*>(patch + t.by_chunks(line) * t.patch_pitch);
      auto* const shifted = reinterpret_cast<uint16_t*>(reinterpret_cast<unsigned char*>(to) + t.odd) - 1;
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        const int at = column[b] + e, number = at * step + c;
        if (at < 0 || at >= t.run_length) continue;
        const auto value = static_cast<uint16_t>(chunk[b].v[e / 2] >> e % 2 * 16);
        to[number] = value;
        if (t.odd && number > 0) shifted[number] = value;
      }
    }
  }
}

// --- the product --------------------------------------------------------------------------------------

// 64 rows × EIGHTS · 8 channels: [16 rows][8 channels]: rows l/4, l/4 + 8; channels 2·(l%4), + 1.
template <int EIGHTS>
using Sums = float[4][EIGHTS][4];

// bases[2·m + h]: the first tap of this lane's row l/4 + 8·h of fragment m.
template <class T, int EIGHTS>
ZB_DEVICE void multiply(int steps, const unsigned char* patch, const int (&bases)[8], const Pair* pairs,
                        const unsigned char* weights, Sums<EIGHTS>& sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int m = 0; m < 4; ++m) {
#pragma unroll
    for (int n = 0; n < EIGHTS; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[m][n][i] = 0;
    }
  }
  pairs += lane % 4;
  weights += lane * 16;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const Four pair = cuda::load_vector<Four>(pairs + step * 4);
    Four b[EIGHTS / 2];
#pragma unroll
    for (int n = 0; n < EIGHTS / 2; ++n) {
      b[n] = cuda::load_vector<Four>(weights + (step * (EIGHTS / 2) + n) * 512);
    }
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      uint32_t a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = bases[2 * m + i % 2] + static_cast<int>(pair.v[i / 2]);
        a[i] = cuda::load_vector<uint32_t>(patch + at) & pair.v[2 + i / 2];
      }
#pragma unroll
      for (int n = 0; n < EIGHTS; ++n) {
        cuda::multiply_fragments<T>(sums[m][n], a, b[n / 2].v[n % 2 * 2], b[n / 2].v[n % 2 * 2 + 1]);
      }
    }
  }
}

// --- activation and pool, of two channels at once -----------------------------------------------------

template <class T>
ZB_DEVICE uint32_t activate_two(uint32_t v, float slope) {
  if (slope == 0) return cuda::most_two<T>(v, 0);
  const uint32_t on = cuda::greater_two<T>(v, 0);
  const uint32_t scaled = cuda::pack_two<T>(cuda::multiply(cuda::unpack<T>(v, 0), slope),
                                            cuda::multiply(cuda::unpack<T>(v, 1), slope));
  return (v & on) | (scaled & ~on);
}

template <class T>
constexpr uint32_t kMinusInfinity = std::is_same_v<T, __half> ? 0xfc00fc00u : 0xff80ff80u;

// A window's result so far: positions come in row-major order.
template <class T>
struct Best {
  uint32_t value, winner;  // of both channels

  // The first of equals wins, and the last NaN, as in torch's max_pool2d.
  ZB_DEVICE void take(uint32_t v, int position) {
    const uint32_t better = cuda::greater_two<T>(v, value) | cuda::nan_two<T>(v);
    value = (v & better) | (value & ~better);
    winner = (static_cast<uint32_t>(position) * 0x00010001u & better) | (winner & ~better);
  }
  // position_code() of both.
  ZB_DEVICE uint32_t code(float slope) const {
    const uint32_t on = cuda::greater_two<T>(value, 0);
    if (slope > 0) return 2 * winner + 0x00020002u - (on & 0x00010001u);
    return (winner + 0x00010001u) & (on | cuda::nan_two<T>(value));
  }
};

// --- the way out --------------------------------------------------------------------------------------

// How far past a multiple of 16 bytes, in elements, an item's results lie in memory: the first, and how much
// further each channel's and each row's.
template <class E>
struct Past {
  static constexpr int kEach = 16 / sizeof(E);
  int first, by_channel, by_row;

  ZB_DEVICE void set(const E* to, const Strides& s, bool rows_follow) {
    first = past_alignment(to);
    by_channel = static_cast<int>(s.c) & (kEach - 1);
    by_row = rows_follow ? 0 : static_cast<int>(s.h) & (kEach - 1);
  }
};

// Where results of one item lie in shared memory (Layout).
template <class E>
struct Staged {
  static constexpr int kEach = 16 / sizeof(E);
  const Layout& layout;
  const Past<E>& past;
  E* data;

  ZB_DEVICE int shift(int k, int p) const {
    return (past.first + k * past.by_channel + p * past.by_row) & (kEach - 1);
  }
  ZB_DEVICE E* at(int k, int p, int q) const {
    if (layout.along_channels) return data + (p * layout.row + q) * layout.channel + k;
    return data + k * layout.channel + k / 8 * layout.eight + p * layout.row + q + shift(k, p);
  }
  // Channels k and k + 1, k even.
  ZB_DEVICE void put(int k, int p, int q, uint32_t two) const {
    const E a = static_cast<E>(two), b = static_cast<E>(two >> 16);
    E* const to = at(k, p, q);
    if (layout.along_channels) {
      cuda::store_vector(to, cuda::Vector<E, 2>{{a, b}});
    } else {
      *to = a, *at(k + 1, p, q) = b;
    }
  }
};

// Everything staged to `to`, which is the item's first element in memory.
template <class E>
ZB_DEVICE void write_staged(const Staged<E>& staged, int threads, const Item& item, E* to, const Strides& s) {
  constexpr int kEach = Staged<E>::kEach;
  using Piece = cuda::Vector<E, kEach>;
  const Layout& l = staged.layout;
  const int runs = l.along_channels ? l.runs : l.runs * item.channels;
  for (int i = static_cast<int>(threadIdx.x); i < runs * l.pieces; i += threads) {
    const int run = l.by_pieces(i), piece = i - run * l.pieces;
    const int outer = l.by_runs(run), inner = run - outer * l.by_runs.by;
    E* line;
    const E* from;
    int begin = piece * kEach, length;
    bool aligned = true;
    if (l.along_channels) {  // outer, inner: row and column of a window
      if (outer >= item.out_rows || inner >= item.out_columns) continue;
      line = to + outer * s.h + inner * s.w;
      from = staged.at(0, outer, inner);
      length = item.channels;
      aligned = past_alignment(line) == 0;
    } else {  // channel, and row of windows
      if (inner >= item.out_rows) continue;
      line = to + outer * s.c + inner * s.h;
      from = staged.at(outer, inner, 0);
      length = l.rows_follow ? item.out_rows * item.out_columns : item.out_columns;
      begin -= staged.shift(outer, inner);
    }
    if (aligned && begin >= 0 && begin + kEach <= length) {
      cuda::store_vector(line + begin, cuda::load_vector<Piece>(from + begin));
      continue;
    }
#pragma unroll 1
    for (int e = begin < 0 ? 0 : begin; e < begin + kEach && e < length; ++e) line[e] = from[e];
  }
}

// --- a unit's sums, pooled or not, to shared memory ---------------------------------------------------

// Which of a tile's positions exist, where a window has four: bit dy · 2 + dx.
ZB_DEVICE uint32_t existing(const Item& item, int p, int q) {
  uint32_t bits = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int row = 2 * p + j / 2, column = 2 * q + j % 2;
    const bool exists = row >= item.row_begin && row < item.row_end && column >= item.column_begin &&
                        column < item.column_end;
    bits |= static_cast<uint32_t>(exists) << j;
  }
  return bits;
}

// One window of 2×2 positions of two channels, from the sums' pairs.
template <class T>
ZB_DEVICE Best<T> pool_four(uint32_t (&v)[4], uint32_t exists, float slope, bool wants_winner) {
  // At slope 0 the maximum's activation is the activations' maximum, and the winner of a window that is all
  // off doesn't show: one activation for each window is enough.
  if (slope != 0) {
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = activate_two<T>(v[j], slope);
  }
  uint32_t start = 0;
  if (exists != 15) {
    start = exists & 1 ? 0 : exists & 2 ? 1 : exists & 4 ? 2 : 3;
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = exists >> j & 1 ? v[j] : kMinusInfinity<T>;
  }
  Best<T> best{v[0], start * 0x00010001u};
  if (wants_winner) {
#pragma unroll
    for (int j = 1; j < 4; ++j) best.take(v[j], j);
  } else {
    best.value = cuda::most_two<T>(cuda::most_two<T>(v[0], v[1]), cuda::most_two<T>(v[2], v[3]));
  }
  return best;
}

template <class T>
ZB_DEVICE uint32_t average_four(const uint32_t (&v)[4], uint32_t exists, float slope, float divisor) {
  float sums[2] = {0, 0};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint32_t act = exists >> j & 1 ? activate_two<T>(v[j], slope) : 0;
    sums[0] += cuda::unpack<T>(act, 0);
    sums[1] += cuda::unpack<T>(act, 1);
  }
  return cuda::pack_two<T>(sums[0] / divisor, sums[1] / divisor);
}

// Of 32 rows of the product, row 8 · position + i is position (row-major in the 2×2 window) of window i: a
// thread has windows l/4 and l/4 + 8 of the unit whole.
template <class T, int EIGHTS>
ZB_DEVICE void pool_unit(const Geometry& g, const Item& item, const Spot (&spots)[2], float slope,
                         const Sums<EIGHTS>& sums, const Staged<uint16_t>& values,
                         const Staged<uint8_t>& codes, bool wants_winner) {
  const int column = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int b = 0; b < 2; ++b) {
    const int p = spots[b].row, q = spots[b].column;
    if (p >= item.out_rows || q >= item.out_columns) continue;
    const uint32_t exists = existing(item, p, q);
    const bool average = g.pool == Pool::kAvg;
    const float divisor = average ? static_cast<float>(g.divisor(item.p + p, item.q + q)) : 1.f;
#pragma unroll
    for (int n = 0; n < EIGHTS; ++n) {
      uint32_t v[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float(&four)[4] = sums[2 * b + j / 2][n];
        v[j] = cuda::pack_two<T>(four[j % 2 * 2], four[j % 2 * 2 + 1]);
      }
      const int k = n * 8 + column;
      if (average) {
        values.put(k, p, q, average_four<T>(v, exists, slope, divisor));
        continue;
      }
      const Best<T> best = pool_four<T>(v, exists, slope, wants_winner);
      values.put(k, p, q, slope == 0 ? cuda::most_two<T>(best.value, 0) : best.value);
      if (wants_winner) codes.put(k, p, q, best.code(slope));
    }
  }
}

// Activated positions, to the tile's map or, where they are the outputs, to where these are staged.
template <class T, int EIGHTS>
ZB_DEVICE void put_unit(const Geometry& g, const Tile& t, const Item& item, int first, const Spot* spots,
                        float slope, const Sums<EIGHTS>& sums, const Staged<uint16_t>& values,
                        unsigned char* map) {
  const int lane = static_cast<int>(threadIdx.x) % 32, column = lane % 4 * 2;
#pragma unroll
  for (int m = 0; m < 4; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = first + m * 16 + half * 8 + lane / 4;
      const Spot spot = spots[i];
      const bool output = g.pool == Pool::kNone;
      if (output ? spot.row >= item.out_rows || spot.column >= item.out_columns : i >= t.positions()) {
        continue;
      }
#pragma unroll
      for (int n = 0; n < EIGHTS; ++n) {
        const uint32_t sum = cuda::pack_two<T>(sums[m][n][2 * half], sums[m][n][2 * half + 1]);
        const uint32_t act = activate_two<T>(sum, slope);
        if (output) {
          values.put(n * 8 + column, spot.row, spot.column, act);
        } else {
          cuda::store_vector(map + i * t.map_pitch + (n * 8 + column) * 2, act);
        }
      }
    }
  }
}

// --- windows of the tile's map, any that overlap ------------------------------------------------------

// One window's results of eight channels.
struct Eight {
  uint32_t value[4], code[4];
};

template <class T>
ZB_DEVICE Eight pool_window(const Geometry& g, const Tile& t, const Item& item, const unsigned char* map,
                            int p, int q, float slope) {
  const int wide = static_cast<int>(g.w.window);
  const int top = p * static_cast<int>(g.h.window_stride), left = q * static_cast<int>(g.w.window_stride);
  const int row_begin = top < item.row_begin ? item.row_begin - top : 0;
  const int row_end = top + static_cast<int>(g.h.window) > item.row_end ? item.row_end - top
                                                                        : static_cast<int>(g.h.window);
  const int column_begin = left < item.column_begin ? item.column_begin - left : 0;
  const int column_end = left + wide > item.column_end ? item.column_end - left : wide;
  Best<T> best[4];
  float sums[8] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    best[i] = {kMinusInfinity<T>, static_cast<uint32_t>(row_begin * wide + column_begin) * 0x00010001u};
  }
#pragma unroll 1
  for (int a = row_begin; a < row_end; ++a) {
#pragma unroll 1
    for (int b = column_begin; b < column_end; ++b) {
      const int at = (top + a) * t.map_columns + left + b;
      const Four v = cuda::load_vector<Four>(map + at * t.map_pitch);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (g.pool == Pool::kAvg) {
          sums[2 * i] += cuda::unpack<T>(v.v[i], 0);
          sums[2 * i + 1] += cuda::unpack<T>(v.v[i], 1);
        } else {
          best[i].take(v.v[i], a * wide + b);
        }
      }
    }
  }
  Eight result;
  const float divisor = g.pool == Pool::kAvg ? static_cast<float>(g.divisor(item.p + p, item.q + q)) : 1.f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    result.value[i] = g.pool == Pool::kAvg
                          ? cuda::pack_two<T>(sums[2 * i] / divisor, sums[2 * i + 1] / divisor)
                          : best[i].value;
    result.code[i] = best[i].code(slope);
  }
  return result;
}

template <class T, int EIGHTS>
ZB_DEVICE void pool_map(const Geometry& g, const Tile& t, const Item& item, const unsigned char* map,
                        float slope, const Staged<uint16_t>& values, const Staged<uint8_t>& codes,
                        bool wants_winner) {
  for (int i = static_cast<int>(threadIdx.x); i < t.windows() * EIGHTS; i += kThreads<EIGHTS>) {
    const int window = i / EIGHTS, k = i % EIGHTS * 8;
    const int p = t.by_windows(window), q = window - p * t.out_columns;
    if (p >= item.out_rows || q >= item.out_columns || k >= item.channels) continue;
    const Eight eight = pool_window<T>(g, t, item, map + k * 2, p, q, slope);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      values.put(k + 2 * e, p, q, eight.value[e]);
      if (wants_winner) codes.put(k + 2 * e, p, q, eight.code[e]);
    }
  }
}

// --- the kernel ---------------------------------------------------------------------------------------

// Of the whole call, as bits: neither loads nor stores care for the type.
struct Memory {
  const uint16_t *x, *weight;
  uint16_t* y;
  Strides x_strides, w_strides, y_strides;
};

template <class E>
ZB_DEVICE E* first_of(const Item& item, E* to, const Strides& s) {
  return to + item.n * s.n + item.k * s.c + item.p * s.h + item.q * s.w;
}

template <class T, int EIGHTS, bool REGISTERS>
__global__ void __launch_bounds__(kThreads<EIGHTS>, 2)
    first_layer_tensor_core(Geometry g, Tile t, Memory memory, Sinks sinks) {
  constexpr int kBlock = kThreads<EIGHTS>;
  ZB_SHARED_MEMORY(unsigned char, shared);
  auto* const pairs = reinterpret_cast<Pair*>(shared);
  auto* const weight_pairs = reinterpret_cast<uint32_t*>(shared + t.weight_pairs);
  auto* const spots = reinterpret_cast<Spot*>(shared + t.spots);
  unsigned char *const patch = shared + t.patch, *const weights = shared + t.weights,
                       *const map = shared + t.map;
  auto* const raw = reinterpret_cast<uint16_t*>(shared + t.raw);
  // In shared memory they take no registers while the sums run.
  ZB_SHARED_ARRAY(Item, shared_item, 1);
  ZB_SHARED_ARRAY(Past<uint16_t>, value_past, 1);
  ZB_SHARED_ARRAY(Past<uint8_t>, code_past, 1);
  const Item& item = *shared_item;
  const Staged<uint16_t> values{t.y, *value_past, reinterpret_cast<uint16_t*>(shared + t.values)};
  const Staged<uint8_t> codes{t.code, *code_past, shared + t.codes};
  const float slope = static_cast<float>(g.slope);
  const bool wants_winner = sinks.position_code != nullptr || sinks.winner_sig != nullptr;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  auto* const codes_at = static_cast<uint8_t*>(sinks.position_code);  // bytes: windows are small
  const int64_t items = t.items(g);
  write_pairs(g, t, kBlock, pairs, weight_pairs);
  write_spots<REGISTERS>(g, t, kBlock, spots);
  for (int64_t number = blockIdx.x; number < items; number += gridDim.x) {
    if (thread == 0) {
      shared_item->set(g, t, number);
      value_past->set(first_of(item, memory.y, memory.y_strides), memory.y_strides, t.y.rows_follow);
      code_past->set(first_of(item, codes_at, sinks.code_strides), sinks.code_strides, t.code.rows_follow);
    }
    __syncthreads();
    load_weights(g, t, kBlock, item, memory.weight, memory.w_strides, raw);
    load_patch(g, t, kBlock, item, memory.x, memory.x_strides, patch);
    cuda::copy_async_wait<0>();
    __syncthreads();
    pack_weights<EIGHTS>(t, item, raw, weight_pairs, weights);
    __syncthreads();  // the results take the raw weights' place

    for (int unit = thread / 32; unit < t.units; unit += kBlock / 32) {
      int bases[8];
      Sums<EIGHTS> sums;
      if constexpr (REGISTERS) {
        const Spot two[2] = {spots[unit * 16 + lane / 4], spots[unit * 16 + 8 + lane / 4]};
        const int down = static_cast<int>(g.h.stride) * t.patch_pitch,
                  beside = static_cast<int>(g.w.stride * g.Cg) / 2 * 4 + t.odd;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          bases[i] = two[i / 4].offset + (i / 2 % 2 ? down : 0) + (i % 2 ? beside : 0);
        }
        multiply<T, EIGHTS>(t.steps, patch, bases, pairs, weights, sums);
        pool_unit<T, EIGHTS>(g, item, two, slope, sums, values, codes, wants_winner);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) bases[i] = spots[unit * kUnitRows + i * 8 + lane / 4].offset;
        multiply<T, EIGHTS>(t.steps, patch, bases, pairs, weights, sums);
        put_unit<T, EIGHTS>(g, t, item, unit * kUnitRows, spots, slope, sums, values, map);
      }
    }
    __syncthreads();
    if (!REGISTERS && g.pool != Pool::kNone) {
      write_map_bits(g, kBlock, item, sinks, [&](int k, int row, int column) {
        const auto* const at = map + (row * t.map_columns + column) * t.map_pitch;
        return cuda::widen(cuda::bits_as<T>(reinterpret_cast<const uint16_t*>(at)[k]));
      });
      pool_map<T, EIGHTS>(g, t, item, map, slope, values, codes, wants_winner);
      __syncthreads();
    }
    write_staged(values, kBlock, item, first_of(item, memory.y, memory.y_strides), memory.y_strides);
    if (codes_at) {
      write_staged(codes, kBlock, item, first_of(item, codes_at, sinks.code_strides), sinks.code_strides);
    }
    write_output_bits(
        g, kBlock, item, sinks,
        [&](int k, int row, int column) {
          return cuda::widen(cuda::bits_as<T>(*values.at(k, row, column)));
        },
        [&](int k, int row, int column) { return *codes.at(k, row, column) - 1; });
    __syncthreads();  // all are done with the memory that the next item fills
  }
}

// --- the choice of a tile -----------------------------------------------------------------------------

int up_to(int count, int multiple) { return (count + multiple - 1) / multiple * multiple; }

Layout layout_of(const Tile& t, bool along_channels, bool rows_follow, int each) {
  Layout l{};
  l.along_channels = along_channels;
  l.rows_follow = rows_follow && !along_channels;
  if (along_channels) {
    // One piece more than the channels: neighbouring windows meet other banks.
    l.row = t.out_columns, l.channel = t.channel_count + each;
    l.size = t.windows() * l.channel;
    l.runs = t.windows(), l.pieces = static_cast<int>(cuda::pieces(t.channel_count, each));
    l.by_runs = Divider::of(t.out_columns);
  } else {
    const int length = rows_follow ? t.windows() : t.out_columns, run = up_to(length + each - 1, each);
    l.runs = rows_follow ? 1 : t.out_rows, l.pieces = run / each;
    l.row = rows_follow ? t.out_columns : run;
    // Of channels, an odd number of pieces, and one more after eight: those that meet in one store or load
    // then lie in different banks.
    l.channel = (l.runs * l.pieces | 1) * each, l.eight = each;
    l.size = t.channel_count * l.channel + t.channel_count / 8 * l.eight;
    l.by_runs = Divider::of(l.runs);
  }
  l.by_pieces = Divider::of(l.pieces);
  return l;
}

// What one tile's size does not change.
struct Wanted {
  int64_t high, wide;  // windows
  bool registers, along_channels, flat, weights_follow;
  int channel_count;
};

Tile tile_of(const Geometry& g, const Wanted& w, int down, int across) {
  const int channels = static_cast<int>(g.Cg), stride_h = static_cast<int>(g.h.stride),
            stride_w = static_cast<int>(g.w.stride), rows = static_cast<int>(g.h.kernel),
            columns = static_cast<int>(g.w.kernel);
  Tile t{};
  t.out_rows = down, t.out_columns = across;
  t.map_rows = (down - 1) * static_cast<int>(g.h.window_stride) + static_cast<int>(g.h.window);
  t.map_columns = (across - 1) * static_cast<int>(g.w.window_stride) + static_cast<int>(g.w.window);
  t.channel_count = w.channel_count;
  const int windows_each = kUnitRows / 4;
  t.units = w.registers ? (t.windows() + windows_each - 1) / windows_each
                        : (t.positions() + kUnitRows - 1) / kUnitRows;
  t.row_pairs = (columns * channels + 1) / 2;
  t.steps = (rows * t.row_pairs + 7) / 8;
  t.patch_rows = (t.map_rows - 1) * stride_h + rows;
  const int patch_columns = (t.map_columns - 1) * stride_w + columns;
  // A multiple of 32 words and a filter row's pairs: lanes that are a row further then meet the banks that
  // they would meet if it followed on this one.
  const int words = patch_columns * channels / 2 + 1;
  t.patch_pitch = (t.row_pairs % 32 + up_to(words - t.row_pairs % 32, 32)) * 4;
  const int plane = up_to(t.patch_rows * t.patch_pitch, 128);
  t.odd = stride_w * channels % 2 ? plane + 64 : 0;  // half of the banks further
  t.flat = w.flat;
  t.runs = w.flat ? 1 : channels;
  t.run_length = w.flat ? patch_columns * channels : patch_columns;
  t.chunks = (t.run_length + 14) / 8;
  t.weights_follow = w.weights_follow;
  t.taps = channels * rows * columns;
  t.by_runs = Divider::of(t.runs), t.by_chunks = Divider::of(t.chunks), t.by_taps = Divider::of(t.taps);
  t.by_columns = Divider::of(w.registers ? t.out_columns : t.map_columns);
  t.by_windows = Divider::of(t.out_columns);
  const bool rows_follow = across == g.w.out;
  t.y = layout_of(t, w.along_channels, rows_follow, 8);
  t.code = layout_of(t, w.along_channels, rows_follow, 16);
  t.map_pitch = t.channel_count * 2 + 16;

  const bool pools_map = !w.registers && g.pool != Pool::kNone;
  const int spots = t.units * (w.registers ? windows_each : kUnitRows);
  const int staged = up_to(t.y.size * 2, 16) + (g.pool == Pool::kMax ? up_to(t.code.size, 16) : 0);
  t.weight_pairs = t.steps * 4 * static_cast<int>(sizeof(Pair));
  t.spots = t.weight_pairs + t.steps * 8 * 4;
  t.patch = up_to(t.spots + spots * static_cast<int>(sizeof(Spot)), 128);
  t.weights = up_to(t.patch + (t.odd ? t.odd + plane : plane), 128);
  const int multiplied = t.weights + t.steps * t.channel_count * 32;
  // The map takes the raw weights' place, and its results that of the patch; else results come while others
  // still multiply, and take the raw weights' place.
  t.raw = up_to(pools_map && multiplied < t.patch + staged ? t.patch + staged : multiplied, 128);
  t.map = t.raw;
  t.values = pools_map ? t.patch : t.raw;
  t.codes = t.values + up_to(t.y.size * 2, 16);
  const int after = pools_map ? t.positions() * t.map_pitch : staged, raw = t.channel_count * t.taps * 2;
  t.bytes = t.raw + up_to(after > raw ? after : raw, 16);
  t.items_h = cuda::pieces(w.high, down), t.items_w = cuda::pieces(w.wide, across);
  t.channel_blocks = cuda::pieces(g.Kg, t.channel_count);
  return t;
}

// A prediction of how long the call takes with this tile, in clocks of one of an H100's 132 SMs: what its
// share of the items costs. The addends: products at 0.6 mma a clock; about ten instructions for four sums on
// their way out, by four at once; a store for each number of the patch; a load for each value in each window,
// of eight channels; the weights; and what an item waits for.
double predicted_clocks(const Geometry& g, const Wanted& w, const Tile& t) {
  constexpr int64_t kSms = 132;
  const double units = t.units, eights = t.channel_count / 8;
  const double patch = static_cast<double>(t.patch_rows) * t.run_length * t.runs * (t.odd ? 2 : 1);
  const bool pools_map = !w.registers && g.pool != Pool::kNone;
  const double loads =
      pools_map ? static_cast<double>(t.windows() * g.h.window * g.w.window) * eights / 8 : 0;
  const double item = units * t.steps * eights * 4 / 0.6 + units * eights * 40 + patch / 16 + loads * 3 +
                      t.steps * eights * 8 + 800;
  return item * static_cast<double>(cuda::pieces(t.items(g), kSms));
}

Tile best_tile(const Geometry& g, const Wanted& w) {
  Tile best{};
  double least = 0;
  // Equal parts: so many of the rows of windows, so many of a row.
  const int64_t first_w = cuda::pieces(w.wide, kMostWindows), first_h = cuda::pieces(w.high, kMostWindows);
  int64_t last_across = 0;
  for (int64_t i = first_w; i < first_w + 8 || best.units == 0; ++i) {
    const int64_t across = cuda::pieces(w.wide, i);
    if (across == last_across) break;  // 1, and even that does not fit
    last_across = across;
    int64_t last_down = 0;
    for (int64_t j = first_h;; j += j / 4 + 1) {
      const int64_t down = cuda::pieces(w.high, j);
      if (down == last_down) {
        if (down == 1) break;
        continue;
      }
      last_down = down;
      if (down * g.h.window_stride * across * g.w.window_stride > kMostPositions) continue;
      const Tile t = tile_of(g, w, static_cast<int>(down), static_cast<int>(across));
      if (static_cast<size_t>(t.bytes) > kFirstMostShared) continue;
      const double clocks = predicted_clocks(g, w, t);
      if (best.units == 0 || clocks < least) best = t, least = clocks;
    }
    if (across == 1) break;
  }
  return best;
}

const char* can_run(const Call& c) {
  if (c.p.dtype == ScalarType::Float) return "float32";
  if (const char* reason = first_layers_refuse(c)) return reason;
  const Geometry& g = c.g;
  if (g.Kg < 5) return "fewer than 5 output channels in a group";
  if (g.w.kernel > kMostColumns || g.w.stride > kMostColumnStride) {
    return "a kernel of more than 7 columns, or with a column stride above 2";
  }
  return nullptr;
}

template <class T, int EIGHTS, bool REGISTERS>
void start(const Call& c, const Wanted& wanted) {
  const Geometry& g = c.g;
  const Tile tile = best_tile(g, wanted);
  const auto& xs = c.p.x_strides;
  const auto& ws = c.p.w_strides;
  const Memory memory{static_cast<const uint16_t*>(c.x.const_data_ptr()),
                      static_cast<const uint16_t*>(c.weight.const_data_ptr()),
                      static_cast<uint16_t*>(c.out.y.mutable_data_ptr()),
                      {xs[0], xs[1], xs[2], xs[3]},
                      {ws[0], ws[1], ws[2], ws[3]},
                      strides_of(c.out.y)};
  cuda::launch(c.place, "conv_relu_pool first_layer_tensor_core",
               first_layer_tensor_core<T, EIGHTS, REGISTERS>, tile.items(g), kThreads<EIGHTS>,
               static_cast<size_t>(tile.bytes), g, tile, memory, c.sinks);
}

template <class T>
void start(const Call& c) {
  const Geometry& g = c.g;
  const auto& xs = c.p.x_strides;
  const auto& ws = c.p.w_strides;
  const auto is = [](int64_t size, int64_t stride, int64_t wanted) { return size == 1 || stride == wanted; };
  const bool map_bits = g.pool != Pool::kNone && wants_map_bits(c);
  Wanted w{};
  w.high = windows_wanted(g.h, map_bits), w.wide = windows_wanted(g.w, map_bits);
  w.registers = pools_in_registers(c);
  w.along_channels = strides_of(c.out.y).c == 1 && g.K > 1 && g.out_size() > 1;
  w.flat = g.Cg > 1 && g.groups == 1 && xs[1] == 1 && is(g.w.in, xs[3], g.Cg);
  w.weights_follow = is(g.Cg, ws[1], g.h.kernel * g.w.kernel) && is(g.h.kernel, ws[2], g.w.kernel) &&
                     is(g.w.kernel, ws[3], 1) && is(g.K, ws[0], g.Cg * g.h.kernel * g.w.kernel);
  // Four eights of channels where eight would stay half empty.
  const bool narrow = g.Kg <= 32 || (g.Kg < 128 && (g.Kg - 1) % 64 < 32);
  w.channel_count = narrow ? 32 : 64;
  if (narrow) {
    return w.registers ? start<T, 4, true>(c, w) : start<T, 4, false>(c, w);
  }
  return w.registers ? start<T, 8, true>(c, w) : start<T, 8, false>(c, w);
}

void run(const Call& c) {
  if (c.p.dtype == ScalarType::Half) return start<__half>(c);
  start<__nv_bfloat16>(c);
}

}  // namespace

const ForwardKernel kFirstLayerTensorCore{"first layer tensor core", can_run, run};

}  // namespace zb::conv_relu_pool
