// conv → act → pool on tensor cores (mma.sync) for few input channels, in half precision: what first_layer.cu
// does in float32. tiles.h, which multiplies many channels, reads each tap's channels as 16-byte chunks; of
// three channels that would be mostly padding, and x would be read once for every tap.
//
// Floor (bytes): x, weight and y once (+ code: 1 byte a pooled output, sig: 1 bit a unit).
// Floor (operations): N·K·H1·W1 sums, in fragments of 16 positions × 8 channels × 16 taps. On an H100 (3.35
// TB/s, 132 SMs at 1.7 GHz), if mma.sync m16n8k16 comes to 0.6 of its peak of one a clock and SM, and 128
// bytes of shared memory a clock and SM, which feed the tensor cores:
//
//            x + y     bytes     mma                fragments' loads     binds
//   mnist1   3.6 MB    1.1 µs    0.10 M   0.75 µs   151 k    0.67 µs     bytes
//   cifar1   5.0 MB    1.5 µs    0.13 M   0.97 µs   131 k    0.58 µs     bytes
//   stem     5.6 MB    1.7 µs    0.50 M   3.7 µs    502 k    2.2 µs      multiplying
//
// (loads in wavefronts of 128 bytes.) Above these come the instructions of activation and pool (cifar1: about
// 15 for eight sums, 35 with codes: 0.5 or 1.4 µs), what tiles compute twice (stem: 1.15 to 1.3 times the
// map), and, in so short a kernel, the launch and what a block waits for its first loads.
//
// Ladder
//   1  A block stages its part of x once; a warp multiplies 64 positions × 64 (or 32) channels. Predicted, of
//      the phases above one after the other: mnist1 2.5 µs, cifar1 3.1 µs, stem 10 µs (6 where two blocks on
//      an SM hide each other's loads, pools and stores). Emulated and compiled; not yet run on a card.
//   Next: partial maxima of 2×2 squares for overlapping windows, which would be read 4 times instead of 9;
//      weights packed once a call for large filters; fewer rows that tiles share.
//
// The patch of x lies in shared memory as rows of columns × channels, so the taps of one filter row follow on
// each other, and so do the shared dimension's: two neighbours are one 32-bit load from a position's first
// tap on. Where that may be an odd number (odd stride · channels), there is a second copy shifted by one. A
// filter row of odd length ends in half a pair: the other half is masked, since 0 times what lies there would
// be NaN where that is not finite. So 3×3 filters of 3
// channels take 2 steps of 16 taps and not 3, 7×7 take 10 and not 13. What a warp reads at once lies in
// different banks (Fours), but for places where a row of the tile ends among eight positions (a load
// takes 1.0 wavefronts for cifar1, 1.14 for the stem, 1.31 for mnist1), and but for 2 channels and for even
// channels at stride 2.
//
// The weights are copied as they are and laid out by the block: a separate kernel's launch would take as long
// as this one. Windows of 2×2 that don't overlap are pooled in registers. Others, averages, and calls that
// want bits of the un-pooled map, are pooled from the block's part of the map in shared memory; where windows
// overlap the borders of two blocks, both compute the positions that they share.
#include "conv_relu_pool/cuda/first_layer.h"

#include "common/cuda/ptx.h"

namespace zb::conv_relu_pool {
namespace {

constexpr int kUnitRows = 64;  // map positions that a warp multiplies at once: four fragments of 16
constexpr int kMostColumns = 7, kMostColumnStride = 2;  // of a kernel
constexpr int kMostPositions = 4096;                    // of a tile
constexpr int kMostWindows = 256;                       // in a row or column of it

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
// neighbours in memory, or [channel][window]; then what is neighbours in memory (a row of windows, or all of
// a channel's) is a run that starts as many elements past a multiple of 16 bytes as it does in memory, so
// that 16 bytes at once go from one to the other.
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
  int row_pairs, steps;         // of a filter row (Fours); of 16 numbers
  int patch_rows, patch_pitch;  // pitch in bytes
  int odd;                      // distance of the patch's second copy in bytes; 0: there is none
  bool flat;                    // whether a pixel's channels are neighbours in x, and pixels too
  int runs, run_length, chunks;
  bool weights_follow;
  int taps;
  Divider by_runs, by_chunks, by_columns, by_windows, by_taps;
  Layout y, code, of_map;  // the last: all positions as one row of windows
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

// Of a step's two fours of pairs, lane l%4 = i reads the i-th of each: where they lie from a position's first
// tap on, and which of the two halves count.
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

// Where in the raw weights of a channel number e of filter row r lies: x's order is row, column, channel,
// that of the weights channel, row, column.
ZB_DEVICE uint32_t raw_tap(const Geometry& g, int r, int e) {
  const int channels = static_cast<int>(g.Cg), s = e / channels, c = e - s * channels;
  return static_cast<uint32_t>((c * static_cast<int>(g.h.kernel) + r) * static_cast<int>(g.w.kernel) + s);
}

// The product's shared dimension: pairs of neighbouring numbers of the filter rows (columns × channels follow
// on each other), in the order in which lanes read them, four at once. Lanes l/4 read at eight positions, an
// odd number of words apart where channels · stride is odd: a four in one row then meets no bank twice, and
// as little does one in a column of pairs, with rows 8 words (mod 16) apart. So fours lie along rows, the
// rest of at most three columns in columns, and what is left of that along its longer side.
struct Fours {
  int rows, row_pairs;

