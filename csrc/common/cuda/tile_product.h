// A tile of a matrix product on the ordinary (SIMT) units: 64 × 64 results by a block of 256 threads, 4 × 4
// each.
//
// Sums run in one fixed order (ascending in the shared dimension, fused multiply-adds), so results repeat bit
// by bit. Thread t holds rows t/16 + 16·i and columns t%16 + 16·j: the 16 columns of one j are neighbours, so
// that a warp's ballot is 16 bits of two rows.
#pragma once

#include "common/cuda/dtype.h"

namespace zb::cuda {

constexpr int kTile = 64, kTileDepth = 16, kTileThreads = 256, kTilePitch = kTile + 1;

template <class A>
constexpr size_t tile_shared_bytes() {
  return 2 * kTileDepth * kTilePitch * sizeof(A);
}

// sums[i][j] += Σ_l left(row, l) right(column, l) over begin ≤ l < end. `left` and `right` bring what this
// thread loads: begin(l) is called once with the first l of the thread, next() after each step of 16, and
// load(i) gives row (column) t/16 + 16·i at the present l: 0 outside the matrix. All threads of the block
// must call.
template <class A, class Left, class Right>
ZB_DEVICE void tile_product(A* shared, int64_t begin, int64_t end, Left& left, Right& right,
                            A (&sums)[4][4]) {
  A* const a = shared;
  A* const b = shared + kTileDepth * kTilePitch;
  const int low = static_cast<int>(threadIdx.x) % 16, high = static_cast<int>(threadIdx.x) / 16;
  left.begin(begin + low);
  right.begin(begin + low);
  for (int64_t l = begin; l < end; l += kTileDepth) {
    const bool inside = l + low < end;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[low * kTilePitch + high + 16 * i] = inside ? left.load(i) : A(0);
      b[low * kTilePitch + high + 16 * i] = inside ? right.load(i) : A(0);
    }
    left.next();
    right.next();
    __syncthreads();
#pragma unroll 4
    for (int d = 0; d < kTileDepth; ++d) {
      A rows[4], columns[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        rows[i] = a[d * kTilePitch + high + 16 * i];
        columns[i] = b[d * kTilePitch + low + 16 * i];
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][j] = multiply_add(rows[i], columns[j], sums[i][j]);
      }
    }
    __syncthreads();
  }
}

}  // namespace zb::cuda
