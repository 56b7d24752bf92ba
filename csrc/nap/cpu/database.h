// Queries against a database, by tiles of rows that stay in the cache: what nap_hamming and nap_topk
// share.
#pragma once

#include <algorithm>

#include "common/parallel.h"
#include "nap/cpu/loops.h"
#include "nap/nap.h"

namespace zb::nap {

constexpr int64_t kTileWords = 512;       // of a row at a time: a tile of 128 or 256 KiB at most
constexpr int64_t kQueryBytes = 1 << 17;  // of packed queries that go past a tile: what is left of the cache
constexpr int64_t kFewQueries = 2;        // that are not worth laying rows out as tiles

// Signatures whose rows lie dense in memory.
struct Signatures {
  explicit Signatures(const Tensor& any)
      : tensor(with_dense_rows(any)),
        stride(row_stride(tensor)),
        words(static_cast<const uint64_t*>(tensor.const_data_ptr())) {}
  const uint64_t* row(int64_t n) const { return words + n * stride; }

  Tensor tensor;
  int64_t stride;
  const uint64_t* words;
};

// Some queries, packed for tiles; their number is filled up to whole groups of kTileQueries by zeros.
class PackedQueries {
 public:
  PackedQueries(const DistanceLoops& loops, const Signatures& q, int64_t first, int64_t count, int64_t words)
      : stride_(words * loops.parts), parts_(loops.parts), groups_(ceil_div(count, kTileQueries)) {
    const int64_t size = groups_ * kTileQueries * stride_;
    data_ = static_cast<uint64_t*>(memory().get(8 * std::max<int64_t>(size, 1)));
    for (int64_t i = 0; i < count; ++i) loops.pack_query(q.row(first + i), words, data_ + i * stride_);
    std::fill(data_ + count * stride_, data_ + size, uint64_t{0});
  }
  PackedQueries(const PackedQueries&) = delete;
  PackedQueries& operator=(const PackedQueries&) = delete;
  ~PackedQueries() { memory().release(); }
  int64_t groups() const { return groups_; }
  int64_t stride() const { return stride_; }
  const uint64_t* at(int64_t group, int64_t word) const {
    return data_ + group * kTileQueries * stride_ + word * parts_;
  }

  // How many queries of so many words to pack at a time.
  static int64_t count_for(const DistanceLoops& loops, int64_t words) {
    const int64_t fit = kQueryBytes / std::max<int64_t>(8 * words * loops.parts, 1);
    return std::clamp<int64_t>(fit / kTileQueries * kTileQueries, kTileQueries, 1024);
  }

 private:
  static Arena& memory() {
    static thread_local Arena arena;
    return arena;
  }

  int64_t stride_, parts_, groups_;
  uint64_t* data_;
};

inline uint64_t* tile_memory(const DistanceLoops& loops, int64_t tiles, int64_t words) {
  static thread_local Arena memory;
  const int64_t size = tiles * kTileRows * std::min(words, kTileWords) * loops.parts;
  return static_cast<uint64_t*>(memory.get(8 * std::max<int64_t>(size, 1)));
}

}  // namespace zb::nap
