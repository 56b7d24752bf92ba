// Where a kernel runs and the one way to start it.
//
// Kernels see blocks, threads and shared memory only through what is here (and plain threadIdx, blockIdx and
// gridDim in x): every grid is one-dimensional and each kernel strides over its items, so no problem is too
// large for a grid. The same kernels run on the host, in the tests, where ZB_CUDA_EMULATION is defined
// (common/cuda_emulation/README.md): the switch is here and in ptx.h, and nowhere else.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "common/tensor.h"

#ifdef ZB_CUDA_EMULATION
#include "common/cuda_emulation/emulation.h"
#else
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#endif

#define ZB_DEVICE __device__ __forceinline__
#define ZB_HOST_DEVICE __host__ __device__ __forceinline__

// ZB_SHARED_MEMORY declares `name`, a pointer to the dynamic shared memory of the block: as many bytes as the
// launch gave. ZB_SHARED_ARRAY declares `name`, a pointer to `count` elements whose number the compiler
// knows.
#ifdef ZB_CUDA_EMULATION
#define ZB_SHARED_MEMORY(type, name) \
  type* const name = static_cast<type*>(::zb::cuda::emulation::dynamic_shared())
#define ZB_SHARED_ARRAY(type, name, count) \
  type* const name =                       \
      static_cast<type*>(::zb::cuda::emulation::static_shared(sizeof(type) * (count), {__FILE__, __LINE__}))
#else
#define ZB_SHARED_MEMORY(type, name)                         \
  extern __shared__ __align__(128) unsigned char zb_bytes[]; \
  type* const name = reinterpret_cast<type*>(zb_bytes)
#define ZB_SHARED_ARRAY(type, name, count)           \
  __shared__ __align__(16) type name##_array[count]; \
  type* const name = name##_array
#endif

namespace zb::cuda {

constexpr unsigned kWholeWarp = 0xffffffffu;

// How many pieces of `size` cover `count`.
ZB_HOST_DEVICE int64_t pieces(int64_t count, int64_t size) { return (count + size - 1) / size; }

// The device of a tensor made current, and the caller's stream on it, as long as one op runs. The tensors
// must outlive it: errors name the op and their shapes.
class Place {
 public:
#ifdef ZB_CUDA_EMULATION
  explicit Place(const char* op, const Tensor& x, const Tensor* weight = nullptr)
      : op_(op), x_(x), weight_(weight) {}
#else
  explicit Place(const char* op, const Tensor& x, const Tensor* weight = nullptr);
#endif
  std::string what() const {
    return std::string(op_) + " (x " + shape_text(x_) + (weight_ ? ", weight " + shape_text(*weight_) : "") +
           ")";
  }

#ifdef ZB_CUDA_EMULATION
  void clear(const Tensor& t, int64_t bytes) const {
    if (bytes > 0) std::memset(t.mutable_data_ptr(), 0, bytes);
  }
  int64_t processors() const { return emulation::kProcessors; }
  void refuse_capture(const char*) const {}
  int64_t wait_for(const Tensor& number) const {
    return *static_cast<const int64_t*>(number.const_data_ptr());
  }
#else
  cudaStream_t stream() const { return stream_; }

  // Lets a kernel have as much dynamic shared memory as this device gives a block. Always all of it, and
  // once: a limit that followed the calls would be lowered by one thread between another's asking and its
  // launch.
  void allow_all_shared_memory(const char* name, const void* function) const;

  // Raises where `code` is an error, and clears the error so that nobody else is blamed for it. Where the
  // library has no code for the GPU, says which GPU it is and what the library was built for.
  void check(const char* action, cudaError_t code) const {
    if (code != cudaSuccess) fail(action, code);
  }

  // Sets all bytes of a tensor to 0, in the order of the stream.
  void clear(const Tensor& t, int64_t bytes) const {
    if (bytes > 0) check("clearing memory", cudaMemsetAsync(t.mutable_data_ptr(), 0, bytes, stream_));
  }

  // How many SMs the device has.
  int64_t processors() const;

  // Raises where the stream is being captured: `why` a graph can't hold the op.
  void refuse_capture(const char* why) const;

  // The first int64 of a tensor, waiting for all that the stream was given before.
  int64_t wait_for(const Tensor& number) const;
#endif

 private:
  const char* op_;
  const Tensor& x_;
  const Tensor* weight_;
#ifndef ZB_CUDA_EMULATION
  [[noreturn]] void fail(const char* action, cudaError_t code) const;
  torch::stable::accelerator::DeviceGuard guard_;
  cudaStream_t stream_ = nullptr;
#endif
};

// A block has 48 KiB without asking, static shared memory included: launches with more dynamic memory than
// this ask. The rest is room for static arrays.
#ifdef ZB_CUDA_EMULATION
using emulation::kSharedWithoutAsking;
#else
constexpr size_t kSharedWithoutAsking = 32 * 1024;
#endif

template <class T>
struct Same {
  using type = T;
};

// Starts `kernel` with one block per item, or with the most blocks that a grid takes. The error code is that
// of this very launch.
template <class... P>
void launch(const Place& place, const char* name, void (*kernel)(P...), int64_t items, int threads,
            size_t shared, typename Same<P>::type... args) {
  static_assert((sizeof(P) + ... + 0) <= 4096, "a kernel takes 4 KiB of arguments");
  if (items <= 0) return;
#ifdef ZB_CUDA_EMULATION
  emulation::run(place.what().c_str(), name, items, threads, shared, [&] { kernel(args...); });
#else
  constexpr int64_t kMostBlocks = 0x7fffffff;
  const void* const function = reinterpret_cast<const void*>(kernel);
  if (shared > kSharedWithoutAsking) place.allow_all_shared_memory(name, function);
  void* pointers[] = {&args...};
  const dim3 grid(static_cast<unsigned>(items < kMostBlocks ? items : kMostBlocks));
  place.check(name, cudaLaunchKernel(function, grid, dim3(static_cast<unsigned>(threads)), pointers, shared,
                                     place.stream()));
#endif
}

}  // namespace zb::cuda
