// Distances of 32 rows of one batch to 32 of another, by one warp: the tensor cores' products of single bits.
//
// |a xor b| = |a| + |b| - 2 |a and b|, and m16n8k256 adds up |a and b| over 256 bits. An A100 makes 16,384 of
// these products of bits a clock and SM (4,992 TOPS by its data sheet, an instruction of four warps every 8
// clocks). A plain distance counts the bits of 32 units a lane at 16 lanes a clock, and with a full adder
// before the count it takes 4.5 operations at 64 a clock for 64 units: 910 pairs of bits a clock. sm_90 has
// the "and" of this instruction in hardware and not the "xor"; no figure of its speed is published.
//
// What a sum over bits does not ask for is the order of the bits. So lane l holds for row l / 4 the words
// 2·(l % 4) and the next of each 8 words, as one load brings them: both operands put the same word in the
// same place, and no fragment has to be put together.
#pragma once

#include "nap/cuda/signatures.h"

namespace zb::nap {

constexpr int kPairThreads = 128, kPairWarps = kPairThreads / 32;
constexpr int kTile = 32;          // rows of each batch
constexpr int kTiles = kTile / 8;  // products side by side
constexpr int kChunk = 8;          // words that a warp multiplies with one load a row

// |b| - 2 |a and b| of a warp's tile, which |a| makes a distance of: lane l has rows l / 4 + 8·h of a, and
// rows 8·t + 2·(l % 4) + c of b.
struct Relative {
  int32_t of[kTiles][4][2];  // [t][h][c]
};

// CHUNKS: rows of a have no more than these, which are read once; 0: any number, read for each tile.
template <int CHUNKS, bool PAIRS>
class Products {
 public:
  // Takes up rows first, … of a, of which those behind its last count as zeros. The whole warp must call this
  // and `tile`.
  ZB_DEVICE void begin(const Signatures& a, int64_t first) {
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      const int64_t n = first + 8 * h + lane_ / 4;
      row_[h] = n < a.rows ? a.data + n * a.row_step : nullptr;
    }
    if constexpr (CHUNKS > 0) {
#pragma unroll
      for (int h = 0; h < 4; ++h) a_bits_[h] = 0;
#pragma unroll
      for (int chunk = 0; chunk < CHUNKS; ++chunk) {
        load_a(a, chunk, a_[chunk]);
        keep_apart(a_[chunk]);
      }
      join(a_bits_);
    }
  }

  // Of row l / 4 + 8·h, after `tile`.
  ZB_DEVICE int32_t a_bits(int h) const { return static_cast<int32_t>(a_bits_[h]); }

  // The distance that `relative` is of row l / 4 + 8·h; of no row where there is none in b.
  ZB_DEVICE int32_t distance(int h, int32_t relative) const {
    return static_cast<int32_t>(a_bits_[h] + static_cast<uint32_t>(relative));
  }

