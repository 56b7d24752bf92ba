// A convolution as tiles of a matrix product, with activation and pooling in the epilogue: 128 positions of
// the un-pooled map times COLUMNS output channels a block. linear_relu is the 1×1 case.
//
// The product runs over 16-byte chunks: x is NHWC inside, so a chunk is 8 halves (4 floats) of neighbouring
// channels at one tap, and weights are [K, taps, channels]. Chunks go by cp.async through a ring of kStages
// buffers; a chunk outside the image is zeros.
//
// Rows are numbered so that a thread owns pool windows whole: of every 32 rows, row 8·position + i is
// position (row-major in the 2×2 window) of window i. Both ways of multiplying below hold rows b·32 + i +
// 8·(0..3), so activation and pool happen in registers, and only pooled values pass through shared memory on
// their way out.
#pragma once

#include "common/cuda/bits.h"
#include "common/cuda/ptx.h"
#include "conv_relu_pool/cuda/forward.h"

namespace zb::conv_relu_pool {

constexpr int kTileRows = 128;  // map positions of a block
constexpr int kChunk = 16;      // bytes that one copy brings
constexpr int kStepChunks = 4;  // chunks of a row in a buffer: 32 halves or 16 floats
constexpr int kRowBytes = kChunk * kStepChunks;
constexpr int kStages = 3;
constexpr int kPassColumns = 64;  // of a block's columns, staged at once on the way out
static_assert(kPassColumns == 1 << 6 && kTileRows == 1 << 7, "shifts below");

struct TileInput {
  const unsigned char* x;       // [N, H, W, groups · chunks] chunks
  const unsigned char* weight;  // [K, taps, chunks] chunks
  int64_t n, h, w;              // distances in x, in bytes
  int chunks;                   // chunks of one group's channels at one tap
};

// Byte of a chunk in a buffer. The exclusive or spreads eight neighbouring rows over all banks.
ZB_DEVICE int chunk_at(int row, int chunk) { return row * kRowBytes + ((chunk ^ (row >> 1 & 3)) * kChunk); }

// What the epilogue knows of a pool window (of a map position, without a pool).
struct Window {
  int64_t n, at;    // image and position in the plane; n < 0: there is none
  int64_t y, code;  // where its results lie, channel 0 of all (in place of a code: where its residual does)
  float divisor;    // of average pooling
  uint32_t exists;  // bit dy·2 + dx: whether this position lies in the map
};

// --- two ways to multiply -----------------------------------------------------------------------------
//
// sums[b][c] are four rows (b·32 + i + 8·position) of one column each; `put` is called for each of a pass,
// with the column as 8·eighth + within.

// Tensor cores: 2 × 2 warps of 64 rows × COLUMNS/2 columns.
template <class T, int COLUMNS>
struct TensorCoreProduct {
  static constexpr int kMostColumns = 128, kThreads = 128;
  static constexpr int kFragments = COLUMNS / 16;             // of 8 columns, in a warp
  static constexpr int kBlocksPerSm = COLUMNS == 64 ? 3 : 2;  // as many as the registers allow
  float sums[4][kFragments][4];  // [16 rows][8 columns]: rows l/4, l/4 + 8; columns 2·(l%4), + 1

  ZB_DEVICE void clear() {
#pragma unroll
    for (int m = 0; m < 4; ++m) {
#pragma unroll
      for (int n = 0; n < kFragments; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[m][n][i] = 0;
      }
    }
  }

