// nap_hamming on the CPU: tasks of some queries against some rows, by tiles of rows; distances.inc has
// the loops.
#include "common/register.h"
#include "nap/cpu/database.h"

namespace zb::nap {
namespace {

constexpr int64_t kTilesBytes = 1 << 14;  // of tiles side by side, so that runs of results are long
constexpr int64_t kTaskRows = 2048;       // of b

// Distances of a group of queries to a tile; of both, some may be filling.
struct Block {
  int64_t queries, rows;
  int32_t* out;
  int64_t stride;
};

void block_distances(const DistanceLoops& loops, const uint64_t* queries, int64_t query_stride,
                     const uint64_t* tile, int64_t words, bool add, const Block& block) {
  if (block.queries >= kTileQueries && block.rows >= kTileRows) {
    loops.tile_distances(queries, query_stride, tile, words, add, block.out, block.stride);
    return;
  }
  int32_t whole[kTileQueries * kTileRows];
  loops.tile_distances(queries, query_stride, tile, words, false, whole, kTileRows);
  for (int64_t q = 0; q < std::min(block.queries, kTileQueries); ++q) {
    for (int64_t r = 0; r < std::min(block.rows, kTileRows); ++r) {
      int32_t& out = block.out[q * block.stride + r];
      out = (add ? out : 0) + whole[q * kTileRows + r];
    }
  }
}

void hamming(const Pairs& pairs, const Tensor& a_any, const Tensor& b_any, Tensor& out) {
  const Signatures a(a_any), b(b_any);
  const DistanceLoops loops = distance_loops();
  const int64_t N = pairs.N, M = pairs.M, words = pairs.words;
  auto* distances = static_cast<int32_t*>(out.mutable_data_ptr());
  const int64_t chunk = std::min(N, PackedQueries::count_for(loops, words));
  const int64_t segments = ceil_div(M, kTaskRows);
  const int64_t tile_words = std::max<int64_t>(std::min(words, kTileWords), 1);
  const int64_t tile_size = kTileRows * tile_words * loops.parts;
  const int64_t tiles = std::clamp<int64_t>(kTilesBytes / (8 * tile_size), 1, kTaskRows / kTileRows);

  const auto few = [&](int64_t n, int64_t begin, int64_t end) {
    loops.row_distances(a.row(n), b.row(begin), b.stride, end - begin, words, distances + n * M + begin);
  };
  const auto many = [&](int64_t first, int64_t count, int64_t begin, int64_t end) {
    const PackedQueries queries(loops, a, first, count, words);
    uint64_t* tile = tile_memory(loops, tiles, words);
    for (int64_t row = begin; row < end; row += tiles * kTileRows) {
      const int64_t here = ceil_div(std::min(end - row, tiles * kTileRows), kTileRows);
      for (int64_t w = 0; w == 0 || w < words; w += kTileWords) {
        const int64_t these = std::min(words - w, kTileWords);
        for (int64_t t = 0; t < here; ++t) {
          const int64_t at = row + t * kTileRows;
          loops.pack_tile(b.row(at) + w, b.stride, std::min(end - at, kTileRows), these,
                          tile + t * tile_size);
        }
        for (int64_t g = 0; g < queries.groups(); ++g) {
          const int64_t q = g * kTileQueries;
          for (int64_t t = 0; t < here; ++t) {
            const int64_t at = row + t * kTileRows;
            block_distances(loops, queries.at(g, w), queries.stride(), tile + t * tile_size, these, w > 0,
                            {count - q, end - at, distances + (first + q) * M + at, M});
          }
        }
      }
    }
  };
  parallel_tasks(ceil_div(N, chunk) * segments, [&](int64_t task) {
    const int64_t first = task / segments * chunk, count = std::min(chunk, N - first);
    const int64_t begin = task % segments * kTaskRows, end = std::min(begin + kTaskRows, M);
    if (count > kFewQueries) return many(first, count, begin, end);
    for (int64_t n = first; n < first + count; ++n) few(n, begin, end);
  });
  note_kernel(loops.hamming);
}

const Registration registration("CPU", {ZB_NAP_HAMMING(hamming)});

}  // namespace
}  // namespace zb::nap
