// The backward pass on a GPU: what its kernels share. backward.cu chooses among them.
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

// grad_weight = Σ slices[s], in one fixed order, rounded once.
constexpr int kSliceThreads = 256;

template <class T>
__global__ void __launch_bounds__(kSliceThreads)
    add_slices(Geometry g, const cuda::Sum<T>* __restrict__ slices, int64_t slice_count,
               T* __restrict__ grad_weight, Strides strides) {
  // 32 neighbouring weights by 8 warps, which take every eighth slice.
  using A = cuda::Sum<T>;
  constexpr int kWarps = kSliceThreads / 32;
  ZB_SHARED_ARRAY(A, parts, kSliceThreads);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t count = g.K * g.Cg * g.h.kernel * g.w.kernel;
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
      const int64_t w = i % g.w.kernel, h = i / g.w.kernel % g.h.kernel;
      const int64_t c = i / g.w.kernel / g.h.kernel % g.Cg, k = i / g.w.kernel / g.h.kernel / g.Cg;
      grad_weight[k * strides.n + c * strides.c + h * strides.h + w * strides.w] = cuda::narrow<T>(sum);
    }
    __syncthreads();
  }
}

template <class T>
void run_add_slices(const cuda::Place& place, const Geometry& g, const Tensor& slices, int64_t slice_count,
                    const Tensor& grad_weight) {
  cuda::launch(place, "conv_relu_pool add_slices", add_slices<T>,
               cuda::pieces(g.K * g.Cg * g.h.kernel * g.w.kernel, 32), kSliceThreads, 0, g,
               cuda::read<cuda::Sum<T>>(slices), slice_count, cuda::write<T>(grad_weight),
               strides_of(grad_weight));
}

}  // namespace zb::conv_relu_pool
