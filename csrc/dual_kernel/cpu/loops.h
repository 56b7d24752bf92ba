// The loops of the instruction set that runs here, and packed blocks of rows.
#pragma once

#include "common/cpu_capability.h"
#include "common/parallel.h"
#include "dual_kernel/cpu/rows.h"

namespace zb::dual_kernel::cpu {

template <class T>
struct Loops {
  void (*pack_rows)(const T*, int64_t, int64_t, int64_t, int64_t, T*);
  void (*pack_lanes)(const T*, int64_t, int64_t, int64_t, int64_t, T*);
  void (*tile)(const Network&, const Block<T>&, const Block<T>&, T*);
  void (*transpose)(const T*, T*);
  void (*multiply)(const T*, int64_t, const T*, int64_t, double*);
  const char *gram, *matvec;  // for note_kernel
};

template <class T>
Loops<T> loops() {
#define ZB_LOOPS(set)                                                                             \
  {                                                                                               \
    set::pack_rows, set::pack_lanes, set::tile, set::transpose, set::multiply, "dual_gram " #set, \
        "dual_matvec " #set                                                                       \
  }
#if defined(__x86_64__)
  if (cpu_capability() >= Capability::kAvx512) return ZB_LOOPS(avx512);
  if (cpu_capability() == Capability::kAvx2) return ZB_LOOPS(avx2);
#endif
  return ZB_LOOPS(portable);
#undef ZB_LOOPS
}

// Memory of the calling thread, by what it is used for.
enum class Use { kChunk, kBlock, kTile, kSums };
inline Arena& arena(Use use) {
  thread_local Arena arenas[4];
  return arenas[static_cast<int>(use)];
}

constexpr int64_t kTileSize = kBlock * kBlock;
constexpr int64_t kChunkBytes = int64_t{4} << 20;  // of rows that all threads share, packed

// How many blocks of d features are packed at once.
template <class T>
int64_t chunk_blocks(int64_t d) {
  return std::max<int64_t>(1, kChunkBytes / (kBlock * d * static_cast<int64_t>(sizeof(T))));
}

template <class T>
Block<T> packed(const Rows<T>& rows, int64_t block, int64_t d, decltype(Loops<T>::pack_rows) pack, T* to) {
  Block<T> b = rows.block(block);
  pack(rows.x().data + block * kBlock * rows.x().row, rows.x().row, rows.x().column, b.count, d, to);
  b.packed = to;
  return b;
}

// The blocks [begin, end), packed one after another by all threads.
template <class T>
void pack_chunk(const Rows<T>& rows, int64_t begin, int64_t end, int64_t d,
                decltype(Loops<T>::pack_rows) pack, T* to) {
  parallel_for(begin, end, 1, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) packed(rows, b, d, pack, to + (b - begin) * kBlock * d);
  });
}

}  // namespace zb::dual_kernel::cpu
