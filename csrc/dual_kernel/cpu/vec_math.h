// Functions of vectors, beyond what common/vec.h has: roots, quotients, signs, exp and the angle of a cosine.
#pragma once

#include "common/vec.h"

namespace zb {
namespace {

template <class T>
struct Lanes;  // what one instruction does, by set

#if defined(__AVX512F__)

template <>
struct Lanes<float> {
  static ZB_INLINE __m512 sqrt(__m512 a) { return _mm512_sqrt_ps(a); }
  static ZB_INLINE __m512 div(__m512 a, __m512 b) { return _mm512_div_ps(a, b); }
  static ZB_INLINE __m512 abs(__m512 a) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), a); }
  static ZB_INLINE __m512 negative(__m512 a) { return -a; }
  static ZB_INLINE __m512 with_sign(__m512 a, __m512 s) {  // of a >= 0
    return _mm512_or_ps(a, _mm512_and_ps(_mm512_set1_ps(-0.0f), s));
  }
  static ZB_INLINE uint32_t same_bits(__m512 a, __m512 b) {
    return _mm512_cmpeq_epi32_mask(_mm512_castps_si512(a), _mm512_castps_si512(b));
  }
  // p · 2ⁿ, n being the low bits of `shifted`
  static ZB_INLINE __m512 scale(__m512 p, __m512 shifted) {
    const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), exponent));
  }
};

template <>
struct Lanes<double> {
  static ZB_INLINE __m512d sqrt(__m512d a) { return _mm512_sqrt_pd(a); }
  static ZB_INLINE __m512d div(__m512d a, __m512d b) { return _mm512_div_pd(a, b); }
  static ZB_INLINE __m512d abs(__m512d a) { return _mm512_andnot_pd(_mm512_set1_pd(-0.0), a); }
  static ZB_INLINE __m512d negative(__m512d a) { return -a; }
  static ZB_INLINE __m512d with_sign(__m512d a, __m512d s) {
    return _mm512_or_pd(a, _mm512_and_pd(_mm512_set1_pd(-0.0), s));
  }
  static ZB_INLINE uint32_t same_bits(__m512d a, __m512d b) {
    return _mm512_cmpeq_epi64_mask(_mm512_castpd_si512(a), _mm512_castpd_si512(b));
  }
  static ZB_INLINE __m512d scale(__m512d p, __m512d shifted) {
    const __m512i exponent = _mm512_slli_epi64(_mm512_castpd_si512(shifted), 52);
    return _mm512_castsi512_pd(_mm512_add_epi64(_mm512_castpd_si512(p), exponent));
  }
};

#elif defined(__AVX2__)

template <>
struct Lanes<float> {
  static ZB_INLINE __m256 sqrt(__m256 a) { return _mm256_sqrt_ps(a); }
  static ZB_INLINE __m256 div(__m256 a, __m256 b) { return _mm256_div_ps(a, b); }
  static ZB_INLINE __m256 abs(__m256 a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
  static ZB_INLINE __m256 negative(__m256 a) { return -a; }
  static ZB_INLINE __m256 with_sign(__m256 a, __m256 s) {
    return _mm256_or_ps(a, _mm256_and_ps(_mm256_set1_ps(-0.0f), s));
  }
  static ZB_INLINE uint32_t same_bits(__m256 a, __m256 b) {
    const __m256i same = _mm256_cmpeq_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b));
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(same)));
  }
  static ZB_INLINE __m256 scale(__m256 p, __m256 shifted) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
  }
};

template <>
struct Lanes<double> {
  static ZB_INLINE __m256d sqrt(__m256d a) { return _mm256_sqrt_pd(a); }
  static ZB_INLINE __m256d div(__m256d a, __m256d b) { return _mm256_div_pd(a, b); }
  static ZB_INLINE __m256d abs(__m256d a) { return _mm256_andnot_pd(_mm256_set1_pd(-0.0), a); }
  static ZB_INLINE __m256d negative(__m256d a) { return -a; }
  static ZB_INLINE __m256d with_sign(__m256d a, __m256d s) {
    return _mm256_or_pd(a, _mm256_and_pd(_mm256_set1_pd(-0.0), s));
  }
  static ZB_INLINE uint32_t same_bits(__m256d a, __m256d b) {
    const __m256i same = _mm256_cmpeq_epi64(_mm256_castpd_si256(a), _mm256_castpd_si256(b));
    return static_cast<uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(same)));
  }
  static ZB_INLINE __m256d scale(__m256d p, __m256d shifted) {
    const __m256i exponent = _mm256_slli_epi64(_mm256_castpd_si256(shifted), 52);
    return _mm256_castsi256_pd(_mm256_add_epi64(_mm256_castpd_si256(p), exponent));
  }
};

