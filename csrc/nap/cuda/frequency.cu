// nap_frequency on a GPU: how often each unit is on.
//
// Floor: one read of the words, 14.5 bytes a clock and SM on an H100. A thread adds up the rows of one word.
// Rows go eight at a time through full adders, bit by bit (7 adders of two three-input operations on each
// half of a word), and the eights ripple on into planes of weight 8 to 128: 6 operations of 32 bits a word,
// which an SM runs at 64 a clock, a sixth of the time of the read. 248 rows later the planes are turned, 8 by
// 8 bits, into bytes, each the count of one unit, and the block adds these up.
//
// Ladder
//   1  eight loads under way in a thread, 4 blocks an SM. Predicted: nine tenths of the memory's bandwidth
//      or more. Not yet run on a card.
#include "common/last_kernel.h"
#include "common/register.h"
#include "nap/cuda/signatures.h"

namespace zb::nap {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = 8;     // of a thread at once
constexpr int kEights = 31;  // that 8 planes count beside the 7 ones that may be left
constexpr int kPlanes = 8;
constexpr int kMostAcross = 32;
constexpr int64_t kMostRows = int64_t{1} << 30;  // of a block: it counts in 32 bits

// A block reads `across` words side by side (a power of two), by 256 / across threads each.
struct Plan {
  int across;
  int64_t parts, part_rows;
};

// sum + x + y bit by bit: the sum stays, the carries come back.
ZB_DEVICE uint64_t add_bits(uint64_t& sum, uint64_t x, uint64_t y) {
  const uint64_t either = x ^ y, carry = (x & y) | (sum & either);
  sum ^= either;
  return carry;
}

// Planes of weight 1, 2, …, 128 become words of which word s holds in byte b the count of unit 8·b + s:
// within each byte an 8 × 8 matrix of bits is turned.
ZB_DEVICE void turn(uint64_t (&planes)[kPlanes]) {
  const auto swap = [](uint64_t& low, uint64_t& high, int by, uint64_t mask) {
    const uint64_t t = (low >> by ^ high) & mask;
    high ^= t, low ^= t << by;
  };
#pragma unroll
  for (int p = 0; p < kPlanes; p += 2) swap(planes[p], planes[p + 1], 1, 0x5555555555555555);
#pragma unroll
  for (int p = 0; p < kPlanes; ++p) {
    if (!(p & 2)) swap(planes[p], planes[p + 2], 2, 0x3333333333333333);
  }
#pragma unroll
  for (int p = 0; p < kPlanes / 2; ++p) swap(planes[p], planes[p + 4], 4, 0x0f0f0f0f0f0f0f0f);
}

// Adds the bytes of a thread's words, and of the lanes that share its column, to the block's counts
// [64 units][across].
ZB_DEVICE void add_up(const uint64_t (&bytes)[kPlanes], int across, uint32_t* counts) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int sharing = 32 / across, share = lane / across, column = lane % across;
#pragma unroll
  for (int s = 0; s < kPlanes; ++s) {
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {  // bytes 0, 2, 4, 6 as numbers of 16 bits, then 1, 3, 5, 7
      uint64_t four = bytes[s] >> 8 * odd & 0x00ff00ff00ff00ff;
      for (int d = across; d < 32; d *= 2) four += __shfl_xor_sync(cuda::kWholeWarp, four, d);
      if ((2 * s + odd) % sharing != share) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int unit = 8 * (2 * i + odd) + s;
        atomicAdd(counts + unit * across + column, static_cast<uint32_t>(four >> 16 * i & 0xffff));
      }
    }
  }
}

