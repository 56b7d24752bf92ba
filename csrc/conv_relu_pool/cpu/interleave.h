// Channels side by side: how every file here that works on vectors of input channels reads them. Part of
// forward_kernel.h.
#pragma once

#include "common/transpose.h"
#include "conv_relu_pool/cpu/task.h"

namespace zb::conv_relu_pool::cpu {
namespace {

using Float = Vec<float>;
using Reg = Float::reg;

// to[w * PITCH + i] = from[i * lane_step + w * step], for `lanes` channels and `columns` pixels
template <class E, int64_t PITCH = Float::n>
void interleave(const E* from, int64_t lane_step, int64_t step, int64_t lanes, int64_t columns, float* to) {
  constexpr int64_t n = Float::n;
  if (lane_step == 1 && lanes == n) {
    for (int64_t w = 0; w < columns; ++w) Float::store(to + w * PITCH, load_as(from + w * step));
  } else if (step == 1 && lanes > 1) {
    if constexpr (sizeof(E) == sizeof(float)) {
      transpose(from, lane_step, lanes, columns, to, PITCH);
    } else {  // widened first, a few columns at a time
      constexpr int64_t kWide = 4 * n;
      float wide[n * kWide];
      for (int64_t w = 0; w < columns; w += kWide) {
        const int64_t some = least(kWide, columns - w);
        for (int64_t i = 0; i < lanes; ++i) {
          const E* row = from + i * lane_step + w;
          int64_t j = 0;
          for (; j + n <= some; j += n) Float::store(wide + i * kWide + j, load_as(row + j));
          for (; j < some; ++j) wide[i * kWide + j] = value_of(row[j]);
        }
        transpose(wide, kWide, lanes, some, to + w * PITCH, PITCH);
      }
    }
  } else {
    for (int64_t i = 0; i < lanes; ++i) {
      for (int64_t w = 0; w < columns; ++w) to[w * PITCH + i] = value_of(from[i * lane_step + w * step]);
    }
  }
}

}  // namespace
}  // namespace zb::conv_relu_pool::cpu