#else

ZB_INLINE float root(float x) { return __builtin_sqrtf(x); }
ZB_INLINE double root(double x) { return __builtin_sqrt(x); }

template <class T>
struct Lanes {
  using V = Vec<T>;
  using R = typename V::reg;
  using I = typename V::mask;
  static constexpr int kMantissa = sizeof(T) == 4 ? 23 : 52;
  static ZB_INLINE I sign() { return (I)V::set1(T(-0.0)); }
  static ZB_INLINE R sqrt(R a) {
    for (int i = 0; i < V::n; ++i) a[i] = root(a[i]);
    return a;
  }
  static ZB_INLINE R div(R a, R b) { return a / b; }
  static ZB_INLINE R abs(R a) { return (R)(~sign() & (I)a); }
  static ZB_INLINE R negative(R a) { return -a; }
  static ZB_INLINE R with_sign(R a, R s) { return (R)((I)a | (sign() & (I)s)); }
  static ZB_INLINE uint32_t same_bits(R a, R b) { return V::bits((I)a == (I)b); }
  static ZB_INLINE R scale(R p, R shifted) { return (R)((I)p + ((I)shifted << kMantissa)); }
};

#endif

template <class T, int count>
ZB_INLINE typename Vec<T>::reg polynomial(const T (&coefficients)[count], typename Vec<T>::reg x) {
  auto sum = Vec<T>::set1(coefficients[0]);
#pragma GCC unroll 32
  for (int i = 1; i < count; ++i) sum = Vec<T>::fma(sum, x, Vec<T>::set1(coefficients[i]));
  return sum;
}

// Of several vectors at once: each coefficient is fetched once, and no step waits for the one before.
template <class T, int count, int vectors>
ZB_INLINE void polynomials(const T (&coefficients)[count], const typename Vec<T>::reg (&x)[vectors],
                           typename Vec<T>::reg (&sums)[vectors]) {
#pragma GCC unroll 8
  for (auto& sum : sums) sum = Vec<T>::set1(coefficients[0]);
#pragma GCC unroll 32
  for (int i = 1; i < count; ++i) {
    const auto coefficient = Vec<T>::set1(coefficients[i]);
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) sums[v] = Vec<T>::fma(sums[v], x[v], coefficient);
  }
}

