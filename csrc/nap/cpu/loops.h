// The loops of kernels.h for this processor.
#pragma once

#include "common/cpu_capability.h"
#include "nap/cpu/kernels.h"

namespace zb::nap {

struct RowLoops {
  decltype(&portable::pack_row) pack;
  decltype(&portable::unpack_row) unpack;
  decltype(&portable::hash_rows) hash;
};

struct FrequencyLoops {
  decltype(&portable::group_rows) group_rows;
  decltype(&portable::state_bytes) state_bytes;
  decltype(&portable::count_group) count_group;
  decltype(&portable::flush) flush;
};

struct DistanceLoops {
  int64_t parts;
  decltype(&portable::pack_tile) pack_tile;
  decltype(&portable::pack_query) pack_query;
  decltype(&portable::tile_distances) tile_distances;
  decltype(&portable::row_distances) row_distances;
  decltype(&portable::count_bits) count_bits;
  decltype(&portable::below) below;
  const char *hamming, *topk;  // the kernels' names
};

inline RowLoops row_loops() {
#if defined(__x86_64__)
  if (cpu_capability() >= Capability::kAvx512) {
    return {avx512::pack_row, avx512::unpack_row, avx512::hash_rows};
  }
  if (cpu_capability() == Capability::kAvx2) return {avx2::pack_row, avx2::unpack_row, avx2::hash_rows};
#endif
  return {portable::pack_row, portable::unpack_row, portable::hash_rows};
}

inline FrequencyLoops frequency_loops() {
#define ZB_LOOPS(set)                                               \
  {                                                                 \
    set::group_rows, set::state_bytes, set::count_group, set::flush \
  }
#if defined(__x86_64__)
  if (cpu_capability() >= Capability::kAvx512) return ZB_LOOPS(avx512);
  if (cpu_capability() == Capability::kAvx2) return ZB_LOOPS(avx2);
#endif
  return ZB_LOOPS(portable);
#undef ZB_LOOPS
}

inline DistanceLoops distance_loops() {
#define ZB_LOOPS(set, name)                                                                                 \
  {                                                                                                         \
    set::kParts, set::pack_tile, set::pack_query, set::tile_distances, set::row_distances, set::count_bits, \
        set::below, "nap_hamming " name, "nap_topk " name                                                   \
  }
#if defined(__x86_64__)
  if (has_vpopcntdq()) return ZB_LOOPS(vpopcntdq, "avx512 vpopcntdq");
  if (cpu_capability() >= Capability::kAvx512) return ZB_LOOPS(avx512, "avx512");
  if (cpu_capability() == Capability::kAvx2) return ZB_LOOPS(avx2, "avx2");
#endif
  return ZB_LOOPS(portable, "portable");
#undef ZB_LOOPS
}

// Remembers the kernel "<op> <set>" for last_kernel().
#define ZB_NAP_NOTE(op)                                              \
  note_kernel(cpu_capability() >= Capability::kAvx512 ? op " avx512" \
              : cpu_capability() == Capability::kAvx2 ? op " avx2"   \
                                                      : op " portable")

}  // namespace zb::nap
