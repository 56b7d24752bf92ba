// The loops that are compiled once for each instruction set. loops.h chooses among them at run time.
#pragma once

#include <cstdint>

namespace zb::nap {

enum class Element { kFloat32, kFloat64, kFloat16, kBFloat16, kBool };

constexpr int64_t kTileRows = 32;    // of a database, whose words lie side by side in a tile
constexpr int64_t kTileQueries = 4;  // that one pass over a tile serves

#define ZB_NAP_ROW_LOOPS                                                                             \
  /* words[0 .. ceil(count / 64)): bit j of word k is element 64 k + j > 0; bits past count are 0 */ \
  void pack_row(Element element, const void* row, int64_t count, uint64_t* words);                   \
  /* bits[0 .. count): one byte of 0 or 1 for each bit */                                            \
  void unpack_row(const uint64_t* words, int64_t count, uint8_t* bits);                              \
  /* hash[count][2] of rows `stride` words apart: zbkernels/ops/nap_hash.py says what it is */       \
  void hash_rows(const uint64_t* rows, int64_t stride, int64_t count, int64_t words, uint64_t* hash);

// How often each bit is on. A group is group_rows(words) rows: dense where they are more than 16, else
// any distance apart. state is memory of state_bytes(words), aligned to 64 bytes and zero at first.
// After at most 255 groups, and at the end, flush adds to counts[words][64] and leaves state zero.
#define ZB_NAP_FREQUENCY_LOOPS                                                        \
  int64_t group_rows(int64_t words);                                                  \
  int64_t state_bytes(int64_t words);                                                 \
  void count_group(const uint64_t* rows, int64_t stride, int64_t words, void* state); \
  void flush(void* state, int64_t words, bool last, int64_t* counts);

// Distances: bits that differ. What a tile and a packed query hold is for the loops to know: kParts
// words for each word of a row.
#define ZB_NAP_DISTANCE_LOOPS                                                                             \
  extern const int64_t kParts;                                                                            \
  /* tile[words][kTileRows][kParts], in some order, of `count` rows; the others are zeros */              \
  void pack_tile(const uint64_t* rows, int64_t stride, int64_t count, int64_t words, uint64_t* tile);     \
  void pack_query(const uint64_t* row, int64_t words, uint64_t* query);                                   \
  /* distances[kTileQueries][kTileRows], rows of both `stride` apart, or added to what is there */        \
  void tile_distances(const uint64_t* queries, int64_t query_stride, const uint64_t* tile, int64_t words, \
                      bool add, int32_t* distances, int64_t stride);                                      \
  /* distances[count] of one query to rows as they lie in memory */                                       \
  void row_distances(const uint64_t* query, const uint64_t* rows, int64_t stride, int64_t count,          \
                     int64_t words, int32_t* distances);                                                  \
  /* set bits of words[count], which should lie in the first cache: how fast bits can be counted here */  \
  int64_t count_bits(const uint64_t* words, int64_t count);                                               \
  /* bit j: distances[j] < limit, of kTileRows */                                                         \
  uint32_t below(const int32_t* distances, int32_t limit);

namespace portable {
ZB_NAP_ROW_LOOPS
ZB_NAP_FREQUENCY_LOOPS
ZB_NAP_DISTANCE_LOOPS
}  // namespace portable
namespace avx2 {
ZB_NAP_ROW_LOOPS
ZB_NAP_FREQUENCY_LOOPS
ZB_NAP_DISTANCE_LOOPS
}  // namespace avx2
namespace avx512 {
ZB_NAP_ROW_LOOPS
ZB_NAP_FREQUENCY_LOOPS
ZB_NAP_DISTANCE_LOOPS
}  // namespace avx512
namespace vpopcntdq {  // AVX-512 that counts bits in vectors
ZB_NAP_DISTANCE_LOOPS
}
#undef ZB_NAP_ROW_LOOPS
#undef ZB_NAP_FREQUENCY_LOOPS
#undef ZB_NAP_DISTANCE_LOOPS

}  // namespace zb::nap
