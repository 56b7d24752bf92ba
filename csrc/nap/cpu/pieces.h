// How threads share a matrix of rows whose units are packed: in runs of whole words.
#pragma once

#include "common/parallel.h"
#include "nap/cpu/kernels.h"
#include "nap/nap.h"

namespace zb::nap {

inline Element element_of(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Float:
      return Element::kFloat32;
    case ScalarType::Double:
      return Element::kFloat64;
    case ScalarType::Half:
      return Element::kFloat16;
    case ScalarType::BFloat16:
      return Element::kBFloat16;
    default:
      return Element::kBool;
  }
}

inline int64_t bytes_of(Element element) {
  return element == Element::kFloat64   ? 8
         : element == Element::kFloat32 ? 4
         : element == Element::kBool    ? 1
                                        : 2;
}

// f(row, first word, end word) for pieces that cover all words of all rows, on torch's threads.
template <class F>
void for_each_piece(const Rows& rows, const F& f) {
  constexpr int64_t kWordsPerTask = 256;  // 64 KiB of float32: enough to pay for handing it to a thread
  parallel_for(0, rows.N * rows.words, kWordsPerTask, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t n = begin / rows.words, first = begin % rows.words;
      const int64_t last = first + (end - begin) < rows.words ? first + (end - begin) : rows.words;
      f(n, first, last);
      begin += last - first;
    }
  });
}

inline int64_t units_between(const Rows& rows, int64_t first, int64_t last) {
  return (last == rows.words ? rows.F : 64 * last) - 64 * first;
}

}  // namespace zb::nap