  // `rows` and `columns`: one buffer each.
  ZB_DEVICE void step(const unsigned char* rows, const unsigned char* columns) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
    for (int k = 0; k < kStepChunks; k += 2) {
      uint32_t a[4][4], b[kFragments][2];
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        cuda::load_matrices(a[m], rows + chunk_at(warp % 2 * 64 + m * 16 + lane % 16, k + lane / 16));
        if constexpr (sizeof(T) == 4) {
#pragma unroll
          for (int i = 0; i < 4; ++i) a[m][i] = cuda::round_tf32(a[m][i]);
        }
      }
#pragma unroll
      for (int n = 0; n < kFragments; n += 2) {
        uint32_t four[4];
        const int column = warp / 2 * (COLUMNS / 2) + n * 8 + lane / 16 * 8 + lane % 8;
        cuda::load_matrices(four, columns + chunk_at(column, k + lane / 8 % 2));
        b[n][0] = four[0], b[n][1] = four[1], b[n + 1][0] = four[2], b[n + 1][1] = four[3];
      }
#pragma unroll
      for (int m = 0; m < 4; ++m) {
#pragma unroll
        for (int n = 0; n < kFragments; ++n) {
          cuda::multiply_fragments<T>(sums[m][n], a[m], b[n][0], b[n][1]);
        }
      }
    }
  }

  template <class Put>
  ZB_DEVICE void each(int pass, Put&& put) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
    for (int n = 0; n < kFragments; ++n) {
      if (n / 4 != pass) continue;
#pragma unroll
      for (int b = 0; b < 2; ++b) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float four[4] = {sums[2 * b][n][e], sums[2 * b][n][2 + e], sums[2 * b + 1][n][e],
                                 sums[2 * b + 1][n][2 + e]};
          put(warp % 2 * 2 + b, lane / 4, warp / 2 * 4 + n % 4, lane % 4 * 2 + e, four);
        }
      }
    }
  }
};

// Ordinary multiply-adds in full float32, 8 rows × COLUMNS/16 columns a thread, summed in ascending order. A
// warp reads 4 rows and 8 columns of the buffers at once: no bank twice.
template <class T, int COLUMNS>
struct FmaProduct {
  static constexpr int kMostColumns = 64;  // with 128 and two blocks on an SM registers would spill
  static constexpr int kThreads = 256, kEach = COLUMNS / 16, kBlocksPerSm = 2;
  float sums[2][4][kEach];  // [b][position][column low() + 16·j]

  // Where a thread stands in the 16 × 16 threads of the tile.
  ZB_DEVICE static int low() { return static_cast<int>(threadIdx.x % 8 + threadIdx.x / 32 % 2 * 8); }
  ZB_DEVICE static int high() { return static_cast<int>(threadIdx.x / 8 % 4 + threadIdx.x / 64 * 4); }

  ZB_DEVICE void clear() {
#pragma unroll
    for (int b = 0; b < 2; ++b) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) sums[b][i][j] = 0;
      }
    }
  }

  ZB_DEVICE void step(const unsigned char* rows, const unsigned char* columns) {
    using Four = cuda::Vector<float, 4>;
#pragma unroll 1
    for (int k = 0; k < kStepChunks; ++k) {
#pragma unroll
      for (int b = 0; b < 2; ++b) {  // all 8 rows at once would not fit into the registers
        Four a[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = (high() / 8 + 2 * b) * 32 + high() % 8 + 8 * i;
          a[i] = cuda::load_vector<Four>(rows + chunk_at(row, k));
        }
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
          const Four column = cuda::load_vector<Four>(columns + chunk_at(low() + 16 * j, k));
#pragma unroll
          for (int e = 0; e < 4; ++e) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              sums[b][i][j] = cuda::multiply_add(a[i].v[e], column.v[e], sums[b][i][j]);
            }
          }
        }
      }
    }
  }

  template <class Put>
  ZB_DEVICE void each(int pass, Put&& put) const {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (16 * j % (COLUMNS / 2) / 32 != pass) continue;
      const int eighth = 16 * j / (COLUMNS / 2) * 4 + 16 * j % 32 / 8 + low() / 8;
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        const float four[4] = {sums[b][0][j], sums[b][1][j], sums[b][2][j], sums[b][3][j]};
        put(high() / 8 + 2 * b, high() % 8, eighth, low() % 8, four);
      }
    }
  }
};

// --- the way in ---------------------------------------------------------------------------------------