  ZB_HOST_DEVICE int along_rows() const { return rows * (row_pairs / 4); }
  ZB_HOST_DEVICE int along_columns() const { return rows / 4 * (row_pairs % 4); }
  ZB_HOST_DEVICE int count() const {
    const int high = rows % 4, wide = row_pairs % 4;
    const int left = high == 2 && wide == 2 ? 1 : high < wide ? high : wide;
    return along_rows() + along_columns() + left;
  }
  // Filter row and pair of one of a four's lanes; false where there is none.
  ZB_DEVICE bool find(int four, int lane, int& row, int& pair) const {
    const int high = rows % 4, wide = row_pairs % 4;
    row = pair = 0;
    if (four >= count()) return false;
    if (four < along_rows()) {
      row = four / (row_pairs / 4), pair = four % (row_pairs / 4) * 4 + lane;
      return true;
    }
    four -= along_rows(), pair = row_pairs - wide;
    if (four < along_columns()) {
      row = four / wide * 4 + lane, pair += four % wide;
      return true;
    }
    four -= along_columns(), row = rows - high;
    if (high == 2 && wide == 2) {
      row += lane / 2, pair += lane % 2;
      return true;
    }
    const bool down = wide <= high;
    row += down ? lane : four, pair += down ? four : lane;
    return lane < (down ? high : wide);
  }
};

ZB_DEVICE void write_pairs(const Geometry& g, const Tile& t, int threads, Pair* pairs,
                           uint32_t* weight_pairs) {
  const Fours fours{static_cast<int>(g.h.kernel), t.row_pairs};
  const int row_length = static_cast<int>(g.w.kernel * g.Cg);
  for (int j = static_cast<int>(threadIdx.x); j < t.steps * 8; j += threads) {
    int r, p;
    const bool exists = fours.find(j / 4, j % 4, r, p);
    if (!exists) fours.find(j / 4, 0, r, p);  // another lane's address costs nothing
    const bool both = 2 * p + 1 < row_length;
    Pair& pair = pairs[j / 8 * 4 + j % 4];
    pair.offset[j / 4 % 2] = r * t.patch_pitch + p * 4;
    // What lies beside is another tap's number: 0 times it would be NaN where it is not finite.
    pair.mask[j / 4 % 2] = !exists ? 0 : both ? 0xffffffffu : 0xffffu;
    weight_pairs[j] =
        (exists ? raw_tap(g, r, 2 * p) : kNoTap) | (exists && both ? raw_tap(g, r, 2 * p + 1) : kNoTap) << 16;
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
#pragma unroll 1
    for (int i = thread * 8; i < begin; i += threads * 8) cuda::copy_async(raw + i, weight + i, true);
  }
  const int rows = static_cast<int>(g.h.kernel), columns = static_cast<int>(g.w.kernel);
#pragma unroll 2
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
  const int pixel = t.flat ? static_cast<int>(g.Cg) : 1;  // numbers of it in a run
  const int left = static_cast<int>(item.left * g.w.stride - g.w.padding) * pixel;
  const int length = static_cast<int>(g.w.in) * pixel;
  const int64_t each = t.flat ? 1 : s.w;
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
      const int w = ((left + past) & ~(kEach - 1)) - past + (line - row * t.chunks) * kEach;
      column[b] = w - left;
      if (exists && each == 1 && w >= 0 && w + kEach <= length) {
        chunk[b] = cuda::load_vector<Four>(from + w);
      } else {
        chunk[b] = {};
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
          const bool inside = exists && w + e >= 0 && w + e < length && column[b] + e < t.run_length;
          if (inside) chunk[b].v[e / 2] |= static_cast<uint32_t>(from[int64_t{w + e} * each]) << e % 2 * 16;
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
};

// Where a thread's pairs of channels of one window go: k, k + 1 (k even), the same eight further, and so on.
template <class E>
struct Cursor {
  static constexpr bool kShifts = Staged<E>::kEach > 8;
  E *even, *odd;
  int step;
  int even_shift, odd_shift;  // what every other step is off, since bytes' runs start anywhere in 16

  ZB_DEVICE Cursor(const Staged<E>& staged, int k, int p, int q)
      : even(staged.at(k, p, q)), odd(staged.at(k + 1, p, q)), step(8), even_shift(0), odd_shift(0) {
    if (staged.layout.along_channels) return;
    step = 8 * staged.layout.channel + staged.layout.eight;
    even_shift = staged.shift(k + 8, p) - staged.shift(k, p);
    odd_shift = staged.shift(k + 9, p) - staged.shift(k + 1, p);
  }
  ZB_DEVICE void put(int eight, uint32_t two) const {
    even[eight * step + (kShifts && eight % 2 ? even_shift : 0)] = static_cast<E>(two);
    odd[eight * step + (kShifts && eight % 2 ? odd_shift : 0)] = static_cast<E>(two >> 16);
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

// One window of 2×2 positions of two channels, from the sums' pairs, as far as it exists.
template <class T>
ZB_DEVICE Best<T> pool_four(uint32_t (&v)[4], uint32_t first, float slope, bool wants_winner) {
  // At slope 0 the maximum's activation is the activations' maximum, and the winner of a window that is all
  // off doesn't show: one activation for each window is enough.
  if (slope != 0) {
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = activate_two<T>(v[j], slope);
  }
  Best<T> best{v[0], first};
  if (wants_winner) {
#pragma unroll
    for (int j = 1; j < 4; ++j) best.take(v[j], j);
  } else {
    best.value = cuda::most_two<T>(cuda::most_two<T>(v[0], v[1]), cuda::most_two<T>(v[2], v[3]));
  }
  return best;
}

// Of 32 rows of the product, row 8 · position + i is position (row-major in the 2×2 window) of window i: a
// thread has windows l/4 and l/4 + 8 of the unit whole. Positions outside the map are set to -inf.
template <class T, int EIGHTS>
ZB_DEVICE void pool_unit(const Item& item, const Spot (&spots)[2], float slope, Sums<EIGHTS>& sums,
                         const Staged<uint16_t>& values, const Staged<uint8_t>& codes, bool wants_winner) {
  const int column = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int b = 0; b < 2; ++b) {
    const int p = spots[b].row, q = spots[b].column;
    if (p >= item.out_rows || q >= item.out_columns) continue;
    const uint32_t exists = existing(item, p, q);
    uint32_t first = 0;
    if (exists != 15) {
      first = (exists & 1 ? 0 : exists & 2 ? 1 : exists & 4 ? 2 : 3) * 0x00010001u;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (exists >> j & 1) continue;
#pragma unroll
        for (int n = 0; n < EIGHTS; ++n) {
          float (&four)[4] = sums[2 * b + j / 2][n];
          four[j % 2 * 2] = four[j % 2 * 2 + 1] = -INFINITY;
        }
      }
    }
    const Cursor<uint16_t> value(values, column, p, q);
    const Cursor<uint8_t> code(codes, column, p, q);
#pragma unroll
    for (int n = 0; n < EIGHTS; ++n) {
      uint32_t v[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float (&four)[4] = sums[2 * b + j / 2][n];
        v[j] = cuda::pack_two<T>(four[j % 2 * 2], four[j % 2 * 2 + 1]);
      }
      const Best<T> best = pool_four<T>(v, first, slope, wants_winner);
      value.put(n, slope == 0 ? cuda::most_two<T>(best.value, 0) : best.value);
      if (wants_winner) code.put(n, best.code(slope));
    }
  }
}

// Activated positions, to the tile's map or, where they are the outputs, to where these are staged.
template <class T, int EIGHTS>
ZB_DEVICE void put_unit(const Geometry& g, const Tile& t, const Item& item, int unit, const Spot* spots,
                        float slope, const Sums<EIGHTS>& sums, const Staged<uint16_t>& values,
                        const Staged<uint16_t>& map) {
  const int lane = static_cast<int>(threadIdx.x) % 32, column = lane % 4 * 2;
#pragma unroll
  for (int m = 0; m < 4; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = unit * kUnitRows + m * 16 + half * 8 + lane / 4;
      const auto act = [&](int n) {
        return activate_two<T>(cuda::pack_two<T>(sums[m][n][2 * half], sums[m][n][2 * half + 1]), slope);
      };
      if (g.pool == Pool::kNone) {
        const Spot spot = spots[i];
        if (spot.row >= item.out_rows || spot.column >= item.out_columns) continue;
        const Cursor<uint16_t> value(values, column, spot.row, spot.column);
#pragma unroll
        for (int n = 0; n < EIGHTS; ++n) value.put(n, act(n));
      } else if (i < t.positions()) {
        uint16_t* const to = map.at(column, 0, i);
#pragma unroll
        for (int n = 0; n < EIGHTS; ++n) cuda::store_vector(to + n * 8, act(n));
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
ZB_DEVICE Eight pool_window(const Geometry& g, const Tile& t, const Item& item, const Staged<uint16_t>& map,
                            int k, int p, int q, float slope, bool wants_winner) {
  const int high = static_cast<int>(g.h.window), wide = static_cast<int>(g.w.window);
  const int top = p * static_cast<int>(g.h.window_stride), left = q * static_cast<int>(g.w.window_stride);
  const int row_begin = top < item.row_begin ? item.row_begin - top : 0;
  const int row_end = top + high > item.row_end ? item.row_end - top : high;
  const int column_begin = left < item.column_begin ? item.column_begin - left : 0;
  const int column_end = left + wide > item.column_end ? item.column_end - left : wide;
  const bool average = g.pool == Pool::kAvg;
  Best<T> best[4];
  float sums[8] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    best[i] = {kMinusInfinity<T>, static_cast<uint32_t>(row_begin * wide + column_begin) * 0x00010001u};
  }
#pragma unroll 1
  for (int a = row_begin; a < row_end; ++a) {
    const uint16_t* from = map.at(k, 0, (top + a) * t.map_columns + left + column_begin);
#pragma unroll 1
    for (int b = column_begin; b < column_end; ++b, from += map.layout.channel) {
      const Four v = cuda::load_vector<Four>(from);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (average) {
          sums[2 * i] += cuda::unpack<T>(v.v[i], 0);
          sums[2 * i + 1] += cuda::unpack<T>(v.v[i], 1);
        } else if (wants_winner) {
          best[i].take(v.v[i], a * wide + b);
        } else {
          best[i].value = cuda::most_two<T>(best[i].value, v.v[i]);
        }
      }
    }
  }
  Eight result;
  const float divisor = average ? static_cast<float>(g.divisor(item.p + p, item.q + q)) : 1.f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    result.value[i] =
        average ? cuda::pack_two<T>(sums[2 * i] / divisor, sums[2 * i + 1] / divisor) : best[i].value;
    result.code[i] = best[i].code(slope);
  }
  return result;
}

template <class T, int EIGHTS>
ZB_DEVICE void pool_map(const Geometry& g, const Tile& t, const Item& item, const Staged<uint16_t>& map,
                        float slope, const Staged<uint16_t>& values, const Staged<uint8_t>& codes,
                        bool wants_winner) {
  for (int i = static_cast<int>(threadIdx.x); i < t.windows() * EIGHTS; i += kThreads<EIGHTS>) {
    const int window = i / EIGHTS, k = i % EIGHTS * 8;
    const int p = t.by_windows(window), q = window - p * t.out_columns;
    if (p >= item.out_rows || q >= item.out_columns || k >= item.channels) continue;
    const Eight eight = pool_window<T>(g, t, item, map, k, p, q, slope, wants_winner);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      Cursor<uint16_t>(values, k + 2 * e, p, q).put(0, eight.value[e]);
      if (wants_winner) Cursor<uint8_t>(codes, k + 2 * e, p, q).put(0, eight.code[e]);
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
  unsigned char *const patch = shared + t.patch, *const weights = shared + t.weights;
  auto* const raw = reinterpret_cast<uint16_t*>(shared + t.raw);
  // In shared memory they take no registers while the sums run.
  ZB_SHARED_ARRAY(Item, shared_item, 1);
  ZB_SHARED_ARRAY(Past<uint16_t>, value_past, 1);
  ZB_SHARED_ARRAY(Past<uint8_t>, code_past, 1);
  const Item& item = *shared_item;
  const Staged<uint16_t> values{t.y, *value_past, reinterpret_cast<uint16_t*>(shared + t.values)};
  const Staged<uint16_t> map{t.of_map, *value_past, reinterpret_cast<uint16_t*>(shared + t.map)};
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
        pool_unit<T, EIGHTS>(item, two, slope, sums, values, codes, wants_winner);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) bases[i] = spots[unit * kUnitRows + i * 8 + lane / 4].offset;
        multiply<T, EIGHTS>(t.steps, patch, bases, pairs, weights, sums);
        put_unit<T, EIGHTS>(g, t, item, unit, spots, slope, sums, values, map);
      }
    }
    __syncthreads();
    if (!REGISTERS && g.pool != Pool::kNone) {
      write_map_bits(g, kBlock, item, sinks, [&](int k, int row, int column) {
        return cuda::widen(cuda::bits_as<T>(*map.at(k, 0, row * t.map_columns + column)));
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
        [&](int k, int row, int column) { return cuda::widen(cuda::bits_as<T>(*values.at(k, row, column))); },
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
  t.steps = (Fours{rows, t.row_pairs}.count() + 1) / 2;
  t.patch_rows = (t.map_rows - 1) * stride_h + rows;
  const int patch_columns = (t.map_columns - 1) * stride_w + columns;
  // Banks (Fours); with four channels positions are 4 words apart, and rows must be an odd number apart.
  const int words = patch_columns * channels / 2 + 1, beyond = channels == 4 ? 5 : 8;
  t.patch_pitch = (beyond + up_to(words < beyond ? 0 : words - beyond, 16)) * 4;
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
  t.of_map.along_channels = true, t.of_map.channel = t.channel_count + 8;

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
  const int after = pools_map ? t.positions() * t.of_map.channel * 2 : staged,
            raw = t.channel_count * t.taps * 2;
  t.bytes = t.raw + up_to(after > raw ? after : raw, 16);
  t.items_h = cuda::pieces(w.high, down), t.items_w = cuda::pieces(w.wide, across);
  t.channel_blocks = cuda::pieces(g.Kg, t.channel_count);
  return t;
}

// A prediction of how long the call takes with this tile, in clocks of one of an H100's 132 SMs. Of an item:
// products at 0.6 mma a clock; some 30 instructions for the eight sums that become two results, four at once;
// a store for each number of the patch; reading the windows of the map; packing the weights. Two blocks share
// an SM, and what one waits for at first (800 clocks) passes while the other works; one alone works at two
// thirds of the speed.
double predicted_clocks(const Geometry& g, const Wanted& w, const Tile& t) {
  constexpr int64_t kSms = 132;
  const double eights = t.channel_count / 8;
  const double patch = static_cast<double>(t.patch_rows) * t.run_length * t.runs * (t.odd ? 2 : 1);
  const bool pools_map = !w.registers && g.pool != Pool::kNone;
  const double reads =
      pools_map ? static_cast<double>(t.windows() * g.h.window * g.w.window) * eights * 5 / 32 : 0;
  const double item = t.units * eights * (t.steps * 4 / 0.6 + 16) + patch / 16 + reads + t.steps * eights * 8;
  const auto items = static_cast<double>(cuda::pieces(t.items(g), kSms));  // of one SM
  return items > 1 ? items * item + 400 * items : 1.5 * item + 800;
}

Tile best_tile(const Geometry& g, const Wanted& w) {
  Tile best{};
  double least = 0;
  // Equal parts: so many of the rows of windows, so many of a row.
  const int64_t first_w = cuda::pieces(w.wide, kMostWindows), first_h = cuda::pieces(w.high, kMostWindows);
  int64_t last_across = 0;
  for (int64_t i = first_w; i < first_w + 8 || best.units == 0; ++i) {
    const int64_t across = cuda::pieces(w.wide, i);
    if (across == last_across) continue;
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
  constexpr int64_t kMost = 1 << 28;  // columns are counted in 32 bits
  if (g.w.in + 2 * g.w.padding >= kMost) return "an image too large";
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
  w.registers = pools_in_registers(c) && g.pool == Pool::kMax;  // averages are rare, and their code long
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
