// Few pixels and many weights: one image in the deep layers of a network. Part of forward_kernel.h.
//
// Each weight is used so few times that reading it is all that counts. Packed weights (Winograd's are up to
// four times as many) and the comparison that finds them cost more than they save, so the weights are read
// once, where they lie: vectors run along the taps of an output channel in the weight's own order, and the
// input is laid out as each pixel's taps, in the place of packed weights.
//
// Values do depend on the batch here: how many pixels there are decides whether this kernel is taken.
//
// One image, 3x3 and max pooling, weights not in the caches, CPU milliseconds of one thread of a busy EPYC
// (Zen 4, AVX-512), best:
//                                                  512, 2x2   512, 4x4   256, 6x6   256, 8x8
//   direct.h (2x2) and winograd.h, packed ahead       1.72       3.40       1.55       1.18
//   torch's convolution, channels_last                1.08       1.86       0.70       1.15
//   pixels laid out one number after another          0.93       2.10       0.82       1.76
//   from a list of each pixel's taps inside           0.92       1.58       0.68       1.21
#pragma once

#include "common/transpose.h"
#include "conv_relu_pool/cpu/plan.h"

namespace zb::conv_relu_pool::cpu {
namespace {

constexpr int64_t kTogether = 4;  // pixels of a tile; n / 4 output channels
constexpr int64_t kTileChannels = Float::n / kTogether;
constexpr int64_t kPixelBytes = 128 << 10;  // of all pixels' taps that are taken at a time

ZB_INLINE int64_t pixel_count(const Call& c) { return c.N * c.map[0] * c.map[1]; }
ZB_INLINE int64_t tap_count(const Call& c) { return c.C * c.kernel[0] * c.kernel[1]; }
ZB_INLINE int64_t tap_pitch(const Call& c) { return up_to(tap_count(c), Float::n); }

struct FewPixelsScratch {
  float *map, *value, *position;
  Runs<float> runs;
};

ZB_INLINE FewPixelsScratch few_pixels_scratch(const Call& c, Scratch& memory) {
  FewPixelsScratch s;
  s.map = memory.take<float>(up_to(pixel_count(c), kTogether) * kBlock<float>);
  s.value = memory.take<float>(c.out[0] * c.out[1] * kBlock<float>);
  s.position = memory.take<float>(c.out[0] * c.out[1] * kBlock<float>);
  s.runs = take_runs<float>(c, c.map[0] * c.map[1], c.out[0] * c.out[1], memory);
  return s;
}

void plan_few_pixels(Call& c) {
  c.blocks = up_div(c.K, kBlock<float>);
  c.images = {c.N, c.N, 1}, c.rows = {c.out[0], c.out[0], 1}, c.columns = {c.out[1], c.out[1], 1};
  c.block_cut = cut_evenly(c.blocks, up_div(c.blocks, 2 * c.threads));
  c.map_rows = c.map[0], c.map_columns = c.map[1];
  c.weight_units = pixel_count(c) * c.C;
  c.weight_bytes = up_to(pixel_count(c), kTogether) * tap_pitch(c) * 4;
  Scratch count{nullptr, 0};
  few_pixels_scratch(c, count);
  c.scratch_bytes = count.used;
}

// The taps of one pixel that lie inside the image: which, and where in a channel of x.
struct SeenTaps {
  int count;
  int64_t tap[kMostTaps], at[kMostTaps];
};

ZB_INLINE void find_seen(const Call& c, int64_t pixel, SeenTaps& seen) {
  const int64_t top = pixel / c.map[1] % c.map[0] * c.stride[0] - c.padding[0];
  const int64_t left = pixel % c.map[1] * c.stride[1] - c.padding[1];
  seen.count = 0;
  for (int64_t r = 0; r < c.kernel[0]; ++r) {
    const int64_t h = top + r * c.dilation[0];
    for (int64_t s = 0; s < c.kernel[1]; ++s) {
      const int64_t w = left + s * c.dilation[1];
      if (h < 0 || h >= c.in[0] || w < 0 || w >= c.in[1]) continue;
      seen.tap[seen.count] = r * c.kernel[1] + s;
      seen.at[seen.count++] = h * c.x_strides[2] + w * c.x_strides[3];
    }
  }
}

// The pixels' taps [pixel][tap_pitch] in the order of the weight's, zeros in the padding and behind the last.
// Unit: the taps of a pixel in one channel.
void lay_out_pixels(const Call& c, int64_t begin, int64_t end) {
  const int64_t taps = c.kernel[0] * c.kernel[1], plane = c.map[0] * c.map[1], pitch = tap_pitch(c);
  const int64_t channel_step = c.channels_innermost ? 1 : taps, tap_step = c.channels_innermost ? c.C : 1;
  SeenTaps seen;
  for (int64_t pixel = begin / c.C; pixel * c.C < end; ++pixel) {
    find_seen(c, pixel, seen);
    float* row = static_cast<float*>(c.packed_weight) + pixel * pitch;
    const float* x = static_cast<const float*>(c.x) + pixel / plane * c.x_strides[0];
    const Range channels{most(0, begin - pixel * c.C), least(c.C, end - pixel * c.C)};
    if (channels.end == c.C) {
      std::memset(row + c.C * taps, 0, sizeof(float) * static_cast<size_t>(pitch - c.C * taps));
    }
    for (int64_t ch = channels.begin; ch < channels.end; ++ch) {
      float* to = row + ch * channel_step;
      const float* from = x + ch * c.x_strides[1];
      if (seen.count < taps) {
        for (int64_t t = 0; t < taps; ++t) to[t * tap_step] = 0;
      }
      for (int i = 0; i < seen.count; ++i) to[seen.tap[i] * tap_step] = from[seen.at[i]];
    }
  }
}

// sums[channel][pixel] of `count` taps, a whole number of vectors: kTileChannels rows of weights with
// kTogether pixels, n sums in n registers.
ZB_INLINE void sum_taps(const float* const (&w)[kTileChannels], const float* x, int64_t x_pitch,
                        int64_t count, float (&sums)[Float::n]) {
  Reg acc[kTileChannels][kTogether];
#pragma GCC unroll 4
  for (int64_t k = 0; k < kTileChannels; ++k) {
#pragma GCC unroll 4
    for (int64_t j = 0; j < kTogether; ++j) acc[k][j] = Float::zero();
  }
  for (int64_t i = 0; i < count; i += Float::n) {
    Reg in[kTogether];
#pragma GCC unroll 4
    for (int64_t j = 0; j < kTogether; ++j) in[j] = Float::load(x + j * x_pitch + i);
#pragma GCC unroll 4
    for (int64_t k = 0; k < kTileChannels; ++k) {
      const Reg weight = Float::load(w[k] + i);
#pragma GCC unroll 4
      for (int64_t j = 0; j < kTogether; ++j) acc[k][j] = Float::fma(in[j], weight, acc[k][j]);
    }
  }
  // The sums of all registers' lanes, side by side: turned over, they are a sum of registers.
  alignas(64) float rows[Float::n * Float::n], columns[Float::n * Float::n];
#pragma GCC unroll 4
  for (int64_t k = 0; k < kTileChannels; ++k) {
#pragma GCC unroll 4
    for (int64_t j = 0; j < kTogether; ++j) Float::store(rows + (k * kTogether + j) * Float::n, acc[k][j]);
  }
  transpose(rows, Float::n, Float::n, Float::n, columns, Float::n);
  Reg sum = Float::load(columns);
  for (int64_t i = 1; i < Float::n; ++i) sum = Float::add(sum, Float::load(columns + i * Float::n));
  Float::store(sums, sum);
}

// Pre-activations [pixel][kBlock] of a block.
void few_pixels_block(const Call& c, const Block& b, float* map) {
  constexpr int64_t n = Float::n;
  const int64_t length = tap_count(c), pitch = tap_pitch(c), pixels = pixel_count(c);
  const auto* x = static_cast<const float*>(c.packed_weight);
  const float* weights = static_cast<const float*>(c.weight) + b.first * length;
  const int64_t chunk = clamped(kPixelBytes / 4 / pixels / n * n, 16 * n, kChain * n);
  for (int64_t first = 0; first < length; first += chunk) {
    const int64_t count = least(chunk, length - first), whole = count / n * n;
    for (int64_t k = 0; k < b.size; k += kTileChannels) {
      const float* w[kTileChannels];
      // Reading past a row would meet the next one's numbers, and NaN times 0 is no 0.
      alignas(64) float last[kTileChannels][n] = {};
      const float* ends[kTileChannels];
      for (int64_t i = 0; i < kTileChannels; ++i) {
        w[i] = weights + least(k + i, b.size - 1) * length + first;
        for (int64_t tap = whole; tap < count; ++tap) last[i][tap - whole] = w[i][tap];
        ends[i] = last[i];
      }
      for (int64_t pixel = 0; pixel < pixels; pixel += kTogether) {
        const float* in = x + pixel * pitch + first;
        float sums[n], rest[n] = {};
        sum_taps(w, in, pitch, whole, sums);
        if (whole < count) sum_taps(ends, in + whole, pitch, n, rest);
        for (int64_t i = 0; i < least(kTileChannels, b.size - k); ++i) {
          for (int64_t j = 0; j < kTogether; ++j) {
            float& to = map[(pixel + j) * kBlock<float> + k + i];
            const float sum = sums[i * kTogether + j] + rest[i * kTogether + j];
            to = first > 0 ? to + sum : sum;
          }
        }
      }
    }
  }
}

void run_few_pixels(const Call& c, const Task& t, Scratch& memory) {
  FewPixelsScratch s = few_pixels_scratch(c, memory);
  const Pooled<float> pooled{s.value, s.position, t.out_rows, t.out_columns};
  const int64_t row_pitch = c.map[1] * kBlock<float>, image_pitch = c.map[0] * row_pitch;
  const Range rows{0, c.map[0]}, columns{0, c.map[1]};
  for (int64_t i = t.blocks.begin; i < t.blocks.end; ++i) {
    const Block b = block_at(c, i);
    few_pixels_block(c, b, s.map);
    for (int64_t image = 0; image < c.N; ++image) {
      const Map<float> map{s.map + image * image_pitch, rows, columns, row_pitch};
      after_convolution<float>(c, map, pooled, s.runs, image, b, true);
      write_outputs<float>(c, pooled, s.runs, image, b);
    }
    finish_block<float, float>(c, t, i);
  }
}

}  // namespace
}  // namespace zb::conv_relu_pool::cpu