// Copies the chunks of one thread, step by step: one chunk of every 4 in a row, of THREADS/4 rows.
template <int THREADS, int COLUMNS, bool POOLED>
class TileLoader {
 public:
  ZB_DEVICE TileLoader(const TileInput& in, const Geometry& g, int64_t group, int64_t first_window,
                       int64_t first_column)
      : in_(in), g_(g), left_(static_cast<int>(g.h.kernel * g.w.kernel) * in.chunks) {
    chunk_ = static_cast<int>(threadIdx.x) % kStepChunks;
    row_ = static_cast<int>(threadIdx.x) / kStepChunks;
    at_ = channel_ = chunk_;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = row_ + i * kApart;
      const int64_t window = first_window + (POOLED ? row / 32 * 8 + row % 8 : row);
      const int64_t plane = g.out_size(), n = window / plane, at = window % plane;
      int64_t y = at / g.w.out, z = at % g.w.out;
      if (POOLED) y = 2 * y + row / 16 % 2, z = 2 * z + row / 8 % 2;
      const bool exists = n < g.N && y < g.h.map && z < g.w.map;
      image_[i] = in.x + (exists ? n * in.n : 0) + group * in.chunks * kChunk;
      top_[i] = exists ? static_cast<int>(y * g.h.stride - g.h.padding) : kNowhere;
      left_edge_[i] = static_cast<int>(z * g.w.stride - g.w.padding);
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int64_t column = first_column + row_ + i * kApart;
      has_column_ |= static_cast<uint32_t>(column < g.Kg) << i;
    }
    weight_ = in.weight + (group * g.Kg + first_column + row_) * left_ * kChunk;
    settle();
  }

  // The next step's chunks, into one buffer.
  ZB_DEVICE void load(unsigned char* rows, unsigned char* columns) {
    const bool more = at_ < left_;
    const int dy = tap_row_ * static_cast<int>(g_.h.dilation),
              dz = tap_column_ * static_cast<int>(g_.w.dilation);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int y = top_[i] + dy, z = left_edge_[i] + dz;
      const bool inside = more && y >= 0 && y < g_.h.in && z >= 0 && z < g_.w.in;
      const int64_t offset = inside ? y * in_.h + z * in_.w + channel_ * kChunk : 0;
      cuda::copy_async(rows + chunk_at(row_ + i * kApart, chunk_), image_[i] + offset, inside);
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const bool inside = more && (has_column_ >> i & 1);
      const int64_t offset = inside ? (int64_t{i} * kApart * left_ + at_) * kChunk : 0;
      cuda::copy_async(columns + chunk_at(row_ + i * kApart, chunk_), weight_ + offset, inside);
    }
    at_ += kStepChunks;
    channel_ += kStepChunks;
    settle();
  }

 private:
  static constexpr int kApart = THREADS / kStepChunks;
  static constexpr int kRows = kTileRows / kApart, kColumns = COLUMNS / kApart;
  static constexpr int kNowhere = -(1 << 30);

  // On to the tap that the channel counter has run into.
  ZB_DEVICE void settle() {
    while (channel_ >= in_.chunks) {
      channel_ -= in_.chunks;
      if (++tap_column_ == g_.w.kernel) tap_column_ = 0, ++tap_row_;
    }
  }

  const TileInput& in_;
  const Geometry& g_;
  const int left_;  // chunks in all
  const unsigned char* image_[kRows];
  const unsigned char* weight_;
  int top_[kRows], left_edge_[kRows];
  int chunk_, row_, at_, channel_, tap_row_ = 0, tap_column_ = 0;
  uint32_t has_column_ = 0;
};

// Multiplies step by step, while chunks of the next ones come through a ring of kStages buffers, each
// ROW_BYTES for rows and the rest for columns. All threads must call; afterwards the memory is free.
template <int ROW_BYTES, int BUFFER_BYTES, class Loader, class Product>
ZB_DEVICE void sum_steps(unsigned char* shared, int steps, Loader& loader, Product& product) {
  const auto load = [&](int step) {
    unsigned char* const buffer = shared + step % kStages * BUFFER_BYTES;
    if (step < steps) loader.load(buffer, buffer + ROW_BYTES);
    cuda::copy_async_commit();
  };
#pragma unroll
  for (int step = 0; step < kStages - 1; ++step) load(step);
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    cuda::copy_async_wait<kStages - 2>();
    __syncthreads();  // this step's chunks are there for all, and all are done with the buffer filled next
    load(step + kStages - 1);
    __syncwarp();  // its lanes may have walked apart; what follows is for the whole warp
    const unsigned char* const buffer = shared + step % kStages * BUFFER_BYTES;
    product.step(buffer, buffer + ROW_BYTES);
  }
  cuda::copy_async_wait<0>();
  __syncthreads();
}

// --- the way out --------------------------------------------------------------------------------------

// Results leave by 16 bytes where a run of that many lies in one piece: of channels, or of windows of one
// image in one plane. Otherwise one by one, lanes beside each other.
enum class Runs { kNone, kChannels, kWindows };

