// The forward kernels, included once by the file of each instruction set (forward_portable.cpp,
// forward_avx2.cpp, forward_avx512.cpp). A task takes some pooled rows of some images through convolution,
// activation, pooling and output, one block of output channels at a time, so that the un-pooled map never
// leaves the cache:
//
//   direct.h         pre-activations by direct sums
//   depthwise.h      the same where each output channel sees one input channel
//   winograd.h       the same for filters from 2x2 to 7x7 with fewer multiplications
//   winograd_few.h   the same for first layers, of few channels
//   few_pixels.h     direct sums where weights are read more often than used
//   epilogue.h       activation, pooling, codes, signatures, y
#pragma once

#include "conv_relu_pool/cpu/depthwise.h"
#include "conv_relu_pool/cpu/direct.h"
#include "conv_relu_pool/cpu/epilogue.h"
#include "conv_relu_pool/cpu/few_pixels.h"
#include "conv_relu_pool/cpu/plan.h"
#include "conv_relu_pool/cpu/winograd.h"
#include "conv_relu_pool/cpu/winograd_few.h"

namespace zb::conv_relu_pool::cpu {
namespace {

template <class E, class T>
void run_direct(const Call& c, const Task& t, DirectScratch<T> s) {
  const Pooled<T> pooled{s.value, s.position, t.out_rows, t.out_columns};
  const int64_t row_pitch = t.columns.size() * kBlock<T>;
  // A window of more rows than fit into the scratch comes in pieces (and the task is one output row).
  const bool whole = t.rows.size() <= c.map_rows;
  Slab<T> slab{};
  if (whole) slab = fill_slab<E, T>(c, t.images, t.rows, t.columns, s.slab);
  // All rows of several images at once, so that they share the weights of a chain, or a few rows of one
  // image.
  const int64_t together = c.chunk_rows < t.rows.size() ? 1 : t.images.size();
  for (int64_t i = t.blocks.begin; i < t.blocks.end; ++i) {
    const Block b = block_at(c, i);
    for (int64_t first = 0; first < t.images.size(); first += together) {
      const Range images{first, first + together};
      for (int64_t h = t.rows.begin; h < t.rows.end; h += c.chunk_rows) {
        const Range rows{h, least(h + c.chunk_rows, t.rows.end)};
        if (!whole) slab = fill_slab<E, T>(c, t.images, rows, t.columns, s.slab);
        for (int64_t image = images.begin; image < images.end; ++image) {
          s.maps[image] = {s.map + (image - first) * c.map_rows * row_pitch, rows, t.columns, row_pitch};
        }
        if (c.algorithm == Algorithm::kDirectPixels) {
          pixels_block(c, b, slab, images, s.maps, s.offsets);
        } else {
          direct_block(c, b, slab, images, s.maps, s.offsets);
        }
        for (int64_t image = images.begin; image < images.end; ++image) {
          const bool last = rows.end == t.rows.end;
          after_convolution<E>(c, s.maps[image], pooled, s.runs, t.images.begin + image, b, last || !whole);
          if (last) write_outputs<E>(c, pooled, s.runs, t.images.begin + image, b);
        }
      }
    }
  }
}

template <class E, class T>
void plan_as(Call& c) {
  plan_algorithm<T>(c);
  if (c.algorithm == Algorithm::kWinograd) {
    plan_winograd(c);
  } else if (c.algorithm == Algorithm::kFewPixels) {
    plan_few_pixels(c);
  } else if (c.algorithm == Algorithm::kDepthwise) {
    plan_depthwise(c);
  } else {
    plan_direct<T>(c);
  }
}

template <class E, class T>
void pack_as(const Call& c, int64_t begin, int64_t end) {
  if (c.algorithm == Algorithm::kWinograd) {
    if constexpr (sizeof(T) == 4) pack_winograd<E>(c, begin, end);
  } else if (c.algorithm == Algorithm::kFewPixels) {
    lay_out_pixels(c, begin, end);
  } else if (c.algorithm == Algorithm::kDepthwise) {
    if constexpr (sizeof(T) == 4) pack_depthwise<E>(c, begin, end);
  } else if (c.algorithm == Algorithm::kDirectPixels) {
    pack_pixels<E, T>(c, begin, end);
  } else {
    pack_direct<E, T>(c, begin, end);
  }
}

template <class E, class T>
void run_as(const Call& c, int64_t i, void* scratch) {
  const Task t = task_at(c, i);
  Scratch memory{static_cast<char*>(scratch), 0};
  if (c.algorithm == Algorithm::kWinograd) {
    if constexpr (sizeof(T) == 4) c.few ? run_few_channels<E>(c, t, memory) : run_winograd<E>(c, t, memory);
  } else if (c.algorithm == Algorithm::kFewPixels) {
    run_few_pixels(c, t, memory);
  } else if (c.algorithm == Algorithm::kDepthwise) {
    if constexpr (sizeof(T) == 4) run_depthwise<E>(c, t, memory);
  } else {
    run_direct<E, T>(c, t, direct_scratch<T>(c, memory));
  }
}

void plan_call(Call& c) {
  c.element == Element::kDouble   ? plan_as<double, double>(c)
  : c.element == Element::kHalf   ? plan_as<Half, float>(c)
  : c.element == Element::kBFloat ? plan_as<BFloat, float>(c)
                                  : plan_as<float, float>(c);
}

void pack_weights(const Call& c, int64_t begin, int64_t end) {
  c.element == Element::kDouble   ? pack_as<double, double>(c, begin, end)
  : c.element == Element::kHalf   ? pack_as<Half, float>(c, begin, end)
  : c.element == Element::kBFloat ? pack_as<BFloat, float>(c, begin, end)
                                  : pack_as<float, float>(c, begin, end);
}

void run_task(const Call& c, int64_t i, void* scratch) {
  c.element == Element::kDouble   ? run_as<double, double>(c, i, scratch)
  : c.element == Element::kHalf   ? run_as<Half, float>(c, i, scratch)
  : c.element == Element::kBFloat ? run_as<BFloat, float>(c, i, scratch)
                                  : run_as<float, float>(c, i, scratch);
}

}  // namespace
}  // namespace zb::conv_relu_pool::cpu
