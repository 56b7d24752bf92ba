// Where a kernel runs and the one way to start it.
//
// Kernels see blocks, threads and shared memory only through what is here (and plain threadIdx, blockIdx and
// gridDim in x): every grid is one-dimensional and each kernel strides over its items, so no problem is too
// large for a grid.
#pragma once

#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>

#include "common/tensor.h"

#define ZB_DEVICE __device__ __forceinline__
#define ZB_HOST_DEVICE __host__ __device__ __forceinline__

// Declares `name`, a pointer to the shared memory of the block: as many bytes as the launch gave.
#define ZB_SHARED_MEMORY(type, name)                        \
  extern __shared__ __align__(16) unsigned char zb_bytes[]; \
  type* const name = reinterpret_cast<type*>(zb_bytes)

namespace zb::cuda {

constexpr unsigned kWholeWarp = 0xffffffffu;

// How many pieces of `size` cover `count`.
ZB_HOST_DEVICE int64_t pieces(int64_t count, int64_t size) { return (count + size - 1) / size; }

// Raises with the op's name where `code` is an error, and clears the error so that nobody else is blamed for
// it. Where the library has no code for the GPU, says which GPU it is and what the library was built for.
void check(const char* op, const char* action, cudaError_t code);

// The device of a tensor made current, and the caller's stream on it, as long as one op runs.
class Place {
 public:
  Place(const char* op, const Tensor& on);
  const char* op() const { return op_; }
  cudaStream_t stream() const { return stream_; }

  // Sets all bytes of a tensor to 0, in the order of the stream.
  void clear(const Tensor& t, int64_t bytes) const {
    if (bytes > 0) check(op_, "clearing memory", cudaMemsetAsync(t.mutable_data_ptr(), 0, bytes, stream_));
  }

 private:
  const char* op_;
  torch::stable::accelerator::DeviceGuard guard_;
  cudaStream_t stream_ = nullptr;
};

template <class T>
struct Same {
  using type = T;
};

// Starts `kernel` with one block per item, or with the most blocks that a grid takes. The error code is that
// of this very launch.
template <class... P>
void launch(const Place& place, const char* name, void (*kernel)(P...), int64_t items, int threads,
            size_t shared, typename Same<P>::type... args) {
  constexpr int64_t kMostBlocks = 0x7fffffff;
  if (items <= 0) return;
  void* pointers[] = {&args...};
  const dim3 grid(static_cast<unsigned>(items < kMostBlocks ? items : kMostBlocks));
  const cudaError_t code =
      cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, dim3(static_cast<unsigned>(threads)),
                       pointers, shared, place.stream());
  check(place.op(), name, code);
}

}  // namespace zb::cuda
