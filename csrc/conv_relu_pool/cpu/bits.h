// Bits of a block's channels, gathered pixel after pixel and written as streams, one a channel. Part of
// forward_kernel.h.
#pragma once

#include "conv_relu_pool/cpu/task.h"

namespace zb::conv_relu_pool::cpu {
namespace {

// words[j] = bit j of each of 64 bytes, for j < count
ZB_INLINE void turn_bits(const uint8_t* bytes, int count, uint64_t* words) {
#if defined(__AVX512BW__)
  const __m512i all = _mm512_loadu_si512(bytes);
  for (int j = 0; j < count; ++j) {
    words[j] = _mm512_test_epi8_mask(all, _mm512_set1_epi8(static_cast<char>(1 << j)));
  }
#elif defined(__AVX2__)
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + 32));
  for (int j = 0; j < count; ++j) {  // bit j to the top of its byte
    const __m128i shift = _mm_cvtsi32_si128(7 - j);
    const auto first = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_sll_epi16(low, shift)));
    const auto second = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_sll_epi16(high, shift)));
    words[j] = first | static_cast<uint64_t>(second) << 32;
  }
#else
  for (int j = 0; j < count; ++j) {
    words[j] = 0;
    for (int i = 0; i < 64; ++i) words[j] |= static_cast<uint64_t>(bytes[i] >> j & 1) << i;
  }
#endif
}

// words[lane] = for `count` <= 64 pixels of kBlock lanes each, whether value > 0 (or is NaN, if nan_too).
template <class T, bool NAN_TOO>
ZB_INLINE void sign_words(const T* pixels, int64_t count, uint64_t* words) {
  using V = Vec<T>;
  constexpr int kBytes = V::n > 8 ? 2 : 1;  // of a vector's mask
  alignas(64) uint8_t bytes[2][kBytes][64];
  if (count < 64) std::memset(bytes, 0, sizeof(bytes));
  const auto mask_of = [pixels](int64_t i, int v) {
    const typename V::reg value = V::load(pixels + i * kBlock<T> + v * V::n);
    typename V::mask on = V::gt(value, V::zero());
    if (NAN_TOO) on = V::either(on, V::is_nan(value));
    return V::bits(on);
  };
  for (int v = 0; v < 2; ++v) {
#if defined(__AVX512BW__)
    if constexpr (kBytes == 2) {
      alignas(64) uint16_t masks[64];
      if (count < 64) std::memset(masks, 0, sizeof(masks));
      int64_t i = 0;
      for (; i + 8 <= count; i += 8) {
#pragma GCC unroll 8
        for (int64_t j = i; j < i + 8; ++j) masks[j] = static_cast<uint16_t>(mask_of(j, v));
      }
      for (; i < count; ++i) masks[i] = static_cast<uint16_t>(mask_of(i, v));
      for (int half = 0; half < 2; ++half) {
        const __m512i all = _mm512_load_si512(masks + 32 * half);
        _mm256_store_si256(reinterpret_cast<__m256i*>(bytes[v][0] + 32 * half), _mm512_cvtepi16_epi8(all));
        _mm256_store_si256(reinterpret_cast<__m256i*>(bytes[v][1] + 32 * half),
                           _mm512_cvtepi16_epi8(_mm512_srli_epi16(all, 8)));
      }
      continue;
    }
#endif
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t mask = mask_of(i, v);
      for (int b = 0; b < kBytes; ++b) bytes[v][b][i] = static_cast<uint8_t>(mask >> (8 * b));
    }
  }
  for (int v = 0; v < 2; ++v) {
    for (int b = 0; b < kBytes; ++b) turn_bits(bytes[v][b], V::n / kBytes, words + v * V::n + b * 8);
  }
}

// Streams of bits, one a channel of a block, from the first pixel of a run on: [word][kBlock], zeros from
// `count` on as far as the word goes. In memory of a thread's own, since the words that they end up in are
// not.
template <class T>
struct BitRun {
  uint64_t* words;
  int64_t count;

  // `count` <= 64 more bits of each stream; those above them are 0.
  ZB_INLINE void append(const uint64_t* more, int64_t bits) {
    uint64_t* at = words + (count >> 6) * kBlock<T>;
    const int64_t shift = count & 63;
    for (int64_t k = 0; k < kBlock<T>; ++k) {
      const uint64_t before = shift ? at[k] : 0;
      at[k] = before | more[k] << shift;
    }
    if (shift) {
      for (int64_t k = 0; k < kBlock<T>; ++k) at[kBlock<T> + k] = more[k] >> (64 - shift);
    }
    count += bits;
  }

  template <bool NAN_TOO>
  void append_signs(const T* pixels, int64_t more) {
    uint64_t lanes[kBlock<T>];
    for (int64_t i = 0; i < more; i += 64) {
      const int64_t some = least(64, more - i);
      sign_words<T, NAN_TOO>(pixels + i * kBlock<T>, some, lanes);
      append(lanes, some);
    }
  }

  // Stream k to the bits of `to`, which are 0, from first_bit + k * stream_bits on. Words at either end may
  // hold bits of other tasks: they are or-ed in atomically, and the order of integer ors does not show in the
  // result.
  void flush(uint64_t* to, int64_t first_bit, int64_t stream_bits, int64_t channels) {
    const int64_t mine = up_div(count, 64);
    for (int64_t k = 0; k < channels; ++k) {
      const int64_t bit = first_bit + k * stream_bits, shift = bit & 63;
      uint64_t* word = to + (bit >> 6);
      const int64_t whole = (shift + count) >> 6;  // words up to the last that this run fills to its end
      const uint64_t* stream = words + k;
      uint64_t before = 0;  // the stream's word before the current one
      const auto next = [&](int64_t i) {
        const uint64_t here = i < mine ? stream[i * kBlock<T>] : 0;
        const uint64_t value = shift ? here << shift | before >> (64 - shift) : here;
        before = here;
        return value;
      };
      int64_t i = 0;
      if (shift && whole > 0) __atomic_fetch_or(word, next(i++), __ATOMIC_RELAXED);
      for (; i < whole; ++i) word[i] = next(i);
      if ((shift + count) & 63) __atomic_fetch_or(word + i, next(i), __ATOMIC_RELAXED);
    }
    count = 0;
  }
};

// Words of a run of `bits` bits a channel.
template <class T>
ZB_INLINE int64_t bit_run_size(int64_t bits) {
  return (up_div(bits, 64) + 1) * kBlock<T>;
}

}  // namespace
}  // namespace zb::conv_relu_pool::cpu
