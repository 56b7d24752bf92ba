// A tile of the kernel matrix: the product of two batches' rows, and of each pair its value by the recursion.
//
// Sums run in full precision, float32 or float64, on the ordinary units, never in TF32: the angle between two
// inputs comes from 1 - cos², which needs all the digits. They run in ascending order of the features, one
// multiply-add after another, alike for every pair.
//
// kSide × kSide pairs by a block of 16 × 16 threads. A thread sums 4 · kHalves rows times as many columns, 4
// neighbours of each half of the tile; steps of kDepth features go through two buffers in turns, the next
// one's numbers wait in registers meanwhile. Then the sums of half the rows pass at a time through shared
// memory, where any thread takes up any pair: its value is found in a loop that holds nothing else in
// registers, and it leaves in whole rows.
#pragma once

#include "common/cuda/ptx.h"
#include "dual_kernel/cuda/rows.h"

namespace zb::dual_kernel {

constexpr int kThreads = 256, kDepth = 16;
constexpr int kHalf = 64;  // rows (columns) of a half

template <class T>
struct Tile {
  static constexpr int kHalves = sizeof(T) == 4 ? 2 : 1;
  static constexpr int kSide = kHalf * kHalves;
  static constexpr int kEach = 4 * kHalves;           // rows, and columns, of a thread
  static constexpr int kPitch = kSide + 16 / sizeof(T);  // of a buffer: [kDepth][kPitch]
  static constexpr int kOperand = kDepth * kPitch;
  static constexpr int kStagedPitch = kSide + 1;      // of the values: [kHalf][kStagedPitch]
  static constexpr size_t shared_bytes() {
    constexpr size_t ring = 4 * kOperand, staged = kHalf * kStagedPitch;
    return (ring > staged ? ring : staged) * sizeof(T);
  }
};

// Where a thread stands in the 16 × 16 of the tile: a warp has 4 by 8 of them.
ZB_DEVICE int across() { return static_cast<int>(threadIdx.x % 8 + threadIdx.x / 32 % 2 * 8); }
ZB_DEVICE int down() { return static_cast<int>(threadIdx.x / 8 % 4 + threadIdx.x / 64 * 4); }

// What a thread brings of one batch's kSide rows for one step: single numbers, or whole vectors of a row.
template <class T>
class Brought {
 public:
  ZB_DEVICE void load(const Rows<T>& x, int64_t first_row, int64_t first, int64_t features) {
    const int thread = static_cast<int>(threadIdx.x);
    if (x.vectors) {
      const int64_t k = first + thread % kAcross * kVector;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int64_t row = first_row + thread / kAcross + i * kApart;
        Vector four{};
        if (row < x.rows && k < features) four = cuda::load_vector<Vector>(x.data + row * x.row_step + k);
#pragma unroll
        for (int e = 0; e < kVector; ++e) numbers_[i * kVector + e] = four.v[e];
      }
    } else {
      const int64_t k = first + thread % kDepth;
#pragma unroll
      for (int i = 0; i < kNumbers; ++i) {
        const int64_t row = first_row + thread / kDepth + i * (kThreads / kDepth);
        const bool inside = row < x.rows && k < features;
        numbers_[i] = inside ? x.data[row * x.row_step + k * x.column_step] : T(0);
      }
    }
  }

  ZB_DEVICE void put(const Rows<T>& x, T* buffer) const {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) {
      const int k = x.vectors ? thread % kAcross * kVector + i % kVector : thread % kDepth;
      const int row =
          x.vectors ? thread / kAcross + i / kVector * kApart : thread / kDepth + i * (kThreads / kDepth);
      buffer[k * Tile<T>::kPitch + row] = numbers_[i];
    }
  }

 private:
  static constexpr int kNumbers = Tile<T>::kSide * kDepth / kThreads;
  static constexpr int kVector = 16 / sizeof(T), kEach = kNumbers / kVector;
  static constexpr int kAcross = kDepth / kVector, kApart = kThreads / kAcross;
  using Vector = cuda::Vector<T, kVector>;
  T numbers_[kNumbers];
};

// Four neighbours, from shared memory.
template <class T>
ZB_DEVICE void load_four(T (&to)[4], const T* from) {
  constexpr int kVector = 16 / sizeof(T);
#pragma unroll
  for (int i = 0; i < 4; i += kVector) {
    const auto some = cuda::load_vector<cuda::Vector<T, kVector>>(from + i);
#pragma unroll
    for (int e = 0; e < kVector; ++e) to[i + e] = some.v[e];
  }
}