template <class T>
Runs runs_of(const Geometry& g, const T* y, const Strides& s) {
  constexpr int64_t kEach = 16 / sizeof(T);
  const auto whole = [](int64_t stride) { return stride % kEach == 0; };
  if (reinterpret_cast<uintptr_t>(y) % 16 != 0 || !whole(s.n)) return Runs::kNone;
  if (s.c == 1 && whole(s.h) && whole(s.w) && whole(g.Kg)) return Runs::kChannels;
  const bool dense = s.w == 1 && (s.h == g.w.out || g.h.out == 1);
  return dense && whole(g.out_size()) && whole(s.c) ? Runs::kWindows : Runs::kNone;
}

template <class T, int COLUMNS, bool POOLED, bool ADDS>
struct TileOutput {
  static_assert(!(POOLED && ADDS), "a residual is added where results are written, which are pooled by then");
  static constexpr int kWindows = POOLED ? kTileRows / 4 : kTileRows;
  static constexpr int kPitch = kWindows + 4;
  static constexpr int kStaged = kPassColumns * kPitch + kPassColumns / 8 * 4;
  static constexpr int kEach = 16 / sizeof(T);  // results of a run
  float* values;                                // [kStaged], by staged()
  uint16_t* marks;                              // the same: winner | positions on << 4 | where it passes << 8
  Window* windows;                              // [kWindows]

  ZB_DEVICE explicit TileOutput(unsigned char* shared)
      : values(reinterpret_cast<float*>(shared)),
        marks(reinterpret_cast<uint16_t*>(shared + kStaged * sizeof(float))),
        windows(reinterpret_cast<Window*>(shared + pipeline_bytes())) {}

  static constexpr size_t pipeline_bytes() {
    constexpr size_t bytes = kStaged * (sizeof(float) + (POOLED ? sizeof(uint16_t) : 0));
    constexpr size_t ring = size_t{kStages} * (kTileRows + COLUMNS) * kRowBytes;
    return bytes > ring ? bytes : ring;
  }
  static constexpr size_t shared_bytes() { return pipeline_bytes() + kWindows * sizeof(Window); }

  // Where a value is staged. The pitch is 4 (mod 8), so that a warp that puts values meets no bank twice;
  // four more after every eighth column do the same for lanes that each read a run of channels.
  ZB_DEVICE static int staged(int eighth, int within, int window) {
    return eighth * (8 * kPitch + 4) + within * kPitch + window;
  }
  ZB_DEVICE static int staged(int column, int window) { return staged(column / 8, column % 8, window); }

  // `c`: the strides of the code, or of the residual.
  ZB_DEVICE void describe(const Geometry& g, const Strides& c, const Strides& y, int64_t first_window) const {
    const int i = static_cast<int>(threadIdx.x);
    if (i >= kWindows) return;
    const int64_t plane = g.out_size(), n = (first_window + i) / plane, at = (first_window + i) % plane;
    const int64_t p = at / g.w.out, q = at % g.w.out;
    Window w{n < g.N ? n : -1, at, n * y.n + p * y.h + q * y.w, n * c.n + p * c.h + q * c.w, 1, 1};
    if (POOLED) {
      const bool below = 2 * p + 1 < g.h.map, beside = 2 * q + 1 < g.w.map;
      w.exists = 1u | (beside ? 2u : 0) | (below ? 4u : 0) | (below && beside ? 8u : 0);
      if (g.pool == Pool::kAvg) w.divisor = static_cast<float>(g.divisor(p, q));
    }
    windows[i] = w;
  }

