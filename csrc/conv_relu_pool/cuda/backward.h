// The backward pass on a GPU: what its kernels share. backward.cu chooses among them; the others are in
// backward_direct_*.cu (straight from the codes), backward_map.cu (the un-pooled gradient), and, from that,
// backward_tiles_*.cu and backward_simt.cu.
#pragma once

#include "common/cuda/dtype.h"
#include "conv_relu_pool/cuda/geometry.h"

namespace zb::conv_relu_pool {

// (grad_x, grad_weight), each of shape [0] where not wanted.
std::tuple<Tensor, Tensor> backward(const Problem& p, const Tensor& grad, const Tensor& x,
                                    const Tensor& weight, const Tensor& code, bool need_x, bool need_weight);

// What the forward pass kept, and the gradient of its result.
struct Code {
  const void* data;
  bool wide;            // position codes: int32, else uint8
  Strides strides;      // of position codes
  int64_t plane_words;  // of bit codes

  ZB_DEVICE int winner(int64_t at) const {
    if (!wide) return static_cast<const uint8_t*>(data)[at];
    const int code = static_cast<const int32_t*>(data)[at];
    return code < 0 ? 0 : code;  // a negative one is not from a forward pass; as 0 it does no harm
  }
};

// Of the code of a winner that passes a gradient (not 0): its position in the window, and the gradient that
// it passes, in the dtype of x as torch's own chain of backward passes has it.
template <class A>
ZB_DEVICE int winner_position(int winner, A slope) {
  return slope > 0 ? (winner - 1) / 2 : winner - 1;
}
template <class T>
ZB_DEVICE cuda::Sum<T> passed(cuda::Sum<T> grad, int winner, cuda::Sum<T> slope) {
  const bool scaled = slope > 0 && (winner - 1) % 2 != 0;
  return scaled ? cuda::rounded<T>(cuda::multiply(cuda::rounded<T>(grad), slope)) : grad;
}

struct BackwardCall {
  const cuda::Place& place;
  const Problem& p;
  const Geometry& g;
  const Tensor &grad, &x, &weight;
  const Code& code;
};

// The gradients from the position codes of a max pool, without the gradient of the un-pooled map. False, and
// nothing done, where they can't run the problem: no tile of it fits into shared memory, or its groups are
// narrow (the weight's), or several input channels wide (the input's).
bool direct_weight_grad(const BackwardCall& call, const Tensor& grad_weight);
bool direct_input_grad(const BackwardCall& call, const Tensor& grad_x);

// The gradient of the un-pooled map, in the dtype of x as torch's own chain of backward passes has it.
struct MapGrad {
  Tensor data;
  Strides strides;   // of n, of a channel in its group, of rows and columns
  int64_t group;     // the distance of two groups
  int64_t channels;  // that a group has room for; past its end they are 0
};

// As [N, H1, W1, groups, channels in whole chunks] for the tiles, else as [N, K, H1, W1].
MapGrad spread_grad(const BackwardCall& call, bool for_tiles);

// From it, as matrix products in tiles: on tensor cores in half precision and where torch allows TF32. Why
// they can't (nullptr where they can); they need the map laid out for tiles.
const char* tiles_refuse_input(const Problem& p, const Geometry& g);
const char* tiles_refuse_weight(const Problem& p, const Geometry& g);
void tiles_input_grad(const BackwardCall& call, const MapGrad& map, const Tensor& grad_x);
void tiles_weight_grad(const BackwardCall& call, const MapGrad& map, const Tensor& grad_weight);

// From it, in either layout, for everything else.
void simt_input_grad(const BackwardCall& call, const MapGrad& map, const Tensor& grad_x);
void simt_weight_grad(const BackwardCall& call, const MapGrad& map, const Tensor& grad_weight);

// grad_weight = Σ slices[s], in one fixed order, rounded once. A slice is [K, Cg, R·S], or, with `padded`
// channels, [K, R·S, padded].
constexpr int kSliceThreads = 256;

template <class T>
__global__ void __launch_bounds__(kSliceThreads)
    add_slices(Geometry g, const cuda::Sum<T>* __restrict__ slices, int64_t slice_count, int64_t padded,
               T* __restrict__ grad_weight, Strides strides) {
  // 32 neighbouring weights by 8 warps, which take every eighth slice.
  using A = cuda::Sum<T>;
  constexpr int kWarps = kSliceThreads / 32;
  ZB_SHARED_ARRAY(A, parts, kSliceThreads);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t taps = g.h.kernel * g.w.kernel, row = taps * (padded > 0 ? padded : g.Cg), count = g.K * row;
  for (int64_t first = int64_t{blockIdx.x} * 32; first < count; first += int64_t{gridDim.x} * 32) {
    const int64_t i = first + lane;
    A sum = 0;
    if (i < count) {
#pragma unroll 8
      for (int64_t s = warp; s < slice_count; s += kWarps) sum += slices[s * count + i];
    }
    parts[threadIdx.x] = sum;
    __syncthreads();
    if (warp == 0 && i < count) {
#pragma unroll
      for (int w = 1; w < kWarps; ++w) sum += parts[w * 32 + lane];
      const int64_t k = i / row, at = i % row;
      const int64_t tap = padded > 0 ? at / padded : at % taps, c = padded > 0 ? at % padded : at / taps;
      if (c < g.Cg) {
        grad_weight[k * strides.n + c * strides.c + tap / g.w.kernel * strides.h +
                    tap % g.w.kernel * strides.w] = cuda::narrow<T>(sum);
      }
    }
    __syncthreads();
  }
}

template <class T>
void run_add_slices(const cuda::Place& place, const Geometry& g, const Tensor& slices, int64_t slice_count,
                    int64_t padded, const Tensor& grad_weight) {
  const int64_t row = g.h.kernel * g.w.kernel * (padded > 0 ? padded : g.Cg);
  cuda::launch(place, "conv_relu_pool add_slices", add_slices<T>, cuda::pieces(g.K * row, 32), kSliceThreads,
               0, g, cuda::read<cuda::Sum<T>>(slices), slice_count, padded, cuda::write<T>(grad_weight),
               strides_of(grad_weight));
}

}  // namespace zb::conv_relu_pool
