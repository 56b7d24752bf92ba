// From vectors of output channels to y (or its code), in any memory format. Part of forward_kernel.h.
#pragma once

#include "common/transpose.h"
#include "conv_relu_pool/cpu/task.h"

namespace zb::conv_relu_pool::cpu {
namespace {

// Lanes [pixel][kBlock] of a run of y's pixels to where y (or its code) has them; store(to, register) writes
// Vec<T>::n of them side by side.
template <class T, class Out, class Store>
void write_lanes(const Call& c, Out* to, const T* lanes, int64_t count, int64_t channels,
                 const Store& store) {
  using V = Vec<T>;
  constexpr int64_t n = V::n;
  for (int64_t k = 0; k < channels; k += n, lanes += n, to += n * c.y_strides[1]) {
    const int64_t some = least(n, channels - k);
    // A pixel's lanes, one by one where they don't lie side by side or are not all wanted.
    const auto write_pixel = [&](int64_t i) {
      Out* at = to + i * c.y_strides[3];
      if (some == n && c.y_strides[1] == 1) return store(at, V::load(lanes + i * kBlock<T>));
      Out line[n];
      store(line, V::load(lanes + i * kBlock<T>));
      for (int64_t j = 0; j < some; ++j) at[j * c.y_strides[1]] = line[j];
    };
    int64_t i = 0;
    if constexpr (sizeof(T) == sizeof(float)) {
      for (int64_t next = 0; c.y_strides[1] != 1 && next < count && count >= n; next += n) {
        i = least(next, count - n);  // the last ones overlap
        alignas(64) float turned[n * n];
        transpose(lanes + i * kBlock<T>, kBlock<T>, n, some, turned, n);
        for (int64_t j = 0; j < some; ++j) store(to + j * c.y_strides[1] + i, V::load(turned + j * n));
      }
      if (c.y_strides[1] != 1 && count >= n) continue;
    }
    for (; i < count; ++i) write_pixel(i);
  }
}

// y of a run of pixels [pixel][kBlock], with or without a ReLU.
template <class E, class T>
void write_values(const Call& c, E* y, const T* value, int64_t count, int64_t channels, bool relu) {
  using V = Vec<T>;
  if (relu) {
    write_lanes(c, y, value, count, channels, [](E* to, typename V::reg v) { store_as(to, V::relu(v)); });
  } else {
    write_lanes(c, y, value, count, channels, [](E* to, typename V::reg v) { store_as(to, v); });
  }
}

#if defined(__AVX512BF16__)

// The same for whole blocks in bfloat16: a pixel's 32 channels are rounded into one register, and pairs of
// them are turned over, half as many as there are channels.
void write_values(const Call& c, BFloat* y, const float* value, int64_t count, int64_t channels, bool relu) {
  using V = Vec<float>;
  constexpr int64_t n = V::n;
  const bool side_by_side = c.y_strides[1] == 1;
  if (channels < kBlock<float> || (!side_by_side && count < n)) {
    return write_values<BFloat, float>(c, y, value, count, channels, relu);
  }
  const V::reg least_value = V::set1(relu ? 0 : -__builtin_inff());
  const auto rounded = [&](int64_t pixel) {
    const float* at = value + pixel * kBlock<float>;
    // A NaN is the second operand's.
    return bit_cast<__m512i>(
        _mm512_cvtne2ps_pbh(V::max(least_value, V::load(at + n)), V::max(least_value, V::load(at))));
  };
  if (side_by_side) {
    for (int64_t i = 0; i < count; ++i) _mm512_storeu_si512(y + i * c.y_strides[3], rounded(i));
    return;
  }
  for (int64_t next = 0; next < count; next += n) {
    const int64_t first = least(next, count - n);  // the last ones overlap
    alignas(64) float words[n * n], turned[n * n];
    for (int64_t i = 0; i < n; ++i) _mm512_store_si512(words + i * n, rounded(first + i));
    transpose_tile(words, n, n, n, turned, n);
    for (int64_t pair = 0; pair < n; ++pair) {
      const __m512i both = _mm512_load_si512(turned + pair * n);
      BFloat* to = y + 2 * pair * c.y_strides[1] + first;
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(both));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + c.y_strides[1]),
                          _mm512_cvtepi32_epi16(_mm512_srli_epi32(both, 16)));
    }
  }
}

#endif

}  // namespace
}  // namespace zb::conv_relu_pool::cpu