  // Against rows first, … of b; behind the last of them INT32_MAX.
  ZB_DEVICE void tile(const Signatures& a, const Signatures& b, int64_t first, Relative& found) {
    uint32_t common[kTiles][2][4] = {}, b_bits[kTiles] = {};
    Columns columns;
    const uint64_t* const own = b.data + (first + lane_ / 4) * b.row_step;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) columns.row[t] = own + 8 * t * b.row_step, columns.live[t] = true;
    if (first + kTile > b.rows) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) columns.live[t] = first + 8 * t + lane_ / 4 < b.rows;
    }
    if constexpr (CHUNKS > 0) {
      Pair<PAIRS> words[CHUNKS][kTiles];
#pragma unroll
      for (int chunk = 0; chunk < CHUNKS; ++chunk) load_b(b, columns, chunk, words[chunk]);
#pragma unroll
      for (int chunk = 0; chunk < CHUNKS; ++chunk) multiply(a_[chunk], words[chunk], common, b_bits);
    } else {
#pragma unroll
      for (int h = 0; h < 4; ++h) a_bits_[h] = 0;
#pragma unroll 1
      for (int64_t chunk = 0; chunk * kChunk < b.words; ++chunk) {
        Pair<PAIRS> words[kTiles];
        load_a(a, chunk, a_[0]);
        load_b(b, columns, chunk, words);
        multiply(a_[0], words, common, b_bits);
      }
      join(a_bits_);
    }
    join(b_bits);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if (!columns.live[t]) b_bits[t] = INT32_MAX;
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const uint32_t bits = __shfl_sync(cuda::kWholeWarp, b_bits[t], 4 * (2 * (lane_ % 4) + c));
#pragma unroll
        for (int h = 0; h < 4; ++h)
          found.of[t][h][c] = static_cast<int32_t>(bits - 2 * common[t][h / 2][h % 2 * 2 + c]);
      }
    }
  }

 private:
  // Of 16 rows the first word or the second of a lane's pair: [j][m], as the product takes them.
  struct Fragments {
    uint32_t of[2][2][4];
  };

  // Of b, rows first + 8·t + l / 4.
  struct Columns {
    const uint64_t* row[kTiles];
    bool live[kTiles];
  };

  ZB_DEVICE static uint32_t low(uint64_t v) { return static_cast<uint32_t>(v); }
  ZB_DEVICE static uint32_t high(uint64_t v) { return static_cast<uint32_t>(v >> 32); }

  ZB_DEVICE int64_t word_of(int64_t chunk) const { return chunk * kChunk + 2 * (lane_ % 4); }

  ZB_DEVICE static uint32_t bits_of_pair(const Pair<PAIRS>& p) {
    return static_cast<uint32_t>(__popcll(p.v[0]) + __popcll(p.v[1]));
  }

  // One chunk of the four rows of a as fragments, and the rows' bits.
  ZB_DEVICE void load_a(const Signatures& a, int64_t chunk, Fragments& to) {
    Pair<PAIRS> words[4];
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      if (row_[h]) words[h].load(a, row_[h], word_of(chunk));
      a_bits_[h] += bits_of_pair(words[h]);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        to.of[j][h / 2][h % 2] = low(words[h].v[j]);
        to.of[j][h / 2][h % 2 + 2] = high(words[h].v[j]);
      }
    }
  }

  // Shuffles, each lane to itself: they part the fragments' registers from those of the loads, of which the
  // compiler would else copy each fragment together again for each product.
  ZB_DEVICE void keep_apart(Fragments& f) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      uint32_t& part = f.of[i / 8][i / 4 % 2][i % 4];
      part = __shfl_sync(cuda::kWholeWarp, part, lane_);
    }
  }

  ZB_DEVICE void load_b(const Signatures& b, const Columns& columns, int64_t chunk,
                        Pair<PAIRS> (&to)[kTiles]) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if (columns.live[t]) to[t].load(b, columns.row[t], word_of(chunk));
    }
  }

  ZB_DEVICE static void multiply(const Fragments& a, const Pair<PAIRS> (&b)[kTiles],
                                 uint32_t (&common)[kTiles][2][4], uint32_t (&b_bits)[kTiles]) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      b_bits[t] += bits_of_pair(b[t]);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int m = 0; m < 2; ++m)
          cuda::count_common_bits(common[t][m], a.of[j][m], low(b[t].v[j]), high(b[t].v[j]));
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
  Fragments a_[CHUNKS > 0 ? CHUNKS : 1];
  uint32_t a_bits_[4];
};

// Calls choose(CHUNKS, PAIRS), of integral constants, as two batches ask for it.
template <class Choose>
auto kernel_for(const Signatures& a, const Signatures& b, Choose&& choose) {
  constexpr std::integral_constant<int, 0> any{};
  constexpr std::integral_constant<int, 1> one{};
  constexpr std::integral_constant<int, 2> two{};
  constexpr std::true_type pairs{};
  constexpr std::false_type words{};
  if (!in_pairs(a) || !in_pairs(b)) return b.words <= 2 * kChunk ? choose(two, words) : choose(any, words);
  if (b.words <= kChunk) return choose(one, pairs);
  return b.words <= 2 * kChunk ? choose(two, pairs) : choose(any, pairs);
}

// How many rows of b one warp takes: parts enough that the device has several warps an SM to run, whole
// tiles.
inline int64_t rows_of_a_part(const cuda::Place& place, int64_t N, int64_t M, int64_t most) {
  constexpr int64_t kWarpsOfAnSm = 16;
  const int64_t wanted = cuda::pieces(kWarpsOfAnSm * place.processors(), cuda::pieces(N, kTile));
  const int64_t rows = cuda::pieces(cuda::pieces(M, wanted), kTile) * kTile;
  return rows < most ? rows : most;
}

}  // namespace zb::nap