template <class T>
using Sums = T[Tile<T>::kEach][Tile<T>::kEach];

// sums[4·h + i][4·g + j] += row 64·h + 4·down() + i times column 64·g + 4·across() + j, over one step.
template <class T>
ZB_DEVICE void multiply_step(const T* rows, const T* columns, Sums<T>& sums) {
  using Tile = Tile<T>;
#pragma unroll 4
  for (int d = 0; d < kDepth; ++d) {
    T a[Tile::kHalves][4], b[Tile::kHalves][4];
#pragma unroll
    for (int h = 0; h < Tile::kHalves; ++h) {
      load_four(a[h], rows + d * Tile::kPitch + h * kHalf + 4 * down());
      load_four(b[h], columns + d * Tile::kPitch + h * kHalf + 4 * across());
    }
#pragma unroll
    for (int i = 0; i < Tile::kEach; ++i) {
#pragma unroll
      for (int j = 0; j < Tile::kEach; ++j)
        sums[i][j] = cuda::multiply_add(a[i / 4][i % 4], b[j / 4][j % 4], sums[i][j]);
    }
  }
}

// All threads of the block must call; afterwards the memory is free.
template <class T>
ZB_DEVICE void multiply_tile(T* shared, const Rows<T>& x1, const Rows<T>& x2, int64_t features,
                             int64_t first_row, int64_t first_column, Sums<T>& sums) {
  constexpr int kOperand = Tile<T>::kOperand;
  Brought<T> rows, columns;
  const auto load = [&](int64_t first) {
    rows.load(x1, first_row, first, features);
    columns.load(x2, first_column, first, features);
  };
  const auto put = [&](T* buffer) {
    rows.put(x1, buffer);
    columns.put(x2, buffer + kOperand);
  };
  load(0);
  put(shared);
  __syncthreads();
  int turn = 0;
#pragma unroll 1
  for (int64_t first = 0; first < features; first += kDepth) {
    const bool more = first + kDepth < features;
    if (more) load(first + kDepth);
    multiply_step(shared + turn * 2 * kOperand, shared + turn * 2 * kOperand + kOperand, sums);
    turn = 1 - turn;
    if (more) put(shared + turn * 2 * kOperand);  // all are done with this one since the last barrier
    __syncthreads();
  }
}

// The values of a tile. With `upper` only of pairs whose column is not before their row. For each half of the
// rows calls pass(first row of all, values [kHalf][kStagedPitch]); all threads do, with all values there.
template <class T, class Pass>
ZB_DEVICE void kernel_tile(T* shared, const Network<T>& net, const Rows<T>& x1, const Rows<T>& x2,
                           int64_t features, int64_t first_row, int64_t first_column, bool upper,
                           Pass&& pass) {
  using Tile = Tile<T>;
  Sums<T> sums = {};
  multiply_tile(shared, x1, x2, features, first_row, first_column, sums);
  const int c = static_cast<int>(threadIdx.x) % Tile::kSide;
  const int64_t column = first_column + c;
#pragma unroll 1
  for (int h = 0; h < Tile::kHalves; ++h) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < Tile::kEach; ++j) {
        const T sum = h == 0 ? sums[i][j] : sums[Tile::kEach - 4 + i][j];
        shared[(4 * down() + i) * Tile::kStagedPitch + j / 4 * kHalf + 4 * across() + j % 4] = sum;
      }
    }
    __syncthreads();
    const int64_t first = first_row + h * kHalf;
#pragma unroll 1
    for (int r = static_cast<int>(threadIdx.x) / Tile::kSide; r < kHalf; r += kThreads / Tile::kSide) {
      const int64_t row = first + r;
      if (row >= x1.rows || column >= x2.rows || (upper && column < row)) continue;
      T sum = shared[r * Tile::kStagedPitch + c];
      const T squares = x1.squares[row];
      const bool equal =
          equal_rows(x1.hashes[row], x2.hashes[column], squares, x2.squares[column], sum, features);
      if (equal) sum = squares;
      shared[r * Tile::kStagedPitch + c] = kernel_value(net, sum, x1.moments + row, x1.rows,
                                                        x2.moments + column, x2.rows, equal);
    }
    __syncthreads();
    pass(first, shared);
    __syncthreads();
  }
}

}  // namespace zb::dual_kernel
