// Vec<T> on the compiler's own 16-byte vectors: SSE2, NEON, or whatever there is. Included by vec.h only.
#pragma once

namespace zb {
namespace {

template <class T, class Integer>
struct PortableVec {
  static constexpr int n = 16 / sizeof(T);
  typedef T reg __attribute__((vector_size(16)));
  typedef Integer mask __attribute__((vector_size(16)));
  static ZB_INLINE reg load(const T* p) {
    reg v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  static ZB_INLINE void store(T* p, reg v) { std::memcpy(p, &v, sizeof v); }
  static ZB_INLINE void store_first(T* p, reg v, int count) {
    for (int i = 0; i < count; ++i) p[i] = v[i];
  }
  static ZB_INLINE reg zero() { return reg{}; }
  static ZB_INLINE reg set1(T x) {
    reg v;
    for (int i = 0; i < n; ++i) v[i] = x;
    return v;
  }
  static ZB_INLINE reg add(reg a, reg b) { return a + b; }
  static ZB_INLINE reg sub(reg a, reg b) { return a - b; }
  static ZB_INLINE reg mul(reg a, reg b) { return a * b; }
  static ZB_INLINE reg fma(reg a, reg b, reg c) { return a * b + c; }
  static ZB_INLINE mask gt(reg a, reg b) { return a > b; }
  static ZB_INLINE mask is_nan(reg a) { return a != a; }
  static ZB_INLINE mask either(mask a, mask b) { return a | b; }
  static ZB_INLINE reg choose(mask m, reg yes, reg no) { return (reg)((m & (mask)yes) | (~m & (mask)no)); }
  static ZB_INLINE reg max(reg a, reg b) { return choose(a > b, a, b); }  // NaN: the second operand
  static ZB_INLINE reg relu(reg a) { return max(zero(), a); }
  static ZB_INLINE uint32_t bits(mask m) {
    uint32_t all = 0;
    for (int i = 0; i < n; ++i) all |= (m[i] ? 1u : 0u) << i;
    return all;
  }
  static ZB_INLINE reg integer(int64_t value) {
    mask v;
    for (int i = 0; i < n; ++i) v[i] = static_cast<Integer>(value);
    return (reg)v;
  }
  static ZB_INLINE mask same_integer(reg a, reg b) { return (mask)a == (mask)b; }
  static ZB_INLINE reg add_integers(reg a, reg b) { return (reg)((mask)a + (mask)b); }
};

template <>
struct Vec<float> : PortableVec<float, int32_t> {};
template <>
struct Vec<double> : PortableVec<double, int64_t> {};

ZB_INLINE Vec<float>::reg load_as(const float* p) { return Vec<float>::load(p); }
ZB_INLINE Vec<double>::reg load_as(const double* p) { return Vec<double>::load(p); }
template <class E>
ZB_INLINE Vec<float>::reg load_as(const E* p) {
  Vec<float>::reg v;
  for (int i = 0; i < Vec<float>::n; ++i) v[i] = value_of(p[i]);
  return v;
}
ZB_INLINE void store_as(float* p, Vec<float>::reg v) { Vec<float>::store(p, v); }
ZB_INLINE void store_as(double* p, Vec<double>::reg v) { Vec<double>::store(p, v); }
template <class E>
ZB_INLINE void store_as(E* p, Vec<float>::reg v) {
  for (int i = 0; i < Vec<float>::n; ++i) put(p + i, static_cast<float>(v[i]));
}

}  // namespace
}  // namespace zb
