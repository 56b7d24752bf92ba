// CUDA kernels on the host: what device code sees of a GPU, for the same source compiled by the host
// compiler.
//
// Each CUDA thread is a fibre, one block runs at a time, and the threads of a block take turns in one thread
// of the operating system. What a real card leaves undefined is a fault here and raises (see README.md).
// Kernels never include this file themselves: common/cuda/launch.h and common/cuda/ptx.h do.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>

// An attribute of nvcc's that the host side of cuda_runtime.h leaves undefined.
#undef __launch_bounds__
#define __launch_bounds__(...)

namespace zb::cuda::emulation {

// Where a call stands in the source: threads that wait for each other must wait at one place.
struct Site {
  const char* file;
  int line;
};
#define ZB_SITE ::zb::cuda::emulation::Site site = {__builtin_FILE(), __builtin_LINE()}

// common/cuda/launch.h asks the driver for more shared memory from here on.
constexpr size_t kSharedWithoutAsking = 32 * 1024;

// Few, so that small problems are split as large ones are on a card.
constexpr int64_t kProcessors = 2;

struct Indices {
  dim3 thread, block, block_dim, grid_dim;
};
extern const Indices* here;  // of the thread that runs now

// Runs `body` for every thread of every block. At most kMostBlocks blocks, so that kernels stride over their
// items as they do where a problem is larger than a grid. Raises where a thread made a fault.
#ifdef ZB_EMULATION_TSAN
constexpr int64_t kMostBlocks = 2;  // its fibres are kept, at some 100 KB each
#else
constexpr int64_t kMostBlocks = 5;
#endif
void run(const char* op, const char* kernel, int64_t items, int threads, size_t shared,
         const std::function<void()>& body);

// Ends the kernel: the launch raises with the op, the kernel, the block, the thread and this text.
[[noreturn]] void fault(const std::string& text, Site site);

// Shared memory of the block that runs, of exactly the size asked for, full of 0xff before its first use.
void* dynamic_shared();
void* static_shared(size_t bytes, Site site);

// __syncthreads. Threads that have returned do not count, as on sm_70 and later.
void block_barrier(Site site);

// What the lanes of a warp hold for one collective instruction.
struct Lanes {
  struct alignas(16) Payload {
    unsigned char bytes[32];
  } of[32];

