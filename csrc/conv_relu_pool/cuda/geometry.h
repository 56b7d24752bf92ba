// The problem as kernels see it: plain numbers, all 64-bit.
#pragma once

#include "common/cuda/launch.h"
#include "conv_relu_pool/conv_relu_pool.h"

namespace zb::conv_relu_pool {

// One of the two image dimensions: input → (convolution) → map → (pool) → out.
struct Axis {
  int64_t in, kernel, stride, padding, dilation, map;
  int64_t window, window_stride, window_padding, out;

  // The first map index of a window (outside the map where padding is), and the windows that hold a map
  // index: first..last, none where last < first. Windows are clipped to out, and to starts at 0 or later.
  ZB_HOST_DEVICE int64_t window_start(int64_t o) const { return o * window_stride - window_padding; }
  ZB_HOST_DEVICE int64_t last_window(int64_t m) const {
    const int64_t o = (m + window_padding) / window_stride;
    return o < out ? o : out - 1;
  }
  ZB_HOST_DEVICE int64_t first_window(int64_t m) const {
    const int64_t before = m + window_padding - window + 1;
    return before <= 0 ? 0 : (before + window_stride - 1) / window_stride;
  }
  ZB_HOST_DEVICE bool covered(int64_t m) const { return first_window(m) <= last_window(m); }
  // Whether every map index lies in a window.
  bool all_covered() const { return window_stride <= window && window_start(out - 1) + window >= map; }
};

// The map index that an input index reaches through tap 0, then through each next one, without a division
// for each.
struct Reached {
  int64_t index, rest;  // map index · stride + rest = what the taps' distance leaves

  ZB_HOST_DEVICE void begin(const Axis& a, int64_t in) {
    index = (in + a.padding) / a.stride;
    rest = in + a.padding - index * a.stride;
  }
  ZB_HOST_DEVICE void next(const Axis& a) {
    rest -= a.dilation;
    while (rest < 0) rest += a.stride, --index;
  }
  ZB_HOST_DEVICE bool exists(const Axis& a) const { return rest == 0 && index >= 0 && index < a.map; }
};

struct Geometry {
  int64_t N, C, K, Cg, Kg, groups;
  Axis h, w;
  Pool pool;
  bool count_include_pad;
  double slope;

  ZB_HOST_DEVICE int64_t map_size() const { return h.map * w.map; }
  ZB_HOST_DEVICE int64_t out_size() const { return h.out * w.out; }

  // What avg_pool2d divides the sum of window (p, q) by.
  ZB_HOST_DEVICE int64_t divisor(int64_t p, int64_t q) const {
    int64_t top = h.window_start(p), left = w.window_start(q);
    int64_t bottom = top + h.window, right = left + w.window;
    bottom = bottom < h.map + h.window_padding ? bottom : h.map + h.window_padding;
    right = right < w.map + w.window_padding ? right : w.map + w.window_padding;
    if (!count_include_pad) {
      top = top > 0 ? top : 0, left = left > 0 ? left : 0;
      bottom = bottom < h.map ? bottom : h.map, right = right < w.map ? right : w.map;
    }
    return (bottom - top) * (right - left);
  }
};

inline Geometry geometry_of(const Problem& p) {
  const auto axis = [&p](int d, int64_t in, int64_t kernel, int64_t map, int64_t out) {
    const int64_t dilation =
        kernel == 1 ? 1 : p.dilation[d];  // of a single tap it means nothing, and may be huge
    return Axis{in,  kernel,           p.stride[d],      p.padding[d],      dilation,
                map, p.pool_kernel[d], p.pool_stride[d], p.pool_padding[d], out};
  };
  return {p.N,
          p.C,
          p.K,
          p.Cg,
          p.Kg,
          p.groups,
          axis(0, p.H, p.R, p.H1, p.P),
          axis(1, p.W, p.S, p.W1, p.Q),
          p.pool,
          p.count_include_pad,
          p.slope};
}

// Distances in elements; n is 0 for an unbatched tensor.
struct Strides {
  int64_t n, c, h, w;
};

inline Strides strides_of(const Tensor& t) {
  const int64_t d = t.dim() == 4 ? 1 : 0;
  return {d ? t.stride(0) : 0, t.stride(d), t.stride(d + 1), t.stride(d + 2)};
}

}  // namespace zb::conv_relu_pool