__global__ void __launch_bounds__(kThreads, 4)
    count_units(Signatures sig, int64_t F, Plan plan, unsigned long long* __restrict__ counts) {
  ZB_SHARED_ARRAY(uint32_t, block_counts, 64 * kMostAcross);
  const int t = static_cast<int>(threadIdx.x), across = plan.across, down = kThreads / across;
  const int64_t columns = cuda::pieces(sig.words, across);
  for (int64_t item = blockIdx.x; item < columns * plan.parts; item += gridDim.x) {
    for (int i = t; i < 64 * across; i += kThreads) block_counts[i] = 0;
    __syncthreads();
    const int64_t first_word = item % columns * across, word = first_word + t % across;
    const int64_t first = item / columns * plan.part_rows;
    const int64_t end = first + plan.part_rows < sig.rows ? first + plan.part_rows : sig.rows;
    const int64_t last = word < sig.words ? end : 0;  // no rows where there is no word
    const uint64_t* const column = sig.data + (word < sig.words ? word : 0) * sig.word_step;
    int64_t row = first + t / across;
    int64_t sweeps = cuda::pieces(end - first, int64_t{kRows} * down);  // of the whole block
    while (sweeps > 0) {
      uint64_t planes[kPlanes] = {};
      const int some = sweeps < kEights ? static_cast<int>(sweeps) : kEights;
      sweeps -= some;
#pragma unroll 1
      for (int i = 0; i < some; ++i, row += int64_t{kRows} * down) {
        uint64_t x[kRows];
#pragma unroll
        for (int j = 0; j < kRows; ++j) {
          const int64_t n = row + j * down;
          x[j] = n < last ? column[n * sig.row_step] : 0;
        }
        uint64_t twos[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) twos[j] = add_bits(planes[0], x[2 * j], x[2 * j + 1]);
        const uint64_t fours = add_bits(planes[1], twos[0], twos[1]);
        uint64_t carry = add_bits(planes[2], fours, add_bits(planes[1], twos[2], twos[3]));
#pragma unroll
        for (int p = 3; p < kPlanes; ++p) {
          const uint64_t sum = planes[p] ^ carry;
          carry &= planes[p], planes[p] = sum;
        }
      }
      turn(planes);
      add_up(planes, across, block_counts);
    }
    __syncthreads();
    for (int i = t; i < 64 * across; i += kThreads) {
      const int64_t unit = (first_word + i % across) * 64 + i / across;
      if (unit < F && block_counts[i] != 0)
        atomicAdd(counts + unit, static_cast<unsigned long long>(block_counts[i]));
    }
    __syncthreads();
  }
}

Plan plan_of(const cuda::Place& place, const Signatures& sig) {
  Plan plan{1, 0, 0};
  // Neighbouring threads read what lies side by side: words, or rows.
  if (sig.word_step == 1 || sig.row_step != 1) {
    while (plan.across < kMostAcross && plan.across < sig.words) plan.across *= 2;
  }
  const int64_t columns = cuda::pieces(sig.words, plan.across), sweep = kRows * (kThreads / plan.across);
  const int64_t wanted = cuda::pieces(4 * place.processors(), columns);
  const int64_t sweeps = cuda::pieces(cuda::pieces(sig.rows, wanted), sweep);
  plan.part_rows = sweep * sweeps < kMostRows ? sweep * sweeps : kMostRows;
  plan.parts = cuda::pieces(sig.rows, plan.part_rows);
  return plan;
}

void frequency(const Rows& rows, const Tensor& words, Tensor& out) {
  const cuda::Place place("nap_frequency", words);
  place.clear(out, rows.F * static_cast<int64_t>(sizeof(int64_t)));
  if (rows.N > 0) {
    Signatures sig = signatures(words);
    sig.words = rows.words;
    const Plan plan = plan_of(place, sig);
    cuda::launch(place, "nap_frequency units", count_units, cuda::pieces(sig.words, plan.across) * plan.parts,
                 kThreads, 0, sig, rows.F, plan, static_cast<unsigned long long*>(out.mutable_data_ptr()));
  }
  note_kernel("nap_frequency units");
}

const Registration registration("CUDA", {ZB_NAP_FREQUENCY(frequency)});

}  // namespace
}  // namespace zb::nap