  template <class T>
  T get(int lane) const {
    static_assert(sizeof(T) <= sizeof(Payload), "a collective carries 32 bytes a lane");
    T value;
    unsigned char raw[sizeof(T)];
    for (size_t i = 0; i < sizeof(T); ++i) raw[i] = of[lane].bytes[i];
    std::memcpy(&value, raw, sizeof(T));
    return value;
  }
};

// Waits until every lane of `mask` has come to the same instruction, and gives what they brought. With
// `one_site` (the .aligned instructions) they must have come to the same place in the source as well. Orders
// no memory.
const Lanes& meet(unsigned mask, const void* mine, size_t bytes, const char* instruction, Site site,
                  bool one_site = false);
void warp_barrier(unsigned mask, Site site);  // __syncwarp: meet, and orders memory
int lane();

template <class T>
const Lanes& exchange(unsigned mask, const T& mine, const char* instruction, Site site,
                      bool one_site = false) {
  return meet(mask, &mine, sizeof(T), instruction, site, one_site);
}
void check_source(unsigned mask, int from, const char* instruction, Site site);  // shuffles

// Faults where `bytes` at `at` are no whole vector, or lie outside the block's shared memory.
void check_aligned(const void* at, size_t bytes, Site site);
void check_shared(const void* at, size_t bytes, Site site);

// cp.async: 16 bytes, of which the first `bytes` come from `from` and the rest are 0. Until its wait the
// target holds 0xff.
struct Copy {
  unsigned char* to;
  const unsigned char* from;
  int bytes, group;
};
void note_copy(const Copy& copy, Site site);
bool take_copy(int newest_group,
               Copy& copy);  // one pending copy of that group or an older one, until none is
int commit_group();          // closes the open group; the number of closed ones
int closed_groups();

inline void copy_async(void* to, const void* from, int bytes, ZB_SITE) {
  check_aligned(to, 16, site);
  check_shared(to, 16, site);
  if (bytes > 0) check_aligned(from, 16, site);
  auto* const target = static_cast<unsigned char*>(to);
  for (int i = 0; i < 16; ++i) target[i] = 0xff;
  note_copy({target, static_cast<const unsigned char*>(from), bytes, 0}, site);
}
inline void copy_async_wait(int still_open) {
  Copy copy;
  while (take_copy(closed_groups() - 1 - still_open, copy)) {
    for (int i = 0; i < 16; ++i) copy.to[i] = i < copy.bytes ? copy.from[i] : 0;
  }
}

// ldmatrix.x4 (and .trans), mma.sync and cvt.rna.tf32, by the fragment layouts of the PTX manual.
inline void load_matrices(uint32_t (&to)[4], const void* row, ZB_SITE) {
  check_aligned(row, 16, site);
  check_shared(row, 16, site);
  const Lanes& lanes = exchange(0xffffffffu, row, "ldmatrix", site, true);
  for (int i = 0; i < 4; ++i) {
    const auto* const from = static_cast<const uint32_t*>(lanes.get<const void*>(8 * i + lane() / 4));
    to[i] = from[lane() % 4];
  }
}

inline void load_matrices_across(uint32_t (&to)[4], const void* row, ZB_SITE) {
  check_aligned(row, 16, site);
  check_shared(row, 16, site);
  const Lanes& lanes = exchange(0xffffffffu, row, "ldmatrix.trans", site, true);
  for (int i = 0; i < 4; ++i) {
    const auto number = [&](int r) {
      return uint32_t{static_cast<const uint16_t*>(lanes.get<const void*>(8 * i + r))[lane() / 4]};
    };
    to[i] = number(lane() % 4 * 2) | number(lane() % 4 * 2 + 1) << 16;
  }
}

inline uint32_t round_tf32(uint32_t bits) {
  return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & ~0x1fffu;
}

// The numbers in one 32-bit register of a fragment: two of T, or one TF32 (whose low bits the card ignores).
template <class T>
float fragment_value(uint32_t bits, int which) {
  if constexpr (sizeof(T) == 4) {
    bits &= ~0x1fffu;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  } else {
    const auto half = static_cast<uint16_t>(bits >> 16 * which);
    T value;
    std::memcpy(static_cast<void*>(&value), &half, 2);
    return static_cast<float>(value);
  }
}

template <class T>
void multiply_fragments(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, ZB_SITE) {
  constexpr int kEach = 4 / static_cast<int>(sizeof(T));  // numbers in a register
  struct Operands {
    uint32_t a[4], b[2];
  };
  const Lanes& lanes = exchange(0xffffffffu, Operands{{a[0], a[1], a[2], a[3]}, {b0, b1}}, "mma", site, true);
  // a: register 0 rows 0-7, 1 rows 8-15, 2 and 3 the same in the second half of k; b: registers by half of k.
  // Within a half, lane l holds row (column) l/4 and k = kEach·(l%4) and following.
  for (int half_of_k = 0; half_of_k < 2; ++half_of_k) {
    for (int quad = 0; quad < 4; ++quad) {
      const Operands upper = lanes.get<Operands>(lane() / 4 * 4 + quad);
      for (int column = 0; column < 2; ++column) {
        const Operands right = lanes.get<Operands>((lane() % 4 * 2 + column) * 4 + quad);
        for (int i = 0; i < kEach; ++i) {
          const float b = fragment_value<T>(right.b[half_of_k], i);
          sums[column] += fragment_value<T>(upper.a[2 * half_of_k], i) * b;
          sums[2 + column] += fragment_value<T>(upper.a[2 * half_of_k + 1], i) * b;
        }
      }
    }
  }
}

// mma.m16n8k256 of single bits, "and" then the population count: fragments lie as those above, of 32 bytes.
inline void count_common_bits(uint32_t (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                              ZB_SITE) {
  struct Operands {
    uint32_t a[4], b[2];
  };
  const Lanes& lanes = exchange(0xffffffffu, Operands{{a[0], a[1], a[2], a[3]}, {b0, b1}}, "mma", site, true);
  const auto common = [](uint32_t x, uint32_t y) { return static_cast<uint32_t>(__builtin_popcount(x & y)); };
  for (int half = 0; half < 2; ++half) {
    for (int quad = 0; quad < 4; ++quad) {
      const Operands upper = lanes.get<Operands>(lane() / 4 * 4 + quad);
      for (int column = 0; column < 2; ++column) {
        const uint32_t b = lanes.get<Operands>((lane() % 4 * 2 + column) * 4 + quad).b[half];
        sums[column] += common(upper.a[2 * half], b);
        sums[2 + column] += common(upper.a[2 * half + 1], b);
      }
    }
  }
}

}  // namespace zb::cuda::emulation

// --- the names that device code uses ------------------------------------------------------------------

#define threadIdx (::zb::cuda::emulation::here->thread)
#define blockIdx (::zb::cuda::emulation::here->block)
#define blockDim (::zb::cuda::emulation::here->block_dim)
#define gridDim (::zb::cuda::emulation::here->grid_dim)

inline void __syncthreads(ZB_SITE) { zb::cuda::emulation::block_barrier(site); }
inline void __syncwarp(unsigned mask = 0xffffffffu, ZB_SITE) {
  zb::cuda::emulation::warp_barrier(mask, site);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, ZB_SITE) {
  const auto& lanes = zb::cuda::emulation::exchange(mask, predicate, "ballot", site);
  unsigned votes = 0;
  for (int i = 0; i < 32; ++i) {
    if (mask >> i & 1 && lanes.get<int>(i) != 0) votes |= 1u << i;
  }
  return votes;
}
inline int __any_sync(unsigned mask, int predicate, ZB_SITE) {
  return __ballot_sync(mask, predicate, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, ZB_SITE) {
  return __ballot_sync(mask, predicate, site) == mask;
}

// The lanes of `mask` that brought the same value.
template <class T>
unsigned __match_any_sync(unsigned mask, T value, ZB_SITE) {
  const zb::cuda::emulation::Lanes& lanes = zb::cuda::emulation::exchange(mask, value, "match", site);
  unsigned same = 0;
  for (int i = 0; i < 32; ++i) {
    if (mask >> i & 1 && lanes.get<T>(i) == value) same |= 1u << i;
  }
  return same;
}

template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32, ZB_SITE) {
  using namespace zb::cuda::emulation;
  const Lanes& lanes = exchange(mask, value, "shuffle", site);
  const int source = (lane() & ~(width - 1)) + (from & (width - 1));
  check_source(mask, source, "shuffle", site);
  return lanes.get<T>(source);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, ZB_SITE) {
  using namespace zb::cuda::emulation;
  const Lanes& lanes = exchange(mask, value, "shuffle xor", site);
  const int source = lane() ^ bits;
  if (source >= (lane() & ~(width - 1)) + width) return value;
  check_source(mask, source, "shuffle xor", site);
  return lanes.get<T>(source);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, ZB_SITE) {
  using namespace zb::cuda::emulation;
  const Lanes& lanes = exchange(mask, value, "shuffle down", site);
  const int source = lane() + static_cast<int>(by);
  if (source >= (lane() & ~(width - 1)) + width) return value;
  check_source(mask, source, "shuffle down", site);
  return lanes.get<T>(source);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, ZB_SITE) {
  using namespace zb::cuda::emulation;
  const Lanes& lanes = exchange(mask, value, "shuffle up", site);
  const int source = lane() - static_cast<int>(by);
  if (source < (lane() & ~(width - 1))) return value;
  check_source(mask, source, "shuffle up", site);
  return lanes.get<T>(source);
}

namespace zb::cuda::emulation {
template <class T, class Combine>
T reduce(unsigned mask, T value, const char* instruction, Site site, Combine&& combine) {
  const Lanes& lanes = exchange(mask, value, instruction, site);
  bool first = true;
  T sum = value;
  for (int i = 0; i < 32; ++i) {
    if (!(mask >> i & 1)) continue;
    sum = first ? lanes.get<T>(i) : combine(sum, lanes.get<T>(i));
    first = false;
  }
  return sum;
}
}  // namespace zb::cuda::emulation

inline unsigned __reduce_or_sync(unsigned mask, unsigned value, ZB_SITE) {
  return zb::cuda::emulation::reduce(mask, value, "reduce or", site,
                                     [](unsigned a, unsigned b) { return a | b; });
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned value, ZB_SITE) {
  return zb::cuda::emulation::reduce(mask, value, "reduce add", site,
                                     [](unsigned a, unsigned b) { return a + b; });
}

template <class T, class V>
T atomicOr(T* at, V value) {
  return __atomic_fetch_or(at, static_cast<T>(value), __ATOMIC_RELAXED);
}
template <class T, class V>
T atomicAdd(T* at, V value) {
  return __atomic_fetch_add(at, static_cast<T>(value), __ATOMIC_RELAXED);
}
template <class T>
T atomicMax(T* at, T value) {
  T before = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (before < value &&
         !__atomic_compare_exchange_n(at, &before, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return before;
}
template <class T>
T atomicCAS(T* at, T expected, T value) {
  __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}

inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }

// Rounded products that the compiler must not fuse: the emulation is compiled with -ffp-contract=off.
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dmul_rn(double a, double b) { return a * b; }
