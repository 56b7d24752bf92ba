// The instructions that C++ has no words for, each behind one function, and its twin for the emulation.
#pragma once

#include "common/cuda/dtype.h"

namespace zb::cuda {

// --- whole vectors: one load or store of up to 16 bytes -----------------------------------------------

template <class T, int COUNT>
struct alignas(sizeof(T) * COUNT) Vector {
  T v[COUNT];
};

template <class V>
ZB_DEVICE V load_vector(const void* from) {
#ifdef ZB_CUDA_EMULATION
  emulation::check_aligned(from, sizeof(V), {__FILE__, __LINE__});
#endif
  return *static_cast<const V*>(from);
}

template <class V>
ZB_DEVICE void store_vector(void* to, const V& value) {
#ifdef ZB_CUDA_EMULATION
  emulation::check_aligned(to, sizeof(V), {__FILE__, __LINE__});
#endif
  *static_cast<V*>(to) = value;
}

// --- two halves, or two bfloat16s, in one register (the first in the low bits) -------------------------

// Rounded from float.
template <class T>
ZB_DEVICE uint32_t pack_two(float first, float second) {
#ifdef ZB_CUDA_EMULATION
  return bits_as<uint16_t>(narrow<T>(first)) | static_cast<uint32_t>(bits_as<uint16_t>(narrow<T>(second)))
                                                   << 16;
#else
  if constexpr (std::is_same_v<T, __half>) {
    return bits_as<uint32_t>(__floats2half2_rn(first, second));
  } else {
    return bits_as<uint32_t>(__floats2bfloat162_rn(first, second));
  }
#endif
}

template <class T>
ZB_DEVICE float unpack(uint32_t two, int which) {
  return widen(bits_as<T>(static_cast<uint16_t>(two >> 16 * which)));
}

// a > b, false where one is NaN: 16 ones or 16 zeros each.
template <class T>
ZB_DEVICE uint32_t greater_two(uint32_t a, uint32_t b) {
#ifdef ZB_CUDA_EMULATION
  return (unpack<T>(a, 0) > unpack<T>(b, 0) ? 0xffffu : 0) |
         (unpack<T>(a, 1) > unpack<T>(b, 1) ? 0xffff0000u : 0);
#else
  using Two = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
  return __hgt2_mask(bits_as<Two>(a), bits_as<Two>(b));
#endif
}

// Where `a` is NaN: 16 ones or 16 zeros each.
template <class T>
ZB_DEVICE uint32_t nan_two(uint32_t a) {
#ifdef ZB_CUDA_EMULATION
  return (unpack<T>(a, 0) != unpack<T>(a, 0) ? 0xffffu : 0) |
         (unpack<T>(a, 1) != unpack<T>(a, 1) ? 0xffff0000u : 0);
#else
  using Two = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
  return __hneu2_mask(bits_as<Two>(a), bits_as<Two>(a));
#endif
}

// The larger, NaN where one is NaN.
template <class T>
ZB_DEVICE uint32_t most_two(uint32_t a, uint32_t b) {
#ifdef ZB_CUDA_EMULATION
  const uint32_t take = greater_two<T>(b, a) | nan_two<T>(b);
  return (a & ~take) | (b & take);
#else
  using Two = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
  return bits_as<uint32_t>(__hmax2_nan(bits_as<Two>(a), bits_as<Two>(b)));
#endif
}

// The same to global memory, for good: of some kernels the compiler makes a store for each number. V has 8 or
// 16 bytes.
template <class V>
ZB_DEVICE void store_vector_global(void* to, const V& value) {
#ifdef ZB_CUDA_EMULATION
  store_vector(to, value);
#else
  static_assert(sizeof(V) == 8 || sizeof(V) == 16, "two or four registers");
  uint32_t bits[sizeof(V) / 4];
  memcpy(bits, &value, sizeof(V));
  const size_t at = __cvta_generic_to_global(to);
  if constexpr (sizeof(V) == 16) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(bits[0]), "r"(bits[1]),
                 "r"(bits[2]), "r"(bits[3])
                 : "memory");
  } else {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(at), "r"(bits[0]), "r"(bits[1]) : "memory");
  }
#endif
}

// A value that other threads may be writing with atomics: what it was at some time, from no cache of this SM.
ZB_DEVICE uint64_t load_relaxed(const uint64_t* from) {
#ifdef ZB_CUDA_EMULATION
  return __atomic_load_n(from, __ATOMIC_RELAXED);
#else
  uint64_t value;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
#endif
}

// --- asynchronous copies from global to shared memory (sm_80) -----------------------------------------

// 16 bytes, or 16 zeros where not `valid` (then `from` is not read). Both must be aligned to 16.
ZB_DEVICE void copy_async(void* shared, const void* from, bool valid) {
#ifdef ZB_CUDA_EMULATION
  emulation::copy_async(shared, from, valid ? 16 : 0);
#else
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0)
               : "memory");
#endif
}

// Ends a group of copies. Threads see their own copies after a wait, and others' after a barrier behind it.
ZB_DEVICE void copy_async_commit() {
#ifdef ZB_CUDA_EMULATION
  emulation::commit_group();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most OPEN of the newest groups are still under way.
template <int OPEN>
ZB_DEVICE void copy_async_wait() {
#ifdef ZB_CUDA_EMULATION
  emulation::copy_async_wait(OPEN);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(OPEN) : "memory");
#endif
}

// --- tensor cores: warp-wide products of fragments (PTX ISA, "mma") -----------------------------------

// ldmatrix.x4: four 8 × 16-byte matrices; lane l gives the address of row l%8 of matrix l/8, and gets of
// matrix i the four bytes at 4·(l%4) of row l/4.
ZB_DEVICE void load_matrices(uint32_t (&to)[4], const void* row) {
#ifdef ZB_CUDA_EMULATION
  emulation::load_matrices(to, row);
#else
  const auto from = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
#endif
}

// The same, each matrix as 8 × 8 numbers of two bytes and turned: lane l gets of matrix i column l/4 of rows
// 2·(l%4) and the next.
ZB_DEVICE void load_matrices_across(uint32_t (&to)[4], const void* row) {
#ifdef ZB_CUDA_EMULATION
  emulation::load_matrices_across(to, row);
#else
  const auto from = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
#endif
}

// sums += a · b over 32 bytes of the shared dimension: m16n8k16 for half and bfloat16, m16n8k8 for TF32 (T is
// float). Lane l holds of the sums rows l/4 and l/4 + 8, columns 2·(l%4) and the next.
template <class T>
ZB_DEVICE void multiply_fragments(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#ifdef ZB_CUDA_EMULATION
  emulation::multiply_fragments<T>(sums, a, b0, b1);
#else
  if constexpr (sizeof(T) == 4) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else if constexpr (std::is_same_v<T, __half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
#endif
}

// sums += how many bits are set in both, over 256 bits: m16n8k256, with the fragments of 32 bytes as above.
// One instruction on sm_80 to sm_90; ptxas makes products of bytes of it on sm_100 and later.
ZB_DEVICE void count_common_bits(uint32_t (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#ifdef ZB_CUDA_EMULATION
  emulation::count_common_bits(sums, a, b0, b1);
#else
  asm volatile(
      "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// The bits of the TF32 number (10 bits of fraction) nearest to a float, ties away from zero. NaN and inf
// stay.
ZB_DEVICE uint32_t round_tf32(uint32_t bits) {
#ifdef ZB_CUDA_EMULATION
  return emulation::round_tf32(bits);
#else
  uint32_t rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(bits)));
  return rounded;
#endif
}

}  // namespace zb::cuda
