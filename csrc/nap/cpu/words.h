// Vectors of 64-bit words as wide as the instruction set that the including file is compiled for, by the
// compiler's own vector types. Included inside that file's namespace; everything here has internal
// linkage.
#pragma once

#if defined(__clang__)
#define ZB_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define ZB_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, Words{__VA_ARGS__})
#endif

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

// Lane i of the result is the sum of the lanes of x[i], of kLanes vectors.
inline Words sums_of_lanes(const Words* x) {
#if defined(__AVX512BW__)
  Words pairs[4], fours[2];
  for (int i = 0; i < 4; ++i) {
    const Words a = x[2 * i], b = x[2 * i + 1];
    pairs[i] = ZB_SHUFFLE(a, b, 0, 8, 2, 10, 4, 12, 6, 14) + ZB_SHUFFLE(a, b, 1, 9, 3, 11, 5, 13, 7, 15);
  }
  for (int i = 0; i < 2; ++i) {
    const Words a = pairs[2 * i], b = pairs[2 * i + 1];
    fours[i] = ZB_SHUFFLE(a, b, 0, 1, 8, 9, 4, 5, 12, 13) + ZB_SHUFFLE(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
  }
  return ZB_SHUFFLE(fours[0], fours[1], 0, 1, 2, 3, 8, 9, 10, 11) +
         ZB_SHUFFLE(fours[0], fours[1], 4, 5, 6, 7, 12, 13, 14, 15);
#elif defined(__AVX2__)
  Words pairs[2];
  for (int i = 0; i < 2; ++i) {
    const Words a = x[2 * i], b = x[2 * i + 1];
    pairs[i] = ZB_SHUFFLE(a, b, 0, 4, 2, 6) + ZB_SHUFFLE(a, b, 1, 5, 3, 7);
  }
  return ZB_SHUFFLE(pairs[0], pairs[1], 0, 1, 4, 5) + ZB_SHUFFLE(pairs[0], pairs[1], 2, 3, 6, 7);
#else
  return ZB_SHUFFLE(x[0], x[1], 0, 2) + ZB_SHUFFLE(x[0], x[1], 1, 3);
#endif
}

}  // namespace
