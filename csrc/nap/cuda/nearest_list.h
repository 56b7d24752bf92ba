// The k smallest keys that a query has met, in shared memory, kept by one warp. All keys differ, so the k
// smallest are one certain set, in whatever order they come.
#pragma once

#include "nap/cuda/signatures.h"

namespace zb::nap {

constexpr int kMostNearest = 128;
constexpr int kRoom = 64;  // for keys that wait until the list is cut to k again
constexpr int kMostKeys = kMostNearest + kRoom;

// Sorts the `count` keys of a list and returns how many stay: at most k. A key's place is the number of
// smaller ones. The whole warp must call.
template <class Key>
ZB_DEVICE int cut_to_k(Key* keys, int count, int k) {
  constexpr int kEach = kMostKeys / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Key own[kEach];
  int place[kEach] = {};
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (32 * i + lane < count) own[i] = keys[32 * i + lane];
  }
  for (int other = 0; other < count; ++other) {
    const Key key = keys[other];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (32 * i < count && 32 * i + lane < count) place[i] += key < own[i] ? 1 : 0;
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (32 * i + lane < count && place[i] < k) keys[place[i]] = own[i];
  }
  __syncwarp();
  return count < k ? count : k;
}

}  // namespace zb::nap
