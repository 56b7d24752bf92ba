// nap_pack and nap_unpack on a GPU.
//
// Floor (bytes): pack reads x once and writes 1 bit a unit; unpack reads 1 bit and writes 1 byte a unit.
//
// Ladder
//   1  pack: a warp per word, two reads of 32 neighbours and two ballots. unpack: 16 bytes a thread, one
//   store.
//      Not yet run on a card.
#include "nap/nap.h"

#include "common/cuda/dtype.h"
#include "common/last_kernel.h"
#include "common/register.h"

namespace zb::nap {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kMostSizes = 4;

// Where unit f of row n lies: dimensions whose strides allow it are joined, so most tensors have one.
struct Layout {
  int64_t row;
  int dims;
  int64_t sizes[kMostSizes], strides[kMostSizes];  // innermost first

  ZB_DEVICE int64_t offset(int64_t f) const {
    if (dims <= 1) return f * strides[0];
    int64_t at = 0;
#pragma unroll
    for (int d = 0; d < kMostSizes; ++d) {
      if (d < dims) at += f % sizes[d] * strides[d], f /= sizes[d];
    }
    return at;
  }
};

// False where more than kMostSizes dimensions remain.
bool describe(const Tensor& x, Layout& layout) {
  layout = Layout{x.stride(0), 0, {}, {}};
  for (int64_t d = x.dim() - 1; d > 0; --d) {
    const int last = layout.dims - 1;
    if (x.size(d) == 1) continue;
    if (last >= 0 && x.stride(d) == layout.strides[last] * layout.sizes[last]) {
      layout.sizes[last] *= x.size(d);
      continue;
    }
    if (layout.dims == kMostSizes) return false;
    layout.sizes[layout.dims] = x.size(d);
    layout.strides[layout.dims++] = x.stride(d);
  }
  return true;
}

ZB_DEVICE bool is_on(bool v) { return v; }
template <class T>
ZB_DEVICE bool is_on(T v) {
  return cuda::widen(v) > 0;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    pack_words(Rows rows, const T* __restrict__ x, Layout layout, uint64_t* __restrict__ sig) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int64_t i = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; i < rows.N * rows.words;
       i += int64_t{gridDim.x} * kWarps) {
    const T* const row = x + i / rows.words * layout.row;
    const int64_t low = i % rows.words * 64 + lane, high = low + 32;
    const bool a = low < rows.F && is_on(row[layout.offset(low)]);
    const bool b = high < rows.F && is_on(row[layout.offset(high)]);
    const uint32_t low_votes = __ballot_sync(cuda::kWholeWarp, a);
    const uint32_t high_votes = __ballot_sync(cuda::kWholeWarp, b);
    if (lane == 0) sig[i] = static_cast<uint64_t>(high_votes) << 32 | low_votes;
  }
}

constexpr int kBytes = 16;

struct alignas(kBytes) Chunk {
  uint8_t v[kBytes];
};

__global__ void __launch_bounds__(kThreads)
    unpack_bits(Rows rows, const uint64_t* __restrict__ sig, int64_t row_stride, int64_t word_stride,
                uint8_t* __restrict__ bits) {
  const int64_t count = rows.N * rows.F, chunks = cuda::pieces(count, kBytes);
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < chunks;
       i += int64_t{gridDim.x} * kThreads) {
    const int64_t first = i * kBytes;
    int64_t n = first / rows.F, f = first % rows.F;
    uint64_t word = sig[n * row_stride + f / 64 * word_stride] >> (f % 64);
    Chunk chunk;
#pragma unroll
    for (int j = 0; j < kBytes; ++j) {
      chunk.v[j] = word & 1;
      word >>= 1;
      const bool row_ends = ++f == rows.F;
      if (row_ends) f = 0, ++n;
      if ((row_ends || f % 64 == 0) && first + j + 1 < count)
        word = sig[n * row_stride + f / 64 * word_stride];
    }
    if (first + kBytes <= count) {
      reinterpret_cast<Chunk*>(bits)[i] = chunk;
    } else {
#pragma unroll
      for (int j = 0; j < kBytes; ++j) {
        if (first + j < count) bits[first + j] = chunk.v[j];
      }
    }
  }
}

template <class T>
void launch_pack(const cuda::Place& place, const Rows& rows, const Tensor& x, const Layout& layout,
                 Tensor& sig) {
  cuda::launch(place, "nap_pack words", pack_words<T>, cuda::pieces(rows.N * rows.words, kWarps), kThreads, 0,
               rows, cuda::read<T>(x), layout, cuda::write<uint64_t>(sig));
}

void pack(const Rows& rows, const Tensor& any, Tensor& sig) {
  const cuda::Place place("nap_pack", any);
  Tensor x = any;
  Layout layout;
  if (!describe(x, layout)) {
    x = torch::stable::contiguous(x);
    describe(x, layout);
  }
  if (x.scalar_type() == ScalarType::Bool) {
    launch_pack<bool>(place, rows, x, layout, sig);
  } else {
    cuda::dispatch(x.scalar_type(), [&](auto type) {
      launch_pack<typename decltype(type)::type>(place, rows, x, layout, sig);
    });
  }
  note_kernel("nap_pack simt");
}

void unpack(const Rows& rows, const Tensor& sig, Tensor& bits) {
  const cuda::Place place("nap_unpack", sig);
  cuda::launch(place, "nap_unpack bits", unpack_bits,
               cuda::pieces(cuda::pieces(rows.N * rows.F, kBytes), kThreads), kThreads, 0, rows,
               cuda::read<uint64_t>(sig), sig.stride(0), sig.stride(1),
               static_cast<uint8_t*>(bits.mutable_data_ptr()));
  note_kernel("nap_unpack simt");
}

const Registration registration("CUDA", {ZB_NAP_KERNELS(pack, unpack)});

}  // namespace
}  // namespace zb::nap
