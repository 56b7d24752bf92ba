// Weights of any strides laid out for kernels whose threads compute LANES channels at once:
// [groups, blocks, taps..., LANES] in the type of the sums, so that one or two 16-byte loads, the same for
// the whole warp, bring a tap of all channels. Channels past the end of a group get zeros.
#pragma once

#include "common/cuda/dtype.h"

namespace zb::conv_relu_pool {

template <class T, int LANES>
struct alignas(sizeof(T) * LANES < 16 ? sizeof(T) * LANES : 16) Lanes {
  T v[LANES];
};

struct WeightOrder {
  int64_t groups, channels;          // channels of one group, along the lanes
  int64_t sizes[3];                  // the taps, outermost first
  int64_t group, channel, steps[3];  // distances in the weight, in elements

  ZB_HOST_DEVICE int64_t taps() const { return sizes[0] * sizes[1] * sizes[2]; }
};

constexpr int kPackThreads = 256;

template <class T, int LANES>
__global__ void __launch_bounds__(kPackThreads)
    pack_weight(WeightOrder order, const T* __restrict__ weight, cuda::Sum<T>* __restrict__ packed) {
  const int64_t blocks = cuda::pieces(order.channels, LANES), taps = order.taps();
  const int64_t count = order.groups * blocks * taps * LANES;
  for (int64_t i = int64_t{blockIdx.x} * kPackThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kPackThreads) {
    const int64_t lane = i % LANES, tap = i / LANES % taps, block = i / LANES / taps % blocks;
    const int64_t group = i / LANES / taps / blocks, channel = block * LANES + lane;
    const int64_t c = tap % order.sizes[2], b = tap / order.sizes[2] % order.sizes[1];
    const int64_t a = tap / order.sizes[2] / order.sizes[1];
    packed[i] = channel < order.channels
                    ? cuda::widen(weight[group * order.group + channel * order.channel + a * order.steps[0] +
                                         b * order.steps[1] + c * order.steps[2]])
                    : cuda::Sum<T>(0);
  }
}

template <class T, int LANES>
Tensor packed_weight(const cuda::Place& place, const WeightOrder& order, const Tensor& weight) {
  const int64_t count = order.groups * cuda::pieces(order.channels, LANES) * order.taps() * LANES;
  const Tensor packed = empty_on(weight, {count}, cuda::sum_dtype<T>());
  cuda::launch(place, "pack_weight", pack_weight<T, LANES>, cuda::pieces(count, kPackThreads), kPackThreads,
               0, order, cuda::read<T>(weight), cuda::write<cuda::Sum<T>>(packed));
  return packed;
}

}  // namespace zb::conv_relu_pool
