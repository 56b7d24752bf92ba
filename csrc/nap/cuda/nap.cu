// nap_pack and nap_unpack on a GPU.
//
// Floor (bytes): pack reads x once and writes 1 bit a unit; unpack reads 1 bit and writes 1 byte a unit. An
// H100 moves 14.5 bytes a clock and SM, so a warp has some 140 issue slots for each of its 16-byte loads, and
// an SM must have about 20 KB under way.
//
// Ladder
//   1  pack: a warp per word, two reads of 32 neighbours and two ballots. unpack: 16 bytes a thread, one
//      store, bit by bit.
//   2  pack: a 16-byte load a lane, four under way (pack_vectors: 64 KB an SM at 32 warps); memory in
//      another order by a lane per channel (pack_columns, channels_last) or as before (pack_words).
//      unpack: four bits become four bytes by one multiplication. Predicted: copy bandwidth for
//      pack_vectors and unpack, half of it or more for pack_columns. Not yet run on a card.
#include "nap/nap.h"

#include "common/cuda/bits.h"
#include "common/cuda/ptx.h"
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

// A bool is read as its byte.
ZB_DEVICE bool is_on(uint8_t v) { return v != 0; }
template <class T>
ZB_DEVICE bool is_on(T v) {
  return cuda::widen(v) > 0;
}

// --- rows that lie dense in memory: 64 / kUnits lanes make a word, one vector each --------------------

constexpr int kBytes = 16, kLoads = 4;

// Units first, first + 1, … of a row of F, of which those outside of the row are off.
template <class T>
struct Units {
  static constexpr int kCount = kBytes / sizeof(T);
  static constexpr int kLanes = 64 / kCount;             // that make one word
  static constexpr int kWords = kLoads * (32 / kLanes);  // that a warp makes at once
  cuda::Vector<uint32_t, 4> vector;                      // not of T: bytes would take a register each
  const T* from = nullptr;
  int begin = 0, end = 0;

  ZB_DEVICE bool whole() const { return begin == 0 && end == kCount; }
  ZB_DEVICE void load(const T* row, int64_t first, int64_t F) {
    from = row + first;
    begin = first < 0 ? static_cast<int>(-first) : 0;
    end = F - first < kCount ? static_cast<int>(F - first) : kCount;
    if (whole()) vector = cuda::load_vector<cuda::Vector<uint32_t, 4>>(from);
  }
  ZB_DEVICE uint32_t bits() const {
    uint32_t bits = 0;
    if (whole()) {
      cuda::Vector<T, kCount> units;
      memcpy(&units, &vector, kBytes);
#pragma unroll
      for (int j = 0; j < kCount; ++j) bits |= is_on(units.v[j]) ? 1u << j : 0u;
    } else {
#pragma unroll 1
      for (int j = begin; j < end; ++j) bits |= is_on(from[j]) ? 1u << j : 0u;
    }
    return bits;
  }
};

// ALIGNED: all rows start at a multiple of 16 bytes. Else the vectors of a row start up to 15 bytes before
// it, a word is shifted by as many units, and its last units come from one vector more.
template <class T, bool ALIGNED>
__global__ void __launch_bounds__(kThreads, 4)
    pack_vectors(Rows rows, const T* __restrict__ x, int64_t row_stride, uint64_t* __restrict__ sig) {
  using U = Units<T>;
  const int lane = static_cast<int>(threadIdx.x) % 32, part = lane % U::kLanes;
  const int64_t count = rows.N * rows.words, warp = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const auto shift_of = [](const T* row) {
    return ALIGNED ? 0 : static_cast<int>(reinterpret_cast<uintptr_t>(row) % kBytes / sizeof(T));
  };
  for (int64_t first = warp * U::kWords; first < count; first += int64_t{gridDim.x} * kWarps * U::kWords) {
    U units[kLoads], behind;
#pragma unroll
    for (int s = 0; s < kLoads; ++s) {
      const int64_t i = first + s * (32 / U::kLanes) + lane / U::kLanes;
      const int64_t n = rows.N == 1 ? 0 : i / rows.words;
      const T* const row = x + n * row_stride;
      const int64_t unit = (i - n * rows.words) * 64 - shift_of(row);
      units[s].load(row, unit + part * U::kCount, i < count ? rows.F : unit);
      if (!ALIGNED && part == s) behind.load(row, unit + 64, i < count ? rows.F : unit);
    }
    uint64_t mine = 0;  // of the lanes of a word, the first four keep the words of the four loads
#pragma unroll
    for (int s = 0; s < kLoads; ++s) {
      uint32_t half = units[s].bits() << part * U::kCount % 32;
#pragma unroll
      for (int d = 1; d < U::kLanes / 2; d *= 2) half |= __shfl_xor_sync(cuda::kWholeWarp, half, d);
      const uint32_t other = __shfl_xor_sync(cuda::kWholeWarp, half, U::kLanes / 2);
      const bool low = part < U::kLanes / 2;
      if (part == s) mine = static_cast<uint64_t>(low ? other : half) << 32 | (low ? half : other);
    }
    const int64_t i = first + part * (32 / U::kLanes) + lane / U::kLanes;
    if (part >= kLoads || i >= count) continue;
    if constexpr (!ALIGNED) {
      const int shift = shift_of(x + i / rows.words * row_stride);
      if (shift > 0) mine = mine >> shift | static_cast<uint64_t>(behind.bits()) << (64 - shift);
    }
    sig[i] = mine;
  }
}

// --- images in channels_last: a lane collects 32 positions of its channel -----------------------------

