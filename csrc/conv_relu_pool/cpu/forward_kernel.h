// The forward kernels, included once by the file of each instruction set (forward_portable.cpp,
// forward_avx2.cpp, forward_avx512.cpp). A task takes some pooled rows of some images through convolution,
// activation, pooling and output, one block of output channels at a time, so that the un-pooled map never
// leaves the cache:
//
//   direct.h         pre-activations by direct sums (run_direct.h)
//   depthwise.h      the same where each output channel sees one input channel
//   winograd.h       the same for filters from 2x2 to 7x7 with fewer multiplications
//   winograd_few.h   the same for first layers, of few channels
//   few_pixels.h     direct sums where weights are read more often than used
//   residual.h       what is added before the activation
//   epilogue.h       activation, pooling, codes, signatures, y
#pragma once

#include "conv_relu_pool/cpu/depthwise.h"
#include "conv_relu_pool/cpu/direct.h"
#include "conv_relu_pool/cpu/epilogue.h"
#include "conv_relu_pool/cpu/few_pixels.h"
#include "conv_relu_pool/cpu/plan.h"
#include "conv_relu_pool/cpu/run_direct.h"
#include "conv_relu_pool/cpu/winograd.h"
#include "conv_relu_pool/cpu/winograd_few.h"

namespace zb::conv_relu_pool::cpu {
namespace {

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
  if (adds_to_outputs(c)) {
    run_as<E, T>(without_residual(c), i, scratch);
    return finish_task<E, T>(c, t);
  }
  Scratch memory{static_cast<char*>(scratch), 0};
  if (c.algorithm == Algorithm::kWinograd) {
    if constexpr (sizeof(T) == 4) c.few ? run_few_channels<E>(c, t, memory) : run_winograd<E>(c, t, memory);
  } else if (c.algorithm == Algorithm::kFewPixels) {
    run_few_pixels(c, t, memory);
  } else if (c.algorithm == Algorithm::kDepthwise) {
    if constexpr (sizeof(T) == 4) run_depthwise<E>(c, t, memory);
  } else {
    run_direct<E, T, ChannelSums<E, T>>(c, t, direct_scratch<T>(c, memory));
  }
}

void plan_call(Call& c) {
  c.element == Element::kDouble   ? plan_as<double, double>(c)
  : c.element == Element::kHalf   ? plan_as<Half, float>(c)
  : c.element == Element::kBFloat ? plan_as<BFloat, float>(c)
                                  : plan_as<float, float>(c);
  plan_residual(c);
}

void add_planes(const Call& c, int64_t begin, int64_t end) {
  c.element == Element::kDouble   ? finish_planes<double, double>(c, begin, end)
  : c.element == Element::kHalf   ? finish_planes<Half, float>(c, begin, end)
  : c.element == Element::kBFloat ? finish_planes<BFloat, float>(c, begin, end)
                                  : finish_planes<float, float>(c, begin, end);
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
