// (value > 0) of 64 elements in memory as one word, for the instruction set that the including file is
// compiled for. Included inside that file's own namespace; everything here has internal linkage.
//
// All compares are on the integer patterns, so that subnormals count as what they are even where the caller
// has told the processor to take them for zero, and no half has to be widened first. A pattern is > 0 exactly
// where 1 <= pattern <= infinity as an integer: zeros, negative numbers and NaNs fall outside.

namespace {

struct Float32 {
  using Bits = int32_t;
  static constexpr Bits kInfinity = 0x7f800000;
};
struct Float64 {
  using Bits = int64_t;
  static constexpr Bits kInfinity = 0x7ff0000000000000;
};
struct Float16 {
  using Bits = int16_t;
  static constexpr Bits kInfinity = 0x7c00;
};
struct BFloat16 {
  using Bits = int16_t;
  static constexpr Bits kInfinity = 0x7f80;
};
struct Bool {
  using Bits = uint8_t;
};

template <class Element>
inline bool is_positive(typename Element::Bits bits) {
  return bits > 0 && bits <= Element::kInfinity;
}
template <>
inline bool is_positive<Bool>(uint8_t bits) {
  return bits != 0;
}

// The word of the `count` (1 to 64) elements at p, one at a time; bits from `count` on are 0.
template <class Element>
inline uint64_t sign_word_of_few(const typename Element::Bits* p, int64_t count) {
  uint64_t word = 0;
  for (int64_t j = 0; j < count; ++j) word |= static_cast<uint64_t>(is_positive<Element>(p[j])) << j;
  return word;
}

#if defined(__AVX512BW__)

// pattern - 1, unsigned, is below infinity exactly for the positive ones: one subtraction, one compare to a
// mask.
template <class Element>
inline uint64_t sign_word(const typename Element::Bits* p) {
  uint64_t word = 0;
  if constexpr (sizeof(*p) == 4) {
    const __m512i one = _mm512_set1_epi32(1), limit = _mm512_set1_epi32(Element::kInfinity);
    for (int i = 0; i < 4; ++i) {
      const __m512i v = _mm512_sub_epi32(_mm512_loadu_si512(p + 16 * i), one);
      word |= static_cast<uint64_t>(_mm512_cmplt_epu32_mask(v, limit)) << (16 * i);
    }
  } else if constexpr (sizeof(*p) == 8) {
    const __m512i one = _mm512_set1_epi64(1), limit = _mm512_set1_epi64(Element::kInfinity);
    for (int i = 0; i < 8; ++i) {
      const __m512i v = _mm512_sub_epi64(_mm512_loadu_si512(p + 8 * i), one);
      word |= static_cast<uint64_t>(_mm512_cmplt_epu64_mask(v, limit)) << (8 * i);
    }
  } else if constexpr (sizeof(*p) == 2) {
    const __m512i one = _mm512_set1_epi16(1), limit = _mm512_set1_epi16(Element::kInfinity);
    for (int i = 0; i < 2; ++i) {
      const __m512i v = _mm512_sub_epi16(_mm512_loadu_si512(p + 32 * i), one);
      word |= static_cast<uint64_t>(_mm512_cmplt_epu16_mask(v, limit)) << (32 * i);
    }
  } else {
    const __m512i v = _mm512_loadu_si512(p);
    word = _mm512_test_epi8_mask(v, v);
  }
  return word;
}

#elif defined(__AVX2__)

// Signed compares only: pattern > 0 and infinity + 1 > pattern. The order of operands matters: cmpgt is a >
// b.
template <class Element>
inline uint64_t sign_word(const typename Element::Bits* p) {
  const auto load = [p](int64_t i) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + i)); };
  const __m256i zero = _mm256_setzero_si256();
  uint64_t word = 0;
  if constexpr (sizeof(*p) == 4) {
    const __m256i beyond = _mm256_set1_epi32(Element::kInfinity + 1);
    for (int i = 0; i < 8; ++i) {
      const __m256i v = load(8 * i);
      const __m256i on = _mm256_and_si256(_mm256_cmpgt_epi32(v, zero), _mm256_cmpgt_epi32(beyond, v));
      word |= static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(on))))
              << (8 * i);
    }
  } else if constexpr (sizeof(*p) == 8) {
    const __m256i beyond = _mm256_set1_epi64x(Element::kInfinity + 1);
    for (int i = 0; i < 16; ++i) {
      const __m256i v = load(4 * i);
      const __m256i on = _mm256_and_si256(_mm256_cmpgt_epi64(v, zero), _mm256_cmpgt_epi64(beyond, v));
      word |= static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(on))))
              << (4 * i);
    }
  } else if constexpr (sizeof(*p) == 2) {
    const __m256i beyond = _mm256_set1_epi16(Element::kInfinity + 1);
    for (int i = 0; i < 2; ++i) {
      __m256i on[2];
      for (int h = 0; h < 2; ++h) {
        const __m256i v = load(32 * i + 16 * h);
        on[h] = _mm256_and_si256(_mm256_cmpgt_epi16(v, zero), _mm256_cmpgt_epi16(beyond, v));
      }
      // packs works within 128-bit lanes: the quarters come out as 0 2 1 3
      const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(on[0], on[1]), 0xd8);
      word |= static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_epi8(bytes))) << (32 * i);
    }
  } else {
    for (int i = 0; i < 2; ++i) {
      const __m256i off = _mm256_cmpeq_epi8(load(32 * i), zero);
      word |= static_cast<uint64_t>(~static_cast<uint32_t>(_mm256_movemask_epi8(off))) << (32 * i);
    }
  }
  return word;
}

#else

template <class Element>
inline uint64_t sign_word(const typename Element::Bits* p) {
  return sign_word_of_few<Element>(p, 64);
}

#endif

// words[0 .. ceil(count / 64)) of the `count` elements at p.
template <class Element>
inline void sign_words(const void* from, int64_t count, uint64_t* words) {
  const auto* p = static_cast<const typename Element::Bits*>(from);
  const int64_t full = count / 64;
  // Four stretches side by side: of one alone the hardware does not fetch enough ahead.
  const int64_t quarter = full >= 64 ? full / 4 : 0;
  for (int64_t w = 0; w < quarter; ++w) {
    for (int64_t at = w; at < 4 * quarter; at += quarter) words[at] = sign_word<Element>(p + 64 * at);
  }
  for (int64_t w = 4 * quarter; w < full; ++w) words[w] = sign_word<Element>(p + 64 * w);
  if (count % 64) words[full] = sign_word_of_few<Element>(p + 64 * full, count % 64);
}

}  // namespace