// x [N, S, C] in memory, units in the order [C, S]. sig must have been cleared.
template <class T>
__global__ void __launch_bounds__(kThreads)
    pack_columns(Rows rows, const T* __restrict__ x, Layout layout, uint64_t* __restrict__ sig) {
  const int64_t S = layout.sizes[0], C = layout.sizes[1], step = layout.strides[0];
  const int64_t across = cuda::pieces(C, 32), down = cuda::pieces(S, 32);
  for (int64_t i = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; i < rows.N * down * across;
       i += int64_t{gridDim.x} * kWarps) {
    const int64_t c = i % across * 32 + threadIdx.x % 32, first = i / across % down * 32,
                  n = i / across / down;
    if (c >= C) continue;
    const T* const from = x + n * layout.row + first * step + c;
    const int positions = S - first < 32 ? static_cast<int>(S - first) : 32;
    uint32_t bits = 0;
#pragma unroll 8
    for (int p = 0; p < positions; ++p) bits |= is_on(from[p * step]) ? 1u << p : 0u;
    cuda::or_bits(sig + n * rows.words, c * S + first, bits);
  }
}

// --- any strides --------------------------------------------------------------------------------------

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

// --- and back -----------------------------------------------------------------------------------------

// Four bits as four bytes: bit k is multiplied on to bit 8k.
ZB_DEVICE uint32_t as_bytes(uint32_t bits) { return (bits & 0xf) * 0x204081u & 0x01010101u; }

__global__ void __launch_bounds__(kThreads, 4)
    unpack_bits(Rows rows, const uint64_t* __restrict__ sig, int64_t row_stride, int64_t word_stride,
                uint8_t* __restrict__ bits) {
  const int64_t count = rows.N * rows.F, chunks = cuda::pieces(count, kBytes);
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < chunks;
       i += int64_t{gridDim.x} * kThreads) {
    const int64_t first = i * kBytes;
    int64_t n = first / rows.F, f = first % rows.F;
    const uint64_t* const at = sig + n * row_stride + f / 64 * word_stride;
    const int shift = static_cast<int>(f % 64);
    uint64_t word = *at >> shift;
    if (f + kBytes <= rows.F) {  // in one row, and so in one word or two
      if (shift > 64 - kBytes) word |= at[word_stride] << (64 - shift);
      cuda::Vector<uint32_t, 4> chunk;
#pragma unroll
      for (int j = 0; j < 4; ++j) chunk.v[j] = as_bytes(static_cast<uint32_t>(word >> 4 * j));
      cuda::store_vector(bits + first, chunk);
      continue;
    }
    cuda::Vector<uint8_t, kBytes> chunk;
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
      cuda::store_vector(bits + first, chunk);
    } else {
#pragma unroll
      for (int j = 0; j < kBytes; ++j) {
        if (first + j < count) bits[first + j] = chunk.v[j];
      }
    }
  }
}

template <class T>
void run_pack(const cuda::Place& place, Rows rows, const T* x, const Layout& layout, Tensor& out) {
  uint64_t* const sig = cuda::write<uint64_t>(out);
  if (layout.dims == 0 || (layout.dims == 1 && layout.strides[0] == 1)) {
    if (layout.row == rows.F && rows.F % 64 == 0) rows = {1, rows.N * rows.F, rows.N * rows.words};
    using U = Units<T>;
    const bool aligned =
        reinterpret_cast<uintptr_t>(x) % kBytes == 0 && (rows.N == 1 || layout.row % U::kCount == 0);
    cuda::launch(place, "nap_pack vectors", aligned ? pack_vectors<T, true> : pack_vectors<T, false>,
                 cuda::pieces(rows.N * rows.words, kWarps * U::kWords), kThreads, 0, rows, x, layout.row,
                 sig);
    return note_kernel(aligned ? "nap_pack vectors" : "nap_pack shifted vectors");
  }
  // With fewer channels most lanes would have none.
  if (layout.dims == 2 && layout.strides[1] == 1 && layout.sizes[1] >= 8) {
    place.clear(out, out.numel() * sizeof(uint64_t));
    const int64_t items = rows.N * cuda::pieces(layout.sizes[0], 32) * cuda::pieces(layout.sizes[1], 32);
    cuda::launch(place, "nap_pack columns", pack_columns<T>, cuda::pieces(items, kWarps), kThreads, 0, rows,
                 x, layout, sig);
    return note_kernel("nap_pack columns");
  }
  cuda::launch(place, "nap_pack words", pack_words<T>, cuda::pieces(rows.N * rows.words, kWarps), kThreads, 0,
               rows, x, layout, sig);
  note_kernel("nap_pack words");
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
    run_pack(place, rows, static_cast<const uint8_t*>(x.const_data_ptr()), layout, sig);
  } else {
    cuda::dispatch(x.scalar_type(), [&](auto type) {
      run_pack(place, rows, cuda::read<typename decltype(type)::type>(x), layout, sig);
    });
  }
}

void unpack(const Rows& rows, const Tensor& sig, Tensor& bits) {
  const cuda::Place place("nap_unpack", sig);
  cuda::launch(place, "nap_unpack bits", unpack_bits,
               cuda::pieces(cuda::pieces(rows.N * rows.F, kBytes), kThreads), kThreads, 0, rows,
               cuda::read<uint64_t>(sig), sig.stride(0), sig.stride(1),
               static_cast<uint8_t*>(bits.mutable_data_ptr()));
  note_kernel("nap_unpack vectors");
}

const Registration registration("CUDA", {ZB_NAP_KERNELS(pack, unpack)});

}  // namespace
}  // namespace zb::nap
