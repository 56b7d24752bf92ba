// Vectors of 64-bit words as wide as the instruction set that the including file is compiled for, by the
// compiler's own vector types. Included inside that file's namespace; everything here has internal
// linkage.
#pragma once

namespace {

#if defined(__AVX512BW__)
constexpr int kLanes = 8;
#elif defined(__AVX2__)
constexpr int kLanes = 4;
#else
constexpr int kLanes = 2;
#endif

typedef uint64_t Words __attribute__((vector_size(8 * kLanes)));

inline Words load(const uint64_t* p) {
  Words x;
  __builtin_memcpy(&x, p, sizeof(x));
  return x;
}

inline void store(Words x, uint64_t* p) { __builtin_memcpy(p, &x, sizeof(x)); }

inline Words all(uint64_t value) { return Words{} + value; }

}  // namespace

#if defined(__clang__)
#define ZB_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define ZB_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, Words{__VA_ARGS__})
#endif
