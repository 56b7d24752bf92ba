// Small vectors of float or double, one set of types per instruction set.
//
// Vec<T> is a bundle of static functions over Vec<T>::reg, a register of Vec<T>::n values. The including
// file's compiler flags choose the set. Everything is in an anonymous namespace and stays inside the
// including file: a template with external linkage would be kept once by the linker, perhaps as the AVX-512
// copy, and then run on a machine without AVX-512. For the same reason files compiled for an instruction set
// include no header of torch and no template of the standard library.
//
// Element types E and the type T they are computed in: float → float, double → double, Half and BFloat →
// float.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define ZB_INLINE inline __attribute__((always_inline))

namespace zb {
namespace {

struct Half {
  uint16_t bits;
};
struct BFloat {
  uint16_t bits;
};

template <class To, class From>
ZB_INLINE To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast changes the size");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// Round to nearest even; a NaN stays one (quiet, as torch writes it).
ZB_INLINE uint16_t bfloat_bits(float value) {
  if (value != value) return 0x7fc0;
  const uint32_t bits = bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

ZB_INLINE float half_value(uint16_t half) {
#if defined(__F16C__)
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
#else
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, rest = half & 0x7fff;
  if (rest >= 0x7c00) return bit_cast<float>(sign | 0x7f800000u | ((rest & 0x3ff) << 13));
  // A half's exponent and mantissa read as a float are its value · 2⁻¹¹²; subnormals come out right too.
  const float magnitude = bit_cast<float>(rest << 13) * 0x1p112f;
  return bit_cast<float>(bit_cast<uint32_t>(magnitude) | sign);
#endif
}

ZB_INLINE uint16_t half_bits(float value) {
#if defined(__F16C__)
  return static_cast<uint16_t>(
      _mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(value), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)));
#else
  const uint32_t bits = bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t rest = bits & 0x7fffffff;
  if (rest > 0x7f800000) return sign | 0x7e00;
  if (rest >= 0x477ff000) return sign | 0x7c00;  // rounds to infinity
  if (rest < 0x38800000) {                       // subnormal: the float adder rounds in its last place
    const float shifted = bit_cast<float>(rest) + 0.5f;
    return sign | static_cast<uint16_t>(bit_cast<uint32_t>(shifted) - 0x3f000000);
  }
  return sign | static_cast<uint16_t>((rest + 0xfff + ((rest >> 13) & 1) - (112u << 23)) >> 13);
#endif
}

ZB_INLINE float value_of(float e) { return e; }
ZB_INLINE double value_of(double e) { return e; }
ZB_INLINE float value_of(Half e) { return half_value(e.bits); }
ZB_INLINE float value_of(BFloat e) { return bit_cast<float>(static_cast<uint32_t>(e.bits) << 16); }
ZB_INLINE void put(float* to, float value) { *to = value; }
ZB_INLINE void put(double* to, double value) { *to = value; }
ZB_INLINE void put(Half* to, float value) { to->bits = half_bits(value); }
ZB_INLINE void put(BFloat* to, float value) { to->bits = bfloat_bits(value); }

template <class T>
struct Vec;

}  // namespace
}  // namespace zb

#if defined(__AVX512F__)
#include "common/vec_avx512.h"
#elif defined(__AVX2__)
#include "common/vec_avx2.h"
#else
#include "common/vec_portable.h"
#endif

namespace zb {
namespace {

// The integer in a lane (see Vec<T>::integer).
ZB_INLINE int64_t integer_of(float lane) { return bit_cast<int32_t>(lane); }
ZB_INLINE int64_t integer_of(double lane) { return bit_cast<int64_t>(lane); }

template <class Code, class R>
ZB_INLINE void store_integers(Code* p, R v) {
  for (size_t i = 0; i < sizeof(v) / sizeof(v[0]); ++i) p[i] = static_cast<Code>(integer_of(v[i]));
}

}  // namespace
}  // namespace zb
