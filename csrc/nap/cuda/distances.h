// Distances of 32 rows of one batch to 32 of another, by one warp, on the tensor cores' products of single bits.
//
// |a xor b| = |a| + |b| - 2 |a and b|, and m16n8k256 adds up |a and b| over 256 bits. An A100 makes 16,384 of
// these products of bits a clock and SM (4,992 TOPS by its data sheet, an instruction of four warps every 8
// clocks). A plain distance counts the bits of 32 units a lane at 16 lanes a clock, and with a full adder before
// the count it takes 4.5 operations at 64 a clock for 64 units: 910 pairs of bits a clock. sm_90 has the "and"
// of this instruction in hardware and not the "xor"; no figure of its speed is published.
//
// What a sum over bits does not ask for is the order of the bits. So lane l holds for row l / 4 the words
// 2·(l % 4) and the next of each 8 words, as one load brings them: both operands put the same word in the
// same place, and no fragment has to be put together.
#pragma once

#include "nap/cuda/signatures.h"

namespace zb::nap {

constexpr int kPairThreads = 128, kPairWarps = kPairThreads / 32;
constexpr int kTile = 32;               // rows of each batch
constexpr int kTiles = kTile / 8;       // products side by side
constexpr int kChunk = 8;               // words that a warp multiplies with one load a row
constexpr int kResidentChunks = 2;      // of rows of a, that registers hold

// Distances of a warp's tile: lane l has rows l / 4 + 8·h of a, and rows 8·t + 2·(l % 4) + c of b.
struct Distances {
  uint32_t of[kTiles][4][2];  // [t][h][c]
};

// RESIDENT: rows of a have at most 16 words, which are read once.
template <bool RESIDENT, bool PAIRS>
class Products {
 public:
  // Takes up rows first, … of a. The whole warp must call this and `tile`.
  ZB_DEVICE void begin(const Signatures& a, int64_t first) {
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      const int64_t n = first + 8 * h + lane_ / 4;
      row_[h] = n < a.rows ? a.data + n * a.row_step : nullptr;
    }
    if constexpr (RESIDENT) {
#pragma unroll
      for (int h = 0; h < 4; ++h) a_bits_[h] = 0;
#pragma unroll
      for (int chunk = 0; chunk < kResidentChunks; ++chunk) load(a, chunk, a_[chunk]);
      join(a_bits_);
    }
  }

  // Their distances to rows first, … of b; rows behind the last of b count as zeros.
  ZB_DEVICE void tile(const Signatures& a, const Signatures& b, int64_t first, Distances& found) {
    uint32_t common[kTiles][2][4] = {}, b_bits[kTiles] = {};
    const uint64_t* column[kTiles];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const int64_t m = first + 8 * t + lane_ / 4;
      column[t] = m < b.rows ? b.data + m * b.row_step : nullptr;
    }
    if constexpr (RESIDENT) {
#pragma unroll
      for (int chunk = 0; chunk < kResidentChunks; ++chunk) {
        if (chunk * kChunk < b.words) multiply(b, column, chunk, a_[chunk], common, b_bits);
      }
    } else {
#pragma unroll
      for (int h = 0; h < 4; ++h) a_bits_[h] = 0;
#pragma unroll 1
      for (int64_t chunk = 0; chunk * kChunk < b.words; ++chunk) {
        load(a, chunk, a_[0]);
        multiply(b, column, chunk, a_[0], common, b_bits);
      }
      join(a_bits_);
    }
    join(b_bits);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const uint32_t bits = __shfl_sync(cuda::kWholeWarp, b_bits[t], 4 * (2 * (lane_ % 4) + c));
#pragma unroll
        for (int h = 0; h < 4; ++h)
          found.of[t][h][c] = a_bits_[h] + bits - 2 * common[t][h / 2][h % 2 * 2 + c];
      }
    }
  }

 private:
  // Words of one chunk of the four rows of a, and their bits.
  ZB_DEVICE void load(const Signatures& a, int64_t chunk, Pair<PAIRS> (&to)[4]) {
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      to[h] = {};
      if (row_[h]) to[h].load(a, row_[h], chunk * kChunk + 2 * (lane_ % 4));
      a_bits_[h] += bits_of_pair(to[h]);
    }
  }

  ZB_DEVICE static uint32_t bits_of_pair(const Pair<PAIRS>& p) {
    return static_cast<uint32_t>(__popcll(p.v[0]) + __popcll(p.v[1]));
  }

  ZB_DEVICE static void multiply(const Signatures& b, const uint64_t* const (&column)[kTiles], int64_t chunk,
                                 const Pair<PAIRS> (&a)[4], uint32_t (&common)[kTiles][2][4],
                                 uint32_t (&b_bits)[kTiles]) {
    Pair<PAIRS> words[kTiles];
    const int64_t word = chunk * kChunk + 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if (column[t]) words[t].load(b, column[t], word);
    }
    const auto low = [](uint64_t v) { return static_cast<uint32_t>(v); };
    const auto high = [](uint64_t v) { return static_cast<uint32_t>(v >> 32); };
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      b_bits[t] += bits_of_pair(words[t]);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const uint64_t upper = a[2 * m].v[j], lower = a[2 * m + 1].v[j];
          const uint32_t rows[4] = {low(upper), low(lower), high(upper), high(lower)};
          cuda::count_common_bits(common[t][m], rows, low(words[t].v[j]), high(words[t].v[j]));
        }
      }
    }
  }

  // Sums over the four lanes of a row.
  ZB_DEVICE static void join(uint32_t (&bits)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      bits[i] += __shfl_xor_sync(cuda::kWholeWarp, bits[i], 1);
      bits[i] += __shfl_xor_sync(cuda::kWholeWarp, bits[i], 2);
    }
  }

  const int lane_ = static_cast<int>(threadIdx.x) % 32;
  const uint64_t* row_[4];
  Pair<PAIRS> a_[RESIDENT ? kResidentChunks : 1][4];
  uint32_t a_bits_[4];
};

// Chooses the kernel for two batches: kernels<RESIDENT, PAIRS>.
template <class Choose>
auto kernel_for(const Signatures& a, const Signatures& b, Choose&& choose) {
  const bool pairs = in_pairs(a) && in_pairs(b);
  if (b.words <= kResidentChunks * kChunk)
    return pairs ? choose(std::true_type{}, std::true_type{}) : choose(std::true_type{}, std::false_type{});
  return pairs ? choose(std::false_type{}, std::true_type{}) : choose(std::false_type{}, std::false_type{});
}

// How many rows of b one warp takes: parts enough that the device has several warps an SM to run, whole tiles.
inline int64_t rows_of_a_part(const cuda::Place& place, int64_t N, int64_t M, int64_t most) {
  constexpr int64_t kWarpsOfAnSm = 16;
  const int64_t wanted = cuda::pieces(kWarpsOfAnSm * place.processors(), cuda::pieces(N, kTile));
  const int64_t rows = cuda::pieces(cuda::pieces(M, wanted), kTile) * kTile;
  return rows < most ? rows : most;
}

}  // namespace zb::nap
