// Vec<T> for AVX2 with FMA and F16C. Included by vec.h only.
#pragma once

namespace zb {
namespace {

template <>
struct Vec<float> {
  using reg = __m256;
  using mask = __m256;
  static constexpr int n = 8;
  static ZB_INLINE reg load(const float* p) { return _mm256_loadu_ps(p); }
  static ZB_INLINE void store(float* p, reg v) { _mm256_storeu_ps(p, v); }
  static ZB_INLINE void store_first(float* p, reg v, int count) {
    float all[n];
    store(all, v);
    for (int i = 0; i < count; ++i) p[i] = all[i];
  }
  static ZB_INLINE reg set1(float x) { return _mm256_set1_ps(x); }
  static ZB_INLINE reg zero() { return _mm256_setzero_ps(); }
  static ZB_INLINE reg add(reg a, reg b) { return _mm256_add_ps(a, b); }
  static ZB_INLINE reg sub(reg a, reg b) { return _mm256_sub_ps(a, b); }
  static ZB_INLINE reg mul(reg a, reg b) { return _mm256_mul_ps(a, b); }
  static ZB_INLINE reg fma(reg a, reg b, reg c) { return _mm256_fmadd_ps(a, b, c); }
  static ZB_INLINE reg max(reg a, reg b) { return _mm256_max_ps(a, b); }  // NaN: the second operand
  static ZB_INLINE reg relu(reg a) { return max(zero(), a); }
  static ZB_INLINE mask gt(reg a, reg b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }
  static ZB_INLINE mask is_nan(reg a) { return _mm256_cmp_ps(a, a, _CMP_UNORD_Q); }
  static ZB_INLINE mask either(mask a, mask b) { return _mm256_or_ps(a, b); }
  static ZB_INLINE reg choose(mask m, reg yes, reg no) { return _mm256_blendv_ps(no, yes, m); }
  static ZB_INLINE uint32_t bits(mask m) { return static_cast<uint32_t>(_mm256_movemask_ps(m)); }
  static ZB_INLINE reg integer(int64_t i) {
    return _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int32_t>(i)));
  }
  static ZB_INLINE mask same_integer(reg a, reg b) {
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b)));
  }
  static ZB_INLINE reg add_integers(reg a, reg b) {
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b)));
  }
};

template <>
struct Vec<double> {
  using reg = __m256d;
  using mask = __m256d;
  static constexpr int n = 4;
  static ZB_INLINE reg load(const double* p) { return _mm256_loadu_pd(p); }
  static ZB_INLINE void store(double* p, reg v) { _mm256_storeu_pd(p, v); }
  static ZB_INLINE void store_first(double* p, reg v, int count) {
    double all[n];
    store(all, v);
    for (int i = 0; i < count; ++i) p[i] = all[i];
  }
  static ZB_INLINE reg set1(double x) { return _mm256_set1_pd(x); }
  static ZB_INLINE reg zero() { return _mm256_setzero_pd(); }
  static ZB_INLINE reg add(reg a, reg b) { return _mm256_add_pd(a, b); }
  static ZB_INLINE reg sub(reg a, reg b) { return _mm256_sub_pd(a, b); }
  static ZB_INLINE reg mul(reg a, reg b) { return _mm256_mul_pd(a, b); }
  static ZB_INLINE reg fma(reg a, reg b, reg c) { return _mm256_fmadd_pd(a, b, c); }
  static ZB_INLINE reg max(reg a, reg b) { return _mm256_max_pd(a, b); }
  static ZB_INLINE reg relu(reg a) { return max(zero(), a); }
  static ZB_INLINE mask gt(reg a, reg b) { return _mm256_cmp_pd(a, b, _CMP_GT_OQ); }
  static ZB_INLINE mask is_nan(reg a) { return _mm256_cmp_pd(a, a, _CMP_UNORD_Q); }
  static ZB_INLINE mask either(mask a, mask b) { return _mm256_or_pd(a, b); }
  static ZB_INLINE reg choose(mask m, reg yes, reg no) { return _mm256_blendv_pd(no, yes, m); }
  static ZB_INLINE uint32_t bits(mask m) { return static_cast<uint32_t>(_mm256_movemask_pd(m)); }
  static ZB_INLINE reg integer(int64_t i) { return _mm256_castsi256_pd(_mm256_set1_epi64x(i)); }
  static ZB_INLINE reg add_integers(reg a, reg b) {
    return _mm256_castsi256_pd(_mm256_add_epi64(_mm256_castpd_si256(a), _mm256_castpd_si256(b)));
  }
};

ZB_INLINE __m256 load_as(const float* p) { return _mm256_loadu_ps(p); }
ZB_INLINE __m256d load_as(const double* p) { return _mm256_loadu_pd(p); }
ZB_INLINE __m256 load_as(const Half* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
ZB_INLINE __m256 load_as(const BFloat* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
ZB_INLINE void store_as(float* p, __m256 v) { _mm256_storeu_ps(p, v); }
ZB_INLINE void store_as(double* p, __m256d v) { _mm256_storeu_pd(p, v); }
ZB_INLINE void store_as(Half* p, __m256 v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
ZB_INLINE void store_as(BFloat* p, __m256 v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  up = _mm256_srli_epi32(up, 16);
  up = _mm256_blendv_epi8(up, _mm256_set1_epi32(0x7fc0),
                          _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packus_epi32(_mm256_castsi256_si128(up), _mm256_extracti128_si256(up, 1)));
}

// The low bytes (of integers up to 255), or all bytes, of the integers in v's lanes.
ZB_INLINE void store_integers(uint8_t* p, __m256 v) {
  const __m256i all = _mm256_castps_si256(v);
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(words, words));
}
ZB_INLINE void store_integers(int32_t* p, __m256 v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_castps_si256(v));
}

}  // namespace
}  // namespace zb
