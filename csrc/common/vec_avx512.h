// Vec<T> for AVX-512 (F, BW, DQ, VL). Included by vec.h only.
#pragma once

namespace zb {
namespace {

template <>
struct Vec<float> {
  using reg = __m512;
  using mask = __mmask16;
  static constexpr int n = 16;
  static ZB_INLINE reg load(const float* p) { return _mm512_loadu_ps(p); }
  static ZB_INLINE void store(float* p, reg v) { _mm512_storeu_ps(p, v); }
  static ZB_INLINE void store_first(float* p, reg v, int count) {
    _mm512_mask_storeu_ps(p, static_cast<mask>((1u << count) - 1), v);
  }
  static ZB_INLINE reg set1(float x) { return _mm512_set1_ps(x); }
  static ZB_INLINE reg zero() { return _mm512_setzero_ps(); }
  static ZB_INLINE reg add(reg a, reg b) { return _mm512_add_ps(a, b); }
  static ZB_INLINE reg sub(reg a, reg b) { return _mm512_sub_ps(a, b); }
  static ZB_INLINE reg mul(reg a, reg b) { return _mm512_mul_ps(a, b); }
  static ZB_INLINE reg fma(reg a, reg b, reg c) { return _mm512_fmadd_ps(a, b, c); }
  static ZB_INLINE reg max(reg a, reg b) { return _mm512_max_ps(a, b); }  // NaN: the second operand
  static ZB_INLINE reg relu(reg a) { return max(zero(), a); }
  static ZB_INLINE mask gt(reg a, reg b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
  static ZB_INLINE mask is_nan(reg a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
  static ZB_INLINE mask either(mask a, mask b) { return static_cast<mask>(a | b); }
  static ZB_INLINE reg choose(mask m, reg yes, reg no) { return _mm512_mask_blend_ps(m, no, yes); }
  static ZB_INLINE uint32_t bits(mask m) { return m; }
  static ZB_INLINE reg integer(int64_t i) {
    return _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int32_t>(i)));
  }
  static ZB_INLINE mask same_integer(reg a, reg b) {
    return _mm512_cmpeq_epi32_mask(_mm512_castps_si512(a), _mm512_castps_si512(b));
  }
  static ZB_INLINE reg add_integers(reg a, reg b) {
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
  }
};

template <>
struct Vec<double> {
  using reg = __m512d;
  using mask = __mmask8;
  static constexpr int n = 8;
  static ZB_INLINE reg load(const double* p) { return _mm512_loadu_pd(p); }
  static ZB_INLINE void store(double* p, reg v) { _mm512_storeu_pd(p, v); }
  static ZB_INLINE void store_first(double* p, reg v, int count) {
    _mm512_mask_storeu_pd(p, static_cast<mask>((1u << count) - 1), v);
  }
  static ZB_INLINE reg set1(double x) { return _mm512_set1_pd(x); }
  static ZB_INLINE reg zero() { return _mm512_setzero_pd(); }
  static ZB_INLINE reg add(reg a, reg b) { return _mm512_add_pd(a, b); }
  static ZB_INLINE reg sub(reg a, reg b) { return _mm512_sub_pd(a, b); }
  static ZB_INLINE reg mul(reg a, reg b) { return _mm512_mul_pd(a, b); }
  static ZB_INLINE reg fma(reg a, reg b, reg c) { return _mm512_fmadd_pd(a, b, c); }
  static ZB_INLINE reg max(reg a, reg b) { return _mm512_max_pd(a, b); }
  static ZB_INLINE reg relu(reg a) { return max(zero(), a); }
  static ZB_INLINE mask gt(reg a, reg b) { return _mm512_cmp_pd_mask(a, b, _CMP_GT_OQ); }
  static ZB_INLINE mask is_nan(reg a) { return _mm512_cmp_pd_mask(a, a, _CMP_UNORD_Q); }
  static ZB_INLINE mask either(mask a, mask b) { return static_cast<mask>(a | b); }
  static ZB_INLINE reg choose(mask m, reg yes, reg no) { return _mm512_mask_blend_pd(m, no, yes); }
  static ZB_INLINE uint32_t bits(mask m) { return m; }
  static ZB_INLINE reg integer(int64_t i) { return _mm512_castsi512_pd(_mm512_set1_epi64(i)); }
  static ZB_INLINE reg add_integers(reg a, reg b) {
    return _mm512_castsi512_pd(_mm512_add_epi64(_mm512_castpd_si512(a), _mm512_castpd_si512(b)));
  }
};

ZB_INLINE __m512 load_as(const float* p) { return _mm512_loadu_ps(p); }
ZB_INLINE __m512d load_as(const double* p) { return _mm512_loadu_pd(p); }
ZB_INLINE __m512 load_as(const Half* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
ZB_INLINE __m512 load_as(const BFloat* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
ZB_INLINE void store_as(float* p, __m512 v) { _mm512_storeu_ps(p, v); }
ZB_INLINE void store_as(double* p, __m512d v) { _mm512_storeu_pd(p, v); }
ZB_INLINE void store_as(Half* p, __m512 v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
#if defined(__AVX512BF16__)
// Takes what is below 2^-126 as 0, as the sums of these processors' pairs do.
ZB_INLINE void store_as(BFloat* p, __m512 v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bit_cast<__m256i>(_mm512_cvtneps_pbh(v)));
}
#else
ZB_INLINE void store_as(BFloat* p, __m512 v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  up = _mm512_srli_epi32(up, 16);
  up = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), up, _mm512_set1_epi32(0x7fc0));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(up));
}
#endif

// The low bytes, or all bytes, of the integers in v's lanes.
ZB_INLINE void store_integers(uint8_t* p, __m512 v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_castps_si512(v)));
}
ZB_INLINE void store_integers(int32_t* p, __m512 v) { _mm512_storeu_si512(p, _mm512_castps_si512(v)); }

}  // namespace
}  // namespace zb
