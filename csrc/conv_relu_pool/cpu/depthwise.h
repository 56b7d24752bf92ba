// Convolutions in which each output channel sees one input channel, its own. Part of forward_kernel.h.
//
// Vectors run along the channels, as everywhere but in direct-pixels: input [row][column][kBlock], the
// filter's taps [tap][kBlock], and an output is its taps' products one after the other, in the order of
// direct.h. Nothing is broadcast and nothing is turned over on the way out.
//
// Versions, 32 images of 128 channels, 32x32, 3x3 and max pooling, milliseconds on one thread of an EPYC with
// AVX-512 (NCHW, channels_last; torch's best in the same hour, channels_last through torch.compile: 7.1):
//   direct-pixels (vectors along the columns)    11.6   8.9
//   this (with the AVX2 files: 3.2)               3.3   3.2
#pragma once

#include "conv_relu_pool/cpu/interleave.h"
#include "conv_relu_pool/cpu/plan.h"

namespace zb::conv_relu_pool::cpu {
namespace {

constexpr int64_t kPatchBytes = 64 << 10;  // of the input that is taken at a time

struct DepthwiseScratch {
  float *patch, *map, *value, *position;
  Runs<float> runs;
};

ZB_INLINE DepthwiseScratch depthwise_scratch(const Call& c, Scratch& memory) {
  const int64_t outputs = c.rows.block * c.columns.block * kBlock<float>;
  DepthwiseScratch s;
  s.patch =
      memory.take<float>(input_span(c, 0, c.map_rows) * input_span(c, 1, c.map_columns) * kBlock<float>);
  s.map = memory.take<float>(c.map_rows * c.map_columns * kBlock<float>);
  s.value = memory.take<float>(outputs);
  s.position = memory.take<float>(outputs);
  s.runs = take_runs<float>(c, map_extent(c, 0, c.rows.block) * c.map_columns, c.rows.block * c.columns.block,
                            memory);
  return s;
}

void plan_depthwise(Call& c) {
  c.blocks = up_div(c.K, kBlock<float>);
  c.columns = cut_evenly(c.out[1], outputs_within(c, 1, kColumns));
  c.map_columns = map_extent(c, 1, c.columns.block);
  const int64_t row = input_span(c, 1, c.map_columns) * kBlock<float> * 4;
  const int64_t rows = most(1, (kPatchBytes / row - (c.kernel[0] - 1) * c.dilation[0] - 1) / c.stride[0] + 1);
  c.images = {c.N, 1, c.N};
  spread(c, outputs_within(c, 0, most(rows, 32)), 1);
  c.map_rows = least(map_extent(c, 0, c.rows.block), up_to(rows, c.pool_stride[0]));
  c.weight_units = c.blocks;
  c.weight_bytes = c.blocks * c.kernel[0] * c.kernel[1] * kBlock<float> * 4;
  Scratch count{nullptr, 0};
  depthwise_scratch(c, count);
  c.scratch_bytes = count.used;
}

// Packed weights [block][tap][kBlock], zeros beyond the block's size. Unit: a block.
template <class E>
void pack_depthwise(const Call& c, int64_t begin, int64_t end) {
  const int64_t taps = c.kernel[0] * c.kernel[1];
  for (int64_t block = begin; block < end; ++block) {
    const Block b = block_at(c, block);
    float* to = static_cast<float*>(c.packed_weight) + block * taps * kBlock<float>;
    const E* from = static_cast<const E*>(c.weight) + b.first * c.w_strides[0];
    for (int64_t t = 0; t < taps; ++t, to += kBlock<float>) {
      for (int64_t k = 0; k < kBlock<float>; ++k) {
        const int64_t at =
            k * c.w_strides[0] + t / c.kernel[1] * c.w_strides[2] + t % c.kernel[1] * c.w_strides[3];
        to[k] = k < b.size ? value_of(from[at]) : 0;
      }
    }
  }
}

// [row][column][kBlock] of a block's channels from (top, left) on, zeros in the padding and beyond the
// block's size.
template <class E>
void fill_depthwise(const Call& c, int64_t image, const Block& b, int64_t top, int64_t left, int64_t rows,
                    int64_t columns, float* to) {
  constexpr int64_t n = Float::n;
  const int64_t w0 = clamped(-left, 0, columns), w1 = clamped(c.in[1] - left, w0, columns);
  const bool narrow = b.size < kBlock<float>;
  for (int64_t h = top; h < top + rows; ++h, to += columns * kBlock<float>) {
    const bool outside = h < 0 || h >= c.in[0] || w0 == w1;
    if (outside || narrow) std::memset(to, 0, sizeof(float) * static_cast<size_t>(columns * kBlock<float>));
    if (outside) continue;
    std::memset(to, 0, sizeof(float) * static_cast<size_t>(w0 * kBlock<float>));
    std::memset(to + w1 * kBlock<float>, 0,
                sizeof(float) * static_cast<size_t>((columns - w1) * kBlock<float>));
    const E* from = static_cast<const E*>(c.x) + image * c.x_strides[0] + b.first * c.x_strides[1] +
                    h * c.x_strides[2] + (left + w0) * c.x_strides[3];
    for (int64_t k = 0; k < b.size; k += n) {
      interleave<E, kBlock<float>>(from + k * c.x_strides[1], c.x_strides[1], c.x_strides[3],
                                   least(n, b.size - k), w1 - w0, to + w0 * kBlock<float> + k);
    }
  }
}

// PIXELS outputs of a row, one vector of channels.
template <int PIXELS>
ZB_INLINE void depthwise_tile(const Call& c, const float* x, int64_t row_pitch, const float* w, float* out) {
  const int64_t step = c.stride[1] * kBlock<float>, hop = c.dilation[1] * kBlock<float>;
  Reg sum[PIXELS];
#pragma GCC unroll 8
  for (int j = 0; j < PIXELS; ++j) sum[j] = Float::zero();
  for (int64_t r = 0; r < c.kernel[0]; ++r, x += c.dilation[0] * row_pitch) {
    const float* tap = x;
    for (int64_t s = 0; s < c.kernel[1]; ++s, tap += hop, w += kBlock<float>) {
      const Reg weight = Float::load(w);
#pragma GCC unroll 8
      for (int j = 0; j < PIXELS; ++j) sum[j] = Float::fma(Float::load(tap + j * step), weight, sum[j]);
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < PIXELS; ++j) Float::store(out + j * kBlock<float>, sum[j]);
}

template <class E>
void run_depthwise(const Call& c, const Task& t, Scratch& memory) {
  constexpr int kPixels = 8;
  DepthwiseScratch s = depthwise_scratch(c, memory);
  const Pooled<float> pooled{s.value, s.position, t.out_rows, t.out_columns};
  const int64_t columns = t.columns.size(), row_pitch = columns * kBlock<float>;
  const int64_t wide = input_span(c, 1, columns), left = t.columns.begin * c.stride[1] - c.padding[1];
  for (int64_t i = t.blocks.begin; i < t.blocks.end; ++i) {
    const Block b = block_at(c, i);
    const float* weights =
        static_cast<const float*>(c.packed_weight) + i * c.kernel[0] * c.kernel[1] * kBlock<float>;
    for (int64_t image = t.images.begin; image < t.images.end; ++image) {
      for (int64_t h = t.rows.begin; h < t.rows.end; h += c.map_rows) {
        const Range rows{h, least(h + c.map_rows, t.rows.end)};
        fill_depthwise<E>(c, image, b, h * c.stride[0] - c.padding[0], left, input_span(c, 0, rows.size()),
                          wide, s.patch);
        for (int64_t row = 0; row < rows.size(); ++row) {
          const float* x = s.patch + row * c.stride[0] * wide * kBlock<float>;
          float* out = s.map + row * row_pitch;
          for (int64_t k = 0; k < b.size; k += Float::n) {
            int64_t w = 0;
            for (; w + kPixels <= columns; w += kPixels) {
              depthwise_tile<kPixels>(c, x + w * c.stride[1] * kBlock<float> + k, wide * kBlock<float>,
                                      weights + k, out + w * kBlock<float> + k);
            }
            for (; w < columns; ++w) {
              depthwise_tile<1>(c, x + w * c.stride[1] * kBlock<float> + k, wide * kBlock<float>, weights + k,
                                out + w * kBlock<float> + k);
            }
          }
        }
        const bool last = rows.end == t.rows.end;
        after_convolution<E>(c, Map<float>{s.map, rows, t.columns, row_pitch}, pooled, s.runs, image, b,
                             last);
        if (last) write_outputs<E>(c, pooled, s.runs, image, b);
      }
    }
    finish_block<E, float>(c, t, i);
  }
}

}  // namespace
}  // namespace zb::conv_relu_pool::cpu
