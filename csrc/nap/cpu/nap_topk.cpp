// nap_topk on the CPU: the database streams past in tiles, and each query keeps what may be among its k
// nearest.
//
// A key is distance << bits | row: no two are equal, so that the k smallest are one certain set however
// the work is divided, and ties go to the lower row. A query keeps up to 2 k + 64 keys; full, they are
// cut to the k smallest, whose largest distance is the limit from then on: rows come in ascending order,
// so that one at the limit has lost its tie.
//
// The least time is a count of bits for each word of each pair, or one read of the database. Measured,
// 200 queries of 200,000 x 1024 bits, k = 5, ms of processor time on one thread (EPYC, Zen 4, a busy
// machine), FAISS IndexBinaryFlat's (its own AVX-512 build) beside it:
//   vpopcntdq 43.5 (FAISS 165); AVX-512 without it 82.5; AVX2 88.3 (FAISS 175)
// One query of 20,000 rows: 0.16 by rows as they lie, each row's lanes added by themselves; 0.14 by
// tiles; 0.074 with the lanes of eight rows added together (FAISS 0.082; with AVX2 0.11, FAISS 0.083).
// Four queries: 0.14 by tiles (FAISS 0.30; with AVX2 0.26, FAISS 0.31).
#include "common/register.h"
#include "nap/cpu/database.h"

namespace zb::nap {
namespace {

constexpr int64_t kKeyBytes = 1 << 25;      // of one task's keys, but for kTileQueries queries
constexpr int64_t kLeastSegment = 1 << 12;  // rows that pay for keys of their own
constexpr int64_t kRun = 16 * kTileRows;    // rows at a time where there are few queries

struct Search {
  Search(const Pairs& p, int64_t k)
      : pairs(p), k(k), capacity(2 * k + 64), row_bits(bits_of(p.M - 1)), loops(distance_loops()) {}
  Pairs pairs;
  int64_t k, capacity, row_bits;
  DistanceLoops loops;
};

// The nearest rows that one query has met.
class Nearest {
 public:
  void start(int64_t* keys) { keys_ = keys, count_ = 0, limit_ = INT32_MAX; }

  // The kTileRows rows from `row` on, of which `valid` are there.
  void meet(const Search& search, const int32_t* distances, int64_t row, int64_t valid) {
    uint32_t near = search.loops.below(distances, limit_);
    if (valid < kTileRows) near &= (uint32_t{1} << valid) - 1;
    for (; near != 0; near &= near - 1) {
      const int j = __builtin_ctz(near);
      if (distances[j] >= limit_) continue;
      keys_[count_++] = static_cast<int64_t>(distances[j]) << search.row_bits | (row + j);
      if (count_ == search.capacity) cut(search);
    }
  }

  // The k smallest keys, or all where there are fewer, ascending; then fillers to k.
  void finish(const Search& search, int64_t* out) {
    if (count_ > search.k) cut(search);
    std::sort(keys_, keys_ + count_);
    std::copy(keys_, keys_ + count_, out);
    std::fill(out + count_, out + search.k, INT64_MAX);
  }

 private:
  void cut(const Search& search) {
    std::nth_element(keys_, keys_ + search.k - 1, keys_ + count_);
    count_ = search.k;
    limit_ = static_cast<int32_t>(keys_[search.k - 1] >> search.row_bits);
  }

