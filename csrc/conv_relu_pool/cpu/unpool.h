// The gradient of the un-pooled map, a patch at a time, from y's gradient and the forward pass's code. Part
// of forward_kernel.h.
//
// In a call for the gradient of x the input is that map, which is never in memory as a whole: `c.x` is y's
// gradient, `c.in` the map's size, and Unpool (call.h) says how the two belong together.
#pragma once

#include "conv_relu_pool/cpu/interleave.h"

namespace zb::conv_relu_pool::cpu {
namespace {

// The windows that have some of `size` rows (d = 0) or columns (d = 1) of the map from `first` on.
ZB_INLINE Range windows_over(const Unpool& u, int d, int64_t first, int64_t size) {
  const int64_t past = first + u.padding[d] - u.kernel[d];  // windows that begin here or earlier have ended
  const int64_t begin = past < 0 ? 0 : past / u.stride[d] + 1;
  return {begin,
          clamped(up_div(most(0, first + size + u.padding[d]), u.stride[d]), begin, most(begin, u.size[d]))};
}

// to[w * Float::n + i] = the code of channel i and window w as an integer lane
template <class Code>
void interleave_codes(const Code* from, int64_t lane_step, int64_t step, int64_t lanes, int64_t windows,
                      float* to) {
  constexpr int64_t n = Float::n;
  if (lane_step == 1 && lanes == n) {
    for (int64_t w = 0; w < windows; ++w) {
      int32_t line[n];
      for (int64_t i = 0; i < n; ++i) line[i] = from[w * step + i];
      std::memcpy(to + w * n, line, sizeof(line));
    }
    return;
  }
  for (int64_t i = 0; i < lanes; ++i) {
    for (int64_t w = 0; w < windows; ++w)
      to[w * n + i] = bit_cast<float>(static_cast<int32_t>(from[i * lane_step + w * step]));
  }
}

constexpr int64_t kWindows = 64;  // of one row that are taken at a time

// Adds each window's gradient where its winner lies.
template <class E>
void unpool_max(const Call& c, int64_t image, int64_t channel, int64_t lanes, int64_t top, int64_t left,
                int64_t rows, int64_t columns, float* to) {
  constexpr int64_t n = Float::n;
  const Unpool& u = *c.unpool;
  const Range p_range = windows_over(u, 0, top, rows), q_range = windows_over(u, 1, left, columns);
  const Reg slope = Float::set1(u.slope);
  alignas(64) float gradient[kWindows * n], code[kWindows * n] = {};
  for (int64_t p = p_range.begin; p < p_range.end; ++p) {
    const E* g =
        static_cast<const E*>(c.x) + image * c.x_strides[0] + channel * c.x_strides[1] + p * c.x_strides[2];
    const int64_t at = image * u.code_strides[0] + channel * u.code_strides[1] + p * u.code_strides[2];
    const int64_t row = p * u.stride[0] - u.padding[0] - top;
    for (int64_t q0 = q_range.begin; q0 < q_range.end; q0 += kWindows) {
      const int64_t some = least(kWindows, q_range.end - q0);
      interleave(g + q0 * c.x_strides[3], c.x_strides[1], c.x_strides[3], lanes, some, gradient);
      if (u.code_kind == CodeKind::kByte) {
        interleave_codes(static_cast<const uint8_t*>(u.code) + at + q0 * u.code_strides[3], u.code_strides[1],
                         u.code_strides[3], lanes, some, code);
      } else {
        interleave_codes(static_cast<const int32_t*>(u.code) + at + q0 * u.code_strides[3], u.code_strides[1],
                         u.code_strides[3], lanes, some, code);
      }
      for (int64_t q = 0; q < some; ++q) {
        const Reg value = Float::load(gradient + q * n), which = Float::load(code + q * n);
        const int64_t column = (q0 + q) * u.stride[1] - u.padding[1] - left;
        const int64_t i1 = least(u.kernel[0], rows - row), j1 = least(u.kernel[1], columns - column);
        for (int64_t i = most(0, -row); i < i1; ++i) {
          for (int64_t j = most(0, -column); j < j1; ++j) {
            float* pixel = to + ((row + i) * columns + column + j) * n;
            const int64_t position = i * u.kernel[1] + j;
            Reg share;
            if (u.slope == 0) {
              share = Float::choose(Float::same_integer(which, Float::integer(1 + position)), value,
                                    Float::zero());
            } else {
              share = Float::choose(Float::same_integer(which, Float::integer(2 + 2 * position)),
                                    Float::mul(value, slope), Float::zero());
              share =
                  Float::choose(Float::same_integer(which, Float::integer(1 + 2 * position)), value, share);
            }
            Float::store(pixel, Float::add(Float::load(pixel), share));
          }
        }
      }
    }
  }
}

// Adds each window's gradient, divided as torch's avg_pool2d divides, to all of the window's pixels. No pool
// is one of windows of a pixel.
template <class E>
void unpool_mean(const Call& c, int64_t image, int64_t channel, int64_t lanes, int64_t top, int64_t left,
                 int64_t rows, int64_t columns, float* to) {
  constexpr int64_t n = Float::n;
  const Unpool& u = *c.unpool;
  const Range p_range = windows_over(u, 0, top, rows), q_range = windows_over(u, 1, left, columns);
  alignas(64) float gradient[kWindows * n] = {};
  for (int64_t p = p_range.begin; p < p_range.end; ++p) {
    const E* g =
        static_cast<const E*>(c.x) + image * c.x_strides[0] + channel * c.x_strides[1] + p * c.x_strides[2];
    const Range whole = {p * u.stride[0] - u.padding[0],
                         least(p * u.stride[0] - u.padding[0] + u.kernel[0], c.in[0] + u.padding[0])};
    const Range h = {most(whole.begin, 0), least(whole.end, c.in[0])};
    for (int64_t q0 = q_range.begin; q0 < q_range.end; q0 += kWindows) {
      const int64_t some = least(kWindows, q_range.end - q0);
      interleave(g + q0 * c.x_strides[3], c.x_strides[1], c.x_strides[3], lanes, some, gradient);
      for (int64_t q = 0; q < some; ++q) {
        const int64_t first = (q0 + q) * u.stride[1] - u.padding[1];
        const Range across = {first, least(first + u.kernel[1], c.in[1] + u.padding[1])};
        const Range w = {most(across.begin, 0), least(across.end, c.in[1])};
        const int64_t divisor = u.count_include_pad ? whole.size() * across.size() : h.size() * w.size();
        float* line = gradient + q * n;
        if (divisor != 1) {
          for (int64_t i = 0; i < n; ++i) line[i] /= static_cast<float>(divisor);
        }
        const Reg share = Float::load(line);
        for (int64_t i = most(h.begin, top); i < least(h.end, top + rows); ++i) {
          for (int64_t j = most(w.begin, left); j < least(w.end, left + columns); ++j) {
            float* pixel = to + ((i - top) * columns + j - left) * n;
            Float::store(pixel, Float::add(Float::load(pixel), share));
          }
        }
      }
    }
  }
}

// Where a unit was off, its gradient is multiplied by the slope; at slope 0 it becomes 0, whatever it was.
inline void mask_units(const Call& c, int64_t image, int64_t channel, int64_t lanes, int64_t top,
                       int64_t left, int64_t rows, int64_t columns, float* to) {
  constexpr int64_t n = Float::n;
  const Unpool& u = *c.unpool;
  const int64_t words = up_div(c.in[0] * c.in[1], 64);
  const uint64_t* bits = static_cast<const uint64_t*>(u.code) + (image * c.C + channel) * words;
  uint32_t halves[n] = {};  // half a word of each channel, in which a loop over the channels becomes vectors
  int64_t loaded = -1;
  for (int64_t h = most(top, 0); h < least(top + rows, c.in[0]); ++h) {
    for (int64_t w = most(left, 0); w < least(left + columns, c.in[1]); ++w) {
      float* pixel = to + ((h - top) * columns + w - left) * n;
      const int64_t unit = h * c.in[1] + w, half = unit / 32;
      if (half != loaded) {
        for (int64_t i = 0; i < lanes; ++i) {
          halves[i] = static_cast<uint32_t>(bits[i * words + unit / 64] >> (half % 2 * 32));
        }
        loaded = half;
      }
      const auto bit = static_cast<uint32_t>(unit % 32);
      if (u.slope == 0) {
        uint32_t values[n];
        std::memcpy(values, pixel, sizeof(values));
        for (int64_t i = 0; i < n; ++i) values[i] &= 0u - (halves[i] >> bit & 1);
        std::memcpy(pixel, values, sizeof(values));
      } else {
        for (int64_t i = 0; i < n; ++i) pixel[i] *= halves[i] >> bit & 1 ? 1.0f : u.slope;
      }
    }
  }
}

// `lanes` channels from `channel` on: [row][column][Float::n], zeros outside of the map and in the other
// lanes.
template <class E>
void fill_unpooled(const Call& c, int64_t image, int64_t channel, int64_t lanes, int64_t top, int64_t left,
                   int64_t rows, int64_t columns, float* to) {
  std::memset(to, 0, sizeof(float) * static_cast<size_t>(rows * columns * Float::n));
  if (c.unpool->pool == Pooling::kMax) {
    unpool_max<E>(c, image, channel, lanes, top, left, rows, columns, to);
  } else {
    unpool_mean<E>(c, image, channel, lanes, top, left, rows, columns, to);
    mask_units(c, image, channel, lanes, top, left, rows, columns, to);
  }
}

}  // namespace
}  // namespace zb::conv_relu_pool::cpu
