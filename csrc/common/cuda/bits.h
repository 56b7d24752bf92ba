// Bits set in rows of 64-bit words, from many threads, with one result whatever their order.
#pragma once

#include "common/cuda/launch.h"

namespace zb::cuda {

// ORs up to 32 bits into the words, from bit `first` on. The words must have been cleared.
ZB_DEVICE void or_bits(uint64_t* words, int64_t first, uint32_t bits) {
  if (bits == 0) return;
  auto* word = reinterpret_cast<unsigned long long*>(words) + (first >> 6);
  const int shift = static_cast<int>(first & 63);
  atomicOr(word, static_cast<unsigned long long>(bits) << shift);
  const uint64_t rest = shift > 32 ? static_cast<uint64_t>(bits) >> (64 - shift) : 0;
  if (rest != 0) atomicOr(word + 1, rest);
}

// Bit i of `bits` becomes bit 2·i.
ZB_DEVICE uint64_t spread(uint32_t bits) {
  uint64_t v = bits;
  v = (v | v << 16) & 0x0000ffff0000ffffu;
  v = (v | v << 8) & 0x00ff00ff00ff00ffu;
  v = (v | v << 4) & 0x0f0f0f0f0f0f0f0fu;
  v = (v | v << 2) & 0x3333333333333333u;
  return (v | v << 1) & 0x5555555555555555u;
}

// One bit per lane: lanes hold consecutive units `at` of rows of `length` units, `first` is the bit of this
// lane. The first lane of each row within the warp writes the row's bits. All lanes of the warp must call.
ZB_DEVICE void or_lanes(uint64_t* words, int64_t first, int64_t at, int64_t length, bool live, bool on) {
  const uint32_t votes = __ballot_sync(kWholeWarp, live && on);
  const int lane = static_cast<int>(threadIdx.x & 31);
  if (!live || (lane != 0 && at != 0)) return;
  const int64_t left = length - at;
  const uint32_t mine = left < 32 ? (1u << left) - 1 : 0xffffffffu;
  or_bits(words, first, (votes >> lane) & mine);
}

}  // namespace zb::cuda