  int64_t* keys_ = nullptr;
  int64_t count_ = 0;
  int32_t limit_ = INT32_MAX;
};

// Rows begin to end of the database past a few queries, in place.
void scan_rows(const Search& search, const Signatures& q, const Signatures& db, int64_t first, int64_t count,
               int64_t begin, int64_t end, Nearest* nearest) {
  int32_t distances[kRun];
  for (int64_t row = begin; row < end; row += kRun) {
    const int64_t rows = std::min(end - row, kRun);
    for (int64_t i = 0; i < count; ++i) {
      search.loops.row_distances(q.row(first + i), db.row(row), db.stride, rows, search.pairs.words,
                                 distances);
      for (int64_t r = 0; r < rows; r += kTileRows) {
        nearest[i].meet(search, distances + r, row + r, std::min(rows - r, kTileRows));
      }
    }
  }
}

// The same past many queries, by tiles.
void scan_tiles(const Search& search, const Signatures& q, const Signatures& db, int64_t first, int64_t count,
                int64_t begin, int64_t end, Nearest* nearest) {
  const DistanceLoops& loops = search.loops;
  const int64_t words = search.pairs.words;
  const PackedQueries queries(loops, q, first, count, words);
  uint64_t* tile = tile_memory(loops, 1, words);
  static thread_local Arena memory;  // where a row has several pieces, sums of all queries
  auto* sums = static_cast<int32_t*>(memory.get(4 * queries.groups() * kTileQueries * kTileRows));
  for (int64_t row = begin; row < end; row += kTileRows) {
    const int64_t rows = std::min(end - row, kTileRows);
    for (int64_t w = 0; w == 0 || w < words; w += kTileWords) {
      const int64_t these = std::min(words - w, kTileWords);
      loops.pack_tile(db.row(row) + w, db.stride, rows, these, tile);
      for (int64_t g = 0; g < queries.groups(); ++g) {
        int32_t* distances = sums + (words > kTileWords ? g * kTileQueries * kTileRows : 0);
        loops.tile_distances(queries.at(g, w), queries.stride(), tile, these, w > 0, distances, kTileRows);
        if (w + these < words) continue;
        const int64_t n = g * kTileQueries;
        for (int64_t i = 0; i < std::min(count - n, kTileQueries); ++i) {
          nearest[n + i].meet(search, distances + i * kTileRows, row, rows);
        }
      }
    }
  }
}

void topk(const Pairs& pairs, int64_t k, const Tensor& q_any, const Tensor& db_any, Tensor& distances,
          Tensor& rows) {
  const Signatures q(q_any), db(db_any);
  const Search search(pairs, k);
  const int64_t N = pairs.N, M = pairs.M;
  const int64_t key_rows =
      std::max(kTileQueries, kKeyBytes / (8 * search.capacity) / kTileQueries * kTileQueries);
  const int64_t most = std::min(PackedQueries::count_for(search.loops, pairs.words), key_rows);
  const int64_t chunk = ceil_div(ceil_div(N, ceil_div(N, most)), kTileQueries) * kTileQueries;
  const int64_t chunks = ceil_div(N, chunk);
  const int64_t wanted = thread_count() == 1 ? 1 : ceil_div(4 * thread_count(), chunks);
  const int64_t segments =
      std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, M / std::max(kLeastSegment, 4 * k)));
  const int64_t segment = ceil_div(ceil_div(M, segments), kTileRows) * kTileRows;

  std::vector<int64_t> found(static_cast<size_t>(segments * N * k));  // [segments, N, k]
  parallel_tasks(chunks * segments, [&](int64_t task) {
    const int64_t first = task / segments * chunk, count = std::min(chunk, N - first), s = task % segments;
    const int64_t begin = std::min(s * segment, M), end = std::min(begin + segment, M);
    static thread_local Arena memory;
    auto* keys = static_cast<int64_t*>(memory.get(8 * count * search.capacity));
    std::vector<Nearest> nearest(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) nearest[i].start(keys + i * search.capacity);
    (count > kFewQueries ? scan_tiles : scan_rows)(search, q, db, first, count, begin, end, nearest.data());
    for (int64_t i = 0; i < count; ++i) nearest[i].finish(search, found.data() + (s * N + first + i) * k);
    memory.release();
  });

  auto* out_distances = static_cast<int32_t*>(distances.mutable_data_ptr());
  auto* out_rows = static_cast<int64_t*>(rows.mutable_data_ptr());
  const int64_t mask = (int64_t{1} << search.row_bits) - 1;
  parallel_for(0, N, ceil_div(1 << 14, segments * k), [&](int64_t begin, int64_t end) {
    std::vector<int64_t> keys(static_cast<size_t>(segments > 1 ? segments * k : 0));
    for (int64_t n = begin; n < end; ++n) {
      const int64_t* best = found.data() + n * k;
      if (segments > 1) {
        for (int64_t s = 0; s < segments; ++s) {
          std::copy_n(found.data() + (s * N + n) * k, k, keys.data() + s * k);
        }
        std::partial_sort(keys.begin(), keys.begin() + k, keys.end());
        best = keys.data();
      }
      for (int64_t i = 0; i < k; ++i) {
        out_distances[n * k + i] = static_cast<int32_t>(best[i] >> search.row_bits);
        out_rows[n * k + i] = best[i] & mask;
      }
    }
  });
  note_kernel(search.loops.topk);
}

const Registration registration("CPU", {ZB_NAP_TOPK(topk)});

}  // namespace
}  // namespace zb::nap
