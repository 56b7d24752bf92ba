// Element types on the device: sums run in float32 (float64 for float64) and are rounded once to the element
// type.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "common/cuda/launch.h"

namespace zb::cuda {

template <class T>
struct SumOf {
  using type = float;
};
template <>
struct SumOf<double> {
  using type = double;
};
template <class T>
using Sum = typename SumOf<T>::type;

ZB_DEVICE float widen(float v) { return v; }
ZB_DEVICE double widen(double v) { return v; }
ZB_DEVICE float widen(__half v) { return __half2float(v); }
ZB_DEVICE float widen(__nv_bfloat16 v) { return __bfloat162float(v); }

template <class T>
ZB_DEVICE T narrow(Sum<T> v) {
  return v;
}
template <>
ZB_DEVICE __half narrow<__half>(float v) {
  return __float2half_rn(v);
}
template <>
ZB_DEVICE __nv_bfloat16 narrow<__nv_bfloat16>(float v) {
  return __float2bfloat16_rn(v);
}

template <class T>
ZB_DEVICE Sum<T> rounded(Sum<T> v) {
  return widen(narrow<T>(v));
}

// A product that the compiler may not fuse with an addition after it, and a sum of products that it must
// fuse: all kernels that compute one value then get the same bits.
ZB_DEVICE float multiply(float a, float b) { return __fmul_rn(a, b); }
ZB_DEVICE double multiply(double a, double b) { return __dmul_rn(a, b); }
ZB_DEVICE float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
ZB_DEVICE double multiply_add(double a, double b, double c) { return fma(a, b, c); }

// relu at slope 0 (NaN stays, -inf gives 0), else leaky relu, of a value rounded to T, and rounded to T.
template <class T>
ZB_DEVICE Sum<T> activate(Sum<T> v, Sum<T> slope) {
  if (v > 0) return v;
  if (slope == 0) return v != v ? v : Sum<T>(0);
  return rounded<T>(multiply(v, slope));
}

// The same bits as another type.
template <class To, class From>
ZB_DEVICE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "only between types of one size");
  To to;
  memcpy(static_cast<void*>(&to), &from, sizeof(To));
  return to;
}

template <class T>
struct Type {
  using type = T;
};

// Calls f(Type<T>{}) with the element type of the tensors; dtypes are checked before.
template <class F>
void dispatch(ScalarType dtype, F&& f) {
  switch (dtype) {
    case ScalarType::Float:
      return f(Type<float>{});
    case ScalarType::Double:
      return f(Type<double>{});
    case ScalarType::Half:
      return f(Type<__half>{});
    default:
      return f(Type<__nv_bfloat16>{});
  }
}

template <class T>
const T* read(const Tensor& t) {
  return static_cast<const T*>(t.const_data_ptr());
}
template <class T>
T* write(const Tensor& t) {
  return static_cast<T*>(t.mutable_data_ptr());
}

// Scratch memory in the type that sums run in.
template <class T>
constexpr ScalarType sum_dtype() {
  return sizeof(Sum<T>) == 8 ? ScalarType::Double : ScalarType::Float;
}

}  // namespace zb::cuda