// Chebyshev fits. What each adds to its function's result by itself, in eps of T, at most: 0.17 (float), 0.09
// (double) of the angle; 0.03, 0.02 of a small arc sine; 0.04, 0.05 of sinh; 0.08, 0.01 of exp. With the
// roundings on the way, over 2^24 floats (2^22 doubles) side by side: arcsine 1.9 (1.4) absolute,
// exact_arcsine 2.7 (2.4) and exponential 0.8 (0.7) relative.
template <class T>
struct Fits;
template <>
struct Fits<float> {
  // acos(c) / sqrt(1 - c²) in 1 - c, for c of [0, 1]
  static constexpr float angle[] = {0.01116282423f, -0.03259168873f, 0.05097575848f, -0.03355299779f,
                                    0.03005917597f, 0.02016348981f,  0.05797780151f, 0.1332665723f,
                                    0.3333353814f,  0.9999999897f};
  // (asin(x) - x) / x³ in x², for |x| <= 1/2
  static constexpr float small_angle[] = {0.0336908472f,  0.01714923836f, 0.03110066274f,
                                          0.04459940153f, 0.07500094543f, 0.1666666634f};
  // (sinh(x) - x) / x³ in x², for |x| <= 1
  static constexpr float sinh[] = {2.806280258e-6f, 0.0001983810197f, 0.008333339676f, 0.1666666665f};
  // (eˣ - 1 - x) / x² for |x| <= log(2)/2
  static constexpr float exp[] = {0.001392617612f, 0.008363173075f, 0.04166655466f, 0.1666657703f, 0.5f};
  static constexpr float kLogHigh = 0.693145751953125f, kLogLow = 1.42860682030941723212e-6f;
  static constexpr float kShift = 0x1.8p23f, kLeast = -87.3f, kMost = 88.0f;
};
template <>
struct Fits<double> {
  static constexpr double angle[] = {
      0.0000812100725283917251, -0.000728127364338151672, 0.00309739047221358816, -0.00821750089765481855,
      0.0151806137670412816,    -0.0206478300913517172,   0.021394954857916562,   -0.0171852370196305206,
      0.0108908038966609797,    -0.00535485485062206159,  0.00225883969945927735, -0.000396749895693602747,
      0.000713896879431486035,  0.00114038143381079773,   0.00249056928634354703, 0.00532757604633390607,
      0.0115440427666559958,    0.0253968238820173521,    0.0571428571878088961,  0.133333333332627698,
      0.333333333333337727,     0.999999999999999995};
  static constexpr double small_angle[] = {
      0.0296120112649551204, -0.0192416717467430407, 0.0195545133361233789, 0.0030448799094556774,
      0.0093195607947674463, 0.00962184297010028102, 0.0115664596121216686, 0.0139637800122035696,
      0.017352816540325495,  0.0223721574435072224,  0.03038194447553234,   0.0446428571425518929,
      0.0750000000000011775, 0.166666666666666666};
  static constexpr double sinh[] = {7.74617859301882749e-13, 1.60576796238016377e-10, 2.50521176959078236e-8,
                                    2.7557319191381817e-6,   0.000198412698413241979, 0.00833333333333329936,
                                    0.166666666666666667};
  static constexpr double exp[] = {2.09146793765839351e-9,
                                   2.51052063739570111e-8,
                                   2.75572736613486362e-7,
                                   2.75572554257464343e-6,
                                   0.0000248015873255333638,
                                   0.00019841269874800492,
                                   0.00138888888888837524,
                                   0.00833333333332614088,
                                   0.0416666666666666698,
                                   0.16666666666666671,
                                   0.5};
  static constexpr double kLogHigh = 6.93147180369123816490e-01, kLogLow = 1.90821492927058770002e-10;
  static constexpr double kShift = 0x1.8p52, kLeast = -708.3, kMost = 709.0;
};

// eˣ; 0 where it is below the normal numbers, and NaN of NaN.
template <class T>
ZB_INLINE typename Vec<T>::reg exponential(typename Vec<T>::reg x) {
  using V = Vec<T>;
  using F = Fits<T>;
  const auto least = V::set1(F::kLeast), most = V::set1(F::kMost), shift = V::set1(F::kShift);
  const auto below = V::gt(least, x), above = V::gt(x, most);
  const auto within = V::choose(below, least, V::choose(above, most, x));
  const auto shifted = V::fma(within, V::set1(T(1.4426950408889634)), shift);
  const auto n = V::sub(shifted, shift);
  auto r = V::fma(n, V::set1(-F::kLogHigh), within);
  r = V::fma(n, V::set1(-F::kLogLow), r);
  const auto p = V::add(V::set1(T(1)), V::fma(V::mul(r, r), polynomial(F::exp, r), r));
  const auto scaled = V::choose(above, V::set1(T(__builtin_inf())), Lanes<T>::scale(p, shifted));
  // NaN came to here in p; the exponent that is added to its bits could make a number of it.
  return V::choose(V::is_nan(x), x, V::choose(below, V::zero(), scaled));
}

// asin(c), rounding errors beside pi/2, for the sine sqrt(1 - c²) of its angle, which a caller may know
// better.
template <class T>
ZB_INLINE typename Vec<T>::reg arcsine(typename Vec<T>::reg c, typename Vec<T>::reg magnitude,
                                       typename Vec<T>::reg sine) {
  using V = Vec<T>;
  const auto u = V::max(V::zero(), V::sub(V::set1(T(1)), magnitude));
  const auto acos = V::mul(sine, polynomial(Fits<T>::angle, u));
  return Lanes<T>::with_sign(V::max(V::zero(), V::sub(V::set1(T(1.5707963267948966)), acos)), c);
}

// The same with an error relative to the result, however small.
template <class T>
ZB_INLINE typename Vec<T>::reg exact_arcsine(typename Vec<T>::reg c, typename Vec<T>::reg sine) {
  using V = Vec<T>;
  const auto magnitude = Lanes<T>::abs(c), square = V::mul(c, c);
  const auto small = V::fma(V::mul(square, c), polynomial(Fits<T>::small_angle, square), c);
  return V::choose(V::gt(magnitude, V::set1(T(0.5))), arcsine<T>(c, magnitude, sine), small);
}

}  // namespace
}  // namespace zb