  // Activation and pool of four rows of one column, on to shared memory.
  ZB_DEVICE void put(const Geometry& g, float slope, int b, int i, int eighth, int within,
                     const float (&four)[4]) const {
    float act[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      act[j] = cuda::rounded<T>(four[j]);
      if (!ADDS) act[j] = cuda::activate<T>(act[j], slope);
    }
    if (!POOLED) {
#pragma unroll
      for (int j = 0; j < 4; ++j) values[staged(eighth, within, b * 32 + i + 8 * j)] = act[j];
      return;
    }
    const int window = b * 8 + i;
    const uint32_t exists = windows[window].exists;
    float result = act[0];
    uint32_t winner = 0, on = 0, pass = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (!(exists >> j & 1)) continue;
      on |= static_cast<uint32_t>(act[j] > 0) << j;
      pass |= static_cast<uint32_t>(passes(act[j], slope)) << j;
      if (j == 0) continue;
      if (g.pool == Pool::kAvg) {
        result += act[j];
      } else if (act[j] > result || act[j] != act[j]) {
        // The first of equals wins, and the last NaN, as in torch's max_pool2d.
        result = act[j];
        winner = j;
      }
    }
    if (g.pool == Pool::kAvg) result = cuda::rounded<T>(result / windows[window].divisor);
    values[staged(eighth, within, window)] = result;
    marks[staged(eighth, within, window)] = static_cast<uint16_t>(winner | on << 4 | pass << 8);
  }

  ZB_DEVICE uint64_t code(float slope, int at) const {
    return static_cast<uint64_t>(position_code(values[at], slope, marks[at] & 3));
  }
  ZB_DEVICE void sign_winner(const Geometry& g, const Sinks& sinks, int64_t k, int column, int window) const {
    const int at = staged(column, window);
    if (!(values[at] > 0)) return;
    const Window& w = windows[window];
    cuda::or_bits(sinks.winner_sig, w.n * sinks.image_bits + (k * g.out_size() + w.at) * sinks.unit_bits,
                  1u + (marks[at] & 3));
  }

  // Adds the residual of channel k to one staged pre-activation, and activates it.
  ZB_DEVICE void add(const Added<T>& added, float slope, int64_t k, int at, int window) const {
    values[at] = cuda::activate<T>(added.to(values[at], windows[window].code + k * added.at.c), slope);
  }

  // One result: channel k of all, staged at `column`.
  ZB_DEVICE void write(const Geometry& g, const Sinks& sinks, const Added<T>& added, float slope, T* y,
                       const Strides& s, int64_t k, int column, int window) const {
    const int at = staged(column, window);
    if (ADDS) add(added, slope, k, at, window);
    y[windows[window].y + k * s.c] = cuda::narrow<T>(values[at]);
    if (!POOLED) return;
    if (sinks.position_code) {  // a 2×2 window's codes are bytes
      uint8_t* const codes = static_cast<uint8_t*>(sinks.position_code);
      codes[windows[window].code + k * sinks.code_strides.c] = static_cast<uint8_t>(code(slope, at));
    }
    if (sinks.winner_sig) sign_winner(g, sinks, k, column, window);
  }

  // A run of results, from this one on; `down` and `beside` step from one to the next. Codes have the memory
  // format of y.
  ZB_DEVICE void write_run(const Geometry& g, const Sinks& sinks, const Added<T>& added, float slope, T* y,
                           const Strides& s, int64_t k, int column, int window, int down, int beside) const {
    const int at = staged(column, window), step = down * kPitch + beside;
    if (ADDS) {  // the residual lies in the same runs: see start_tiles
      const auto more =
          cuda::load_vector<cuda::Vector<T, kEach>>(added.from + windows[window].code + k * added.at.c);
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        float& value = values[at + e * step];
        value = cuda::activate<T>(cuda::rounded<T>(value + cuda::widen(more.v[e])), slope);
      }
    }
    cuda::Vector<T, kEach> run;
#pragma unroll
    for (int e = 0; e < kEach; ++e) run.v[e] = cuda::narrow<T>(values[at + e * step]);
    cuda::store_vector(y + windows[window].y + k * s.c, run);
    if (!POOLED) return;
    if (sinks.position_code) {
      uint64_t codes = 0;
#pragma unroll 1
      for (int e = 0; e < kEach; ++e) codes |= code(slope, at + e * step) << 8 * e;
      cuda::Vector<uint8_t, kEach> whole;
      memcpy(&whole, &codes, kEach);
      cuda::store_vector(
          static_cast<uint8_t*>(sinks.position_code) + windows[window].code + k * sinks.code_strides.c,
          whole);
    }
    if (sinks.winner_sig) {
#pragma unroll 1
      for (int e = 0; e < kEach; ++e) {
        sign_winner(g, sinks, k + e * down, column + e * down, window + e * beside);
      }
    }
  }

  // Bits of the un-pooled map: lanes hold neighbouring windows, and those of one row of windows are
  // neighbouring pairs of bits in two rows of the map. All lanes of the warp must call.
  ZB_DEVICE static void write_map_bits(const Geometry& g, uint64_t* words, int64_t plane, int64_t at,
                                       bool live, uint32_t positions) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int64_t p = at / g.w.out, q = at % g.w.out, left = g.w.out - q;
    const uint32_t row = left < 32 ? (1u << left) - 1 : 0xffffffffu;
