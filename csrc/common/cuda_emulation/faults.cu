// Kernels with one fault each, and a few without, to show that the emulation sees what it should and nothing
// else. python_tests/test_cuda_emulation_faults.py runs them by name.
#include <cmath>
#include <cstdio>
#include <cstring>

#include "common/cuda/ptx.h"

namespace zb::cuda {
namespace {

constexpr int kThreads = 64;

// --- no fault -----------------------------------------------------------------------------------------

__global__ void block_sum(int* out) {
  ZB_SHARED_ARRAY(int, parts, kThreads / 32);
  const int t = static_cast<int>(threadIdx.x);
  int sum = t;
  for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, by);
  if (t % 32 == 0) parts[t / 32] = sum;
  __syncthreads();
  if (t == 0) out[blockIdx.x] = parts[0] + parts[1];
}

__global__ void warp_words(int* out) {
  ZB_SHARED_MEMORY(int, words);
  const int t = static_cast<int>(threadIdx.x);
  words[t] = t;
  __syncwarp();
  const int other = words[t ^ 1];
  const bool fine =
      __all_sync(kWholeWarp, other == (t ^ 1)) && __any_sync(kWholeWarp, t % 32 == 7) &&
      __ballot_sync(kWholeWarp, t & 1) == 0xaaaaaaaau && __reduce_add_sync(kWholeWarp, 2u) == 64 &&
      __reduce_or_sync(kWholeWarp, 1u << t % 32) == ~0u && __shfl_sync(kWholeWarp, t, 5, 8) % 8 == 5 &&
      __shfl_down_sync(kWholeWarp, t, 1) == t + (t % 32 < 31) &&
      __shfl_up_sync(kWholeWarp, t, 1) == t - (t % 32 > 0) &&
      __match_any_sync(kWholeWarp, t % 2) == 0x55555555u << t % 2;
  if (t % 32 < 8) {  // half a warp may talk among itself
    const int low = __shfl_xor_sync(0xffu, t, 4);
    if (low != (t ^ 4)) atomicAdd(out, 1);
  }
  if (!fine) atomicAdd(out, 1);
}

__global__ void early_return(int* out) {
  ZB_SHARED_MEMORY(int, words);
  const int t = static_cast<int>(threadIdx.x);
  if (t >= 40) return;
  words[t] = t;
  __syncthreads();
  if (t == 0) out[0] = words[39];
}

__global__ void copy_waited(const float* in, float* out) {
  ZB_SHARED_MEMORY(float, words);
  const int t = static_cast<int>(threadIdx.x);
  copy_async(words + 4 * t, in + 4 * t, t != 3);
  copy_async_commit();
  copy_async_wait<0>();
  __syncthreads();
  const int from = (t + 1) % kThreads;
  for (int i = 0; i < 4; ++i) out[4 * from + i] = words[4 * from + i];
}

__global__ void copy_not_waited(const float* in, float* out) {
  ZB_SHARED_MEMORY(float, words);
  const int t = static_cast<int>(threadIdx.x);
  copy_async(words + 4 * t, in + 4 * t, true);
  copy_async_commit();
  out[4 * t] = words[4 * t];  // 0xff bytes: a NaN
  copy_async_wait<0>();
}

__global__ void unwritten(float* out) {
  ZB_SHARED_MEMORY(float, words);
  out[threadIdx.x] = words[threadIdx.x];
}

// --- one fault each -----------------------------------------------------------------------------------

__global__ void past_dynamic_memory(int* out) {
  ZB_SHARED_MEMORY(int, words);
  words[threadIdx.x + 1] = 1;
  __syncthreads();
  out[threadIdx.x] = words[threadIdx.x];
}

__global__ void past_static_memory(int* out) {
  ZB_SHARED_ARRAY(int, words, kThreads);
  words[threadIdx.x + 1] = 1;
  __syncthreads();
  out[threadIdx.x] = words[threadIdx.x];
}

__global__ void past_global_memory(int* out) { out[threadIdx.x + 1] = 1; }

__global__ void divergent_barrier(int* out) {
  if (threadIdx.x % 2 == 0) {
    __syncthreads();
    out[0] = 1;
  } else {
    __syncthreads();
  }
}

__global__ void barrier_in_a_branch(int* out) {
  if (threadIdx.x < 32) __syncthreads();
  __syncthreads();
  out[threadIdx.x] = 1;
}

__global__ void missing_barrier(int* out) {
  ZB_SHARED_MEMORY(int, words);
  const unsigned t = threadIdx.x;
  words[t] = static_cast<int>(t);
  out[t] = words[(t + kThreads - 1) % kThreads];
}

__global__ void missing_barrier_at_the_end_of_a_loop(int* out) {
  ZB_SHARED_MEMORY(int, words);
  const unsigned t = threadIdx.x;
  for (int i = 0; i < 2; ++i) {
    words[t] = static_cast<int>(t) + i;
    __syncthreads();
    out[t] = words[(t + 1) % kThreads];
  }
}

__global__ void missing_warp_barrier(int* out) {
  ZB_SHARED_MEMORY(int, words);
  const unsigned t = threadIdx.x;
  words[t] = static_cast<int>(t);
  if (__ballot_sync(kWholeWarp, 1) != 0) out[t] = words[t ^ 1];  // a ballot orders no memory
}

__global__ void copy_without_barrier(const float* in, float* out) {
  ZB_SHARED_MEMORY(float, words);
  const int t = static_cast<int>(threadIdx.x);
  copy_async(words + 4 * t, in + 4 * t, true);
  copy_async_commit();
  copy_async_wait<0>();
  out[t] = words[4 * ((t + 1) % kThreads)];  // the neighbour's copy
}

__global__ void blocks_write_one_place(int* out) {
  if (threadIdx.x == 0) out[0] = static_cast<int>(blockIdx.x);
}

__global__ void misaligned_vector(float* out) {
  using Four = Vector<float, 4>;
  store_vector(out + 1, load_vector<Four>(out + 4));
}

__global__ void misaligned_cast(float* out) {
  struct alignas(16) Four {
    float v[4];
  };
  *reinterpret_cast<Four*>(out + 1) = Four{};
}

__global__ void misaligned_copy(const float* in) {
  ZB_SHARED_MEMORY(float, words);
  copy_async(words, in + 1, true);
  copy_async_commit();
  copy_async_wait<0>();
}

__global__ void copy_past_shared_memory(const float* in) {
  ZB_SHARED_MEMORY(float, words);
  copy_async(words + 4 * (threadIdx.x + 1), in, true);
  copy_async_commit();
  copy_async_wait<0>();
}

__global__ void copy_never_waited(const float* in) {
  ZB_SHARED_MEMORY(float, words);
  copy_async(words + 4 * threadIdx.x, in, true);
  copy_async_commit();
}

__global__ void more_shared_memory_than_asked_for(int* out) {  // 32 KiB of dynamic memory don't ask for more
  ZB_SHARED_ARRAY(int, words, 17 * 1024 / 4);
  words[threadIdx.x] = 0;
  out[threadIdx.x] = words[threadIdx.x];
}

__global__ void lane_outside_its_mask(int* out) {
  if (threadIdx.x % 32 < 8) out[threadIdx.x] = __shfl_sync(0xf0u, 1, 4);
}

__global__ void source_outside_the_mask(int* out) {
  if (threadIdx.x % 32 < 8) out[threadIdx.x] = __shfl_sync(0xffu, 1, 9);
}

__global__ void warp_waits_for_returned_lanes(int* out) {
  if (threadIdx.x % 32 == 5) return;
  out[threadIdx.x] = static_cast<int>(__ballot_sync(kWholeWarp, 1));
}

__global__ void different_masks(int* out) {
  const unsigned mask = threadIdx.x % 2 ? kWholeWarp : 0x0fffffffu;
  if (threadIdx.x % 32 < 28) out[threadIdx.x] = static_cast<int>(__ballot_sync(mask, 1));
}

__global__ void fragments_at_two_places(float* out) {
  float sums[4] = {};
  const uint32_t a[4] = {};
  if (threadIdx.x % 2) {
    multiply_fragments<__half>(sums, a, 0, 0);
    out[0] = sums[0];
  } else {
    uint32_t rows[4];
    ZB_SHARED_MEMORY(unsigned char, bytes);
    load_matrices(rows, bytes);
  }
}

void run(const char* name, void (*kernel)(int*), int* out, size_t shared = 4 * kThreads, int blocks = 1) {
  emulation::run("faults", name, blocks, kThreads, shared, [&] { kernel(out); });
}
void run(const char* name, void (*kernel)(float*), float* out, size_t shared = 4 * kThreads) {
  emulation::run("faults", name, 1, kThreads, shared, [&] { kernel(out); });
}
void run(const char* name, void (*kernel)(const float*, float*), const float* in, float* out) {
  emulation::run("faults", name, 1, kThreads, 16 * kThreads, [&] { kernel(in, out); });
}
void run(const char* name, void (*kernel)(const float*), const float* in) {
  emulation::run("faults", name, 1, kThreads, 16 * kThreads, [&] { kernel(in); });
}

// "" where the kernel ran and computed what it should; else what was wrong.
std::string outcome(const std::string& name) {
  auto* const words = new int[kThreads]();  // of exactly this size, for AddressSanitizer
  auto* const in = static_cast<float*>(::operator new(16 * kThreads, std::align_val_t(16)));
  auto* const out = static_cast<float*>(::operator new(16 * kThreads, std::align_val_t(16)));
  for (int i = 0; i < 4 * kThreads; ++i) in[i] = static_cast<float>(i), out[i] = -1;
  std::string wrong;
  const auto expect = [&](bool fine) {
    if (!fine) wrong = "computed something else";
  };
#define ZB_CASE(kernel, ...) \
  if (name == #kernel) run(#kernel, kernel, __VA_ARGS__)
  try {
    ZB_CASE(block_sum, words, 0, 2), expect(words[1] == kThreads * (kThreads - 1) / 2);
    ZB_CASE(warp_words, words), expect(words[0] == 0);
    ZB_CASE(early_return, words, 4 * 40), expect(words[0] == 39);
    ZB_CASE(copy_waited, in, out), expect(out[5] == 5 && out[12] == 0 && out[255] == 255);
    ZB_CASE(copy_not_waited, in, out), expect(!std::isnan(out[0]));
    ZB_CASE(unwritten, out), expect(!std::isnan(out[0]));
    ZB_CASE(past_dynamic_memory, words);
    ZB_CASE(past_static_memory, words);
    ZB_CASE(past_global_memory, words);
    ZB_CASE(divergent_barrier, words);
    ZB_CASE(barrier_in_a_branch, words);
    ZB_CASE(missing_barrier, words);
    ZB_CASE(missing_barrier_at_the_end_of_a_loop, words);
    ZB_CASE(missing_warp_barrier, words);
    ZB_CASE(copy_without_barrier, in, out);
    ZB_CASE(blocks_write_one_place, words, 0, 2);
    ZB_CASE(misaligned_vector, out);
    ZB_CASE(misaligned_cast, out);
    ZB_CASE(misaligned_copy, in);
    ZB_CASE(copy_past_shared_memory, in);
    ZB_CASE(copy_never_waited, in);
    ZB_CASE(more_shared_memory_than_asked_for, words, 32 * 1024);
    ZB_CASE(lane_outside_its_mask, words);
    ZB_CASE(source_outside_the_mask, words);
    ZB_CASE(warp_waits_for_returned_lanes, words);
    ZB_CASE(different_masks, words);
    ZB_CASE(fragments_at_two_places, out, 1024);
  } catch (const std::exception& e) {
    wrong = e.what();
  }
#undef ZB_CASE
  delete[] words;
  ::operator delete(in, std::align_val_t(16));
  ::operator delete(out, std::align_val_t(16));
  return wrong;
}

}  // namespace
}  // namespace zb::cuda

extern "C" __attribute__((visibility("default"))) const char* zb_emulation_fault(const char* name) {
  static std::string text;
  text = zb::cuda::outcome(name);
  return text.c_str();
}
