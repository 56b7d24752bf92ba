// Signatures as the kernels read them, and the hash of a row.
#pragma once

#include "common/cuda/ptx.h"
#include "nap/nap.h"

namespace zb::nap {

// [rows, words] of any strides, in words.
struct Signatures {
  const uint64_t* data;
  int64_t rows, words, row_step, word_step;
};

inline Signatures signatures(const Tensor& sig) {
  const auto* const data = static_cast<const uint64_t*>(sig.const_data_ptr());
  const int64_t some = sig.numel() > 0 ? 1 : 0;  // where there is no memory, no way leads off it
  return {data, sig.size(0), sig.size(1), some * sig.stride(0), some * sig.stride(1)};
}

// Whether words can be read two at a time, by 16 bytes.
inline bool in_pairs(const Signatures& s) {
  return s.words % 2 == 0 && s.word_step == 1 && (s.row_step % 2 == 0 || s.rows == 1) &&
         reinterpret_cast<uintptr_t>(s.data) % 16 == 0;
}

// Words `word` and `word + 1` of a row, 0 beyond its end.
template <bool PAIRS>
struct Pair {
  uint64_t v[2] = {0, 0};

  ZB_DEVICE void load(const Signatures& s, const uint64_t* row, int64_t word) {
    if constexpr (PAIRS) {
      if (word >= s.words) return;
      const auto both = cuda::load_vector<cuda::Vector<uint64_t, 2>>(row + word);
      v[0] = both.v[0], v[1] = both.v[1];
    } else {
      if (word < s.words) v[0] = row[word * s.word_step];
      if (word + 1 < s.words) v[1] = row[(word + 1) * s.word_step];
    }
  }
};

// How many neighbouring lanes share a row, two words each at a time: a power of two, at most a warp. One
// where the rows, not the words, lie side by side.
inline int lanes_of_a_row(const Signatures& s) {
  int lanes = 1;
  if (s.row_step == 1 && s.word_step != 1) return lanes;
  while (lanes < 32 && 2 * lanes < s.words) lanes *= 2;
  return lanes;
}

// --- nap_hash (zbkernels/ops/nap_hash.py says what it is) ---------------------------------------------

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;

ZB_DEVICE uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

struct Hash128 {
  uint64_t a, b;
};

// Of one row, to all of its `lanes`. The whole warp must call; lanes without a row pass any row of no words.
template <bool PAIRS>
ZB_DEVICE Hash128 hash_row(const Signatures& s, const uint64_t* row, int64_t words, int lanes) {
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  uint64_t a = 0, b = 0;
#pragma unroll 4
  for (int64_t word = 2 * lane; word < words; word += 2 * lanes) {
    Pair<PAIRS> pair;
    pair.load(s, row, word);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (!PAIRS && word + j >= words) break;
      const uint64_t m = mix(pair.v[j] + static_cast<uint64_t>(word + j + 1) * kGolden);
      a += m;
      b += (m & 0xffffffffu) * (m >> 32);
    }
  }
  for (int d = lanes / 2; d > 0; d /= 2) {
    a += __shfl_xor_sync(cuda::kWholeWarp, a, d);
    b += __shfl_xor_sync(cuda::kWholeWarp, b, d);
  }
  a += static_cast<uint64_t>(words);
  b = mix(b + kGolden + a);
  return {mix(a + b), b};
}

}  // namespace zb::nap