#pragma unroll
    for (int dy = 0; dy < 2; ++dy) {
      const uint32_t even = __ballot_sync(cuda::kWholeWarp, live && (positions >> 2 * dy & 1));
      const uint32_t odd = __ballot_sync(cuda::kWholeWarp, live && (positions >> (2 * dy + 1) & 1));
      if (!live || (lane != 0 && q != 0)) continue;
      const uint64_t bits = cuda::spread(even >> lane & row) | cuda::spread(odd >> lane & row) << 1;
      const int64_t first = plane + (2 * p + dy) * g.w.map + 2 * q;
      cuda::or_bits(words, first, static_cast<uint32_t>(bits));
      cuda::or_bits(words, first + 32, static_cast<uint32_t>(bits >> 32));
    }
  }
};

// --- the kernel ---------------------------------------------------------------------------------------

template <class T, template <class, int> class Product, int COLUMNS, bool POOLED, bool ADDS>
__global__ void __launch_bounds__(Product<T, COLUMNS>::kThreads, Product<T, COLUMNS>::kBlocksPerSm)
    tiles(TileInput in, Geometry g, Sinks sinks, Added<T> added, T* __restrict__ y, Strides y_strides,
          Runs runs) {
  using Multiply = Product<T, COLUMNS>;
  using Out = TileOutput<T, COLUMNS, POOLED, ADDS>;
  constexpr int kThreads = Multiply::kThreads;
  constexpr int kBuffer = (kTileRows + COLUMNS) * kRowBytes;
  ZB_SHARED_MEMORY(unsigned char, shared);
  const Out out(shared);
  const float slope = static_cast<float>(g.slope);
  const int64_t plane = g.out_size(), across = cuda::pieces(g.Kg, COLUMNS);
  const int64_t items = g.groups * across * cuda::pieces(g.N * plane, Out::kWindows);
  const int steps = static_cast<int>(cuda::pieces(g.h.kernel * g.w.kernel * in.chunks, kStepChunks));
  const bool along_channels = runs == Runs::kNone ? y_strides.c == 1 : runs == Runs::kChannels;
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    // Neighbouring blocks share positions of x and take different channels.
    const int64_t group = item / across % g.groups;
    const int64_t first_window = item / across / g.groups * Out::kWindows,
                  first_column = item % across * COLUMNS;
    TileLoader<kThreads, COLUMNS, POOLED> loader(in, g, group, first_window, first_column);
    out.describe(g, ADDS ? added.at : sinks.code_strides, y_strides, first_window);
    Multiply product;
    product.clear();
    sum_steps<kTileRows * kRowBytes, kBuffer>(shared, steps, loader, product);

#pragma unroll
    for (int pass = 0; pass < COLUMNS / kPassColumns; ++pass) {
      product.each(pass, [&](int b, int i, int eighth, int within, const float (&four)[4]) {
        out.put(g, slope, b, i, eighth, within, four);
      });
      __syncthreads();
      const auto channel = [&](int column) {  // of a staged column, in its group
        return first_column + column / 32 * (COLUMNS / 2) + pass * 32 + column % 32;
      };
      const auto live = [&](int column, int window) {
        return out.windows[window].n >= 0 && channel(column) < g.Kg;
      };
      const int each_bits = runs == Runs::kNone ? 0 : sizeof(T) == 4 ? 2 : 3;  // of results at once
      const int shift = (along_channels ? 6 : POOLED ? 5 : 7) - each_bits;
      const int mask = (1 << shift) - 1;
#pragma unroll 1
      for (int j = static_cast<int>(threadIdx.x); j < kPassColumns * Out::kWindows >> each_bits;
           j += kThreads) {
        const int fast = (j & mask) << each_bits, slow = j >> shift;
        const int column = along_channels ? fast : slow, window = along_channels ? slow : fast;
        if (!live(column, window)) continue;
        const int64_t k = group * g.Kg + channel(column);
        if (each_bits == 0) {
          out.write(g, sinks, added, slope, y, y_strides, k, column, window);
        } else {
          out.write_run(g, sinks, added, slope, y, y_strides, k, column, window, along_channels,
                        !along_channels);
        }
      }
      if (ADDS) __syncthreads();  // what follows reads the sums
      if (sinks.output_sig || sinks.map_sig || sinks.map_code) {
        // Bits lie in NCHW order: a warp takes neighbouring positions, or channels where a plane is one
        // position.
#pragma unroll 1
        for (int j = static_cast<int>(threadIdx.x); j < kPassColumns * Out::kWindows; j += kThreads) {
          const int column = plane == 1 ? j % kPassColumns : j / Out::kWindows;
          const int window = plane == 1 ? j / kPassColumns : j % Out::kWindows;
          const Window& w = out.windows[window];
          const int64_t k = group * g.Kg + channel(column);
          const bool there = live(column, window);
          const float value = out.values[Out::staged(column, window)];
          if (sinks.output_sig) {
            const int64_t at = plane == 1 ? column % 32 : w.at, length = plane == 1 ? 32 : plane;
            cuda::or_lanes(sinks.output_sig, w.n * sinks.image_bits + k * plane + w.at, at, length, there,
                           value > 0);
          }
          if (POOLED) {
            const uint32_t marks = out.marks[Out::staged(column, window)];
            if (sinks.map_sig) {
              Out::write_map_bits(g, sinks.map_sig, w.n * sinks.image_bits + k * g.map_size(), w.at, there,
                                  marks >> 4 & 15);
            }
            if (sinks.map_code) {
              Out::write_map_bits(g, sinks.map_code, (w.n * g.K + k) * sinks.plane_bits, w.at, there,
                                  marks >> 8 & 15);
            }
          } else if (sinks.map_code) {
            cuda::or_lanes(sinks.map_code, (w.n * g.K + k) * sinks.plane_bits + w.at, w.at, plane, there,
                           passes(value, slope));
          }
        }
      }
      __syncthreads();
    }
  }
}

template <class T, template <class, int> class Product, int COLUMNS, bool POOLED, bool ADDS = false>
void start_tiles(const cuda::Place& place, const char* name, const TileInput& in, const Geometry& g,
                 const Sinks& sinks, T* y, const Strides& y_strides, const Added<T>& added = {}) {
  using Out = TileOutput<T, COLUMNS, POOLED, ADDS>;
  Runs runs = runs_of(g, y, y_strides);
  if (ADDS && runs_of(g, added.from, added.at) != runs) runs = Runs::kNone;
  const int64_t items =
      g.groups * cuda::pieces(g.Kg, COLUMNS) * cuda::pieces(g.N * g.out_size(), Out::kWindows);
  cuda::launch(place, name, tiles<T, Product, COLUMNS, POOLED, ADDS>, items, Product<T, COLUMNS>::kThreads,
               Out::shared_bytes(), in, g, sinks, added, y, y_strides, runs);
}

// Whether half of 128 columns would be empty.
inline bool half_empty(const Geometry& g) { return (g.Kg - 1) % 128 < 64 && g.Kg < 256; }

// Starts the kernel for the number of output channels and the pool at hand.
template <class T, template <class, int> class Product>
void run_tiles(const cuda::Place& place, const char* name, const TileInput& in, const Geometry& g,
               const Sinks& sinks, T* y, const Strides& y_strides) {
  const auto start = [&](auto pooled) {
    constexpr bool kPooled = decltype(pooled)::value;
    if constexpr (Product<T, 64>::kMostColumns == 128) {
      if (!half_empty(g)) {
        return start_tiles<T, Product, 128, kPooled>(place, name, in, g, sinks, y, y_strides);
      }
    }
    start_tiles<T, Product, 64, kPooled>(place, name, in, g, sinks, y, y_strides);
  };
  if (g.pool == Pool::kNone) {
    start(std::false_type{});
  } else {
    start(std::true_type{});
  }
}

// The same of a convolution without a pool to which a residual is added.
template <class T, template <class, int> class Product>
void run_adding_tiles(const cuda::Place& place, const char* name, const TileInput& in, const Geometry& g,
                      const Sinks& sinks, const Added<T>& added, T* y, const Strides& y_strides) {
  if constexpr (Product<T, 64>::kMostColumns == 128) {
    if (!half_empty(g)) {
      return start_tiles<T, Product, 128, false, true>(place, name, in, g, sinks, y, y_strides, added);
    }
  }
  start_tiles<T, Product, 64, false, true>(place, name, in, g, sinks, y, y_strides, added);
}

}  // namespace zb::conv_relu_pool
