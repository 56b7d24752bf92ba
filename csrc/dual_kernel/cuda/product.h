// A tile of the kernel matrix: the product of two batches' rows, and of each pair its value by the recursion.
//
// Sums run in full precision, float32 or float64, on the ordinary units, never in TF32: the angle between two
// inputs comes from 1 - cos², which needs all the digits. They run in ascending order of the features, one
// multiply-add after another, alike for every pair.
//
// kRows × kColumns pairs by a block of 16 × 16 threads. A thread sums 4 columns times 4 neighbouring rows of
// each 64 (8 columns, too, would not fit into the registers); steps of kDepth features go through two buffers
// in turns, the next one's numbers wait in registers meanwhile. Then the sums pass through shared memory,
// where any thread takes up any pair: its value is found in a loop that holds nothing else in registers, and
// it leaves in whole rows.
#pragma once

#include "common/cuda/ptx.h"
#include "dual_kernel/cuda/rows.h"

namespace zb::dual_kernel {

constexpr int kThreads = 256, kDepth = 16;

template <class T>
struct Tile {
  static constexpr int kRows = sizeof(T) == 4 ? 128 : 64, kColumns = 64;
  static constexpr int kRowPitch = kRows + 16 / sizeof(T);        // of a buffer's rows: [kDepth][kRowPitch]
  static constexpr int kColumnPitch = kColumns + 16 / sizeof(T);  // of its columns
  static constexpr int kBuffer = kDepth * (kRowPitch + kColumnPitch);
  static constexpr int kPitch = kColumns + 1;  // of the values: [kRows][kPitch]
  static constexpr size_t shared_bytes() {
    constexpr size_t buffers = 2 * kBuffer, values = kRows * kPitch;
    return (buffers > values ? buffers : values) * sizeof(T);
  }
};

// Where a thread stands in the 16 × 16 of the tile: a warp has 4 by 8 of them.
ZB_DEVICE int across() { return static_cast<int>(threadIdx.x % 8 + threadIdx.x / 32 % 2 * 8); }
ZB_DEVICE int down() { return static_cast<int>(threadIdx.x / 8 % 4 + threadIdx.x / 64 * 4); }

// What a thread brings of COUNT of one batch's rows for one step, by 16 bytes along a row.
template <class T, int COUNT>
class Brought {
 public:
  ZB_DEVICE void load(const Rows<T>& x, int64_t first_row, int64_t first, int64_t features) {
    const int64_t k = first + within();
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int64_t row = first_row + thread() / kAcross + i * kApart;
      vectors_[i] = {};
      if (row < x.rows && k < features)
        vectors_[i] = cuda::load_vector<Vector>(x.data + row * x.row_step + k);
    }
  }

  ZB_DEVICE void put(T* buffer, int pitch) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int e = 0; e < kVector; ++e)
        buffer[(within() + e) * pitch + thread() / kAcross + i * kApart] = vectors_[i].v[e];
    }
  }

 private:
  static constexpr int kVector = 16 / sizeof(T), kVectors = COUNT * kDepth / kVector / kThreads;
  static constexpr int kAcross = kDepth / kVector, kApart = kThreads / kAcross;
  static_assert(kVectors * kApart == COUNT, "whole passes of the block");
  using Vector = cuda::Vector<T, kVector>;
  ZB_DEVICE static int thread() { return static_cast<int>(threadIdx.x); }
  ZB_DEVICE static int within() { return thread() % kAcross * kVector; }
  Vector vectors_[kVectors];
};

// The same number by number, of any strides, and not by way of registers, which the addresses would fill.
template <class T, int COUNT>
ZB_DEVICE void copy_step(const Rows<T>& x, int64_t first_row, int64_t first, int64_t features, T* buffer,
                         int pitch) {
  const int within = static_cast<int>(threadIdx.x) % kDepth;
  const int64_t k = first + within;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) / kDepth; i < COUNT; i += kThreads / kDepth) {
    const int64_t row = first_row + i;
    const bool inside = row < x.rows && k < features;
    buffer[within * pitch + i] = inside ? x.data[row * x.row_step + k * x.column_step] : T(0);
  }
}

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
using Sums = T[Tile<T>::kRows / 16][4];

// sums[4·h + i][j] += row 64·h + 4·down() + i times column 4·across() + j, over one step.
template <class T>
ZB_DEVICE void multiply_step(const T* rows, const T* columns, Sums<T>& sums) {
  constexpr int kHalves = Tile<T>::kRows / 64;
#pragma unroll 2
  for (int d = 0; d < kDepth; ++d) {
    T a[kHalves][4], b[4];
#pragma unroll
    for (int h = 0; h < kHalves; ++h)
      load_four(a[h], rows + d * Tile<T>::kRowPitch + h * 64 + 4 * down());
    load_four(b, columns + d * Tile<T>::kColumnPitch + 4 * across());
#pragma unroll
    for (int i = 0; i < 4 * kHalves; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[i][j] = cuda::multiply_add(a[i / 4][i % 4], b[j], sums[i][j]);
    }
  }
}

// All threads of the block must call; afterwards the memory is free.
template <class T>
ZB_DEVICE void multiply_tile(T* shared, const Rows<T>& x1, const Rows<T>& x2, int64_t features,
                             int64_t first_row, int64_t first_column, Sums<T>& sums) {
  using Tile = Tile<T>;
  constexpr int kColumnsAt = kDepth * Tile::kRowPitch;  // in a buffer
  const bool vectors = x1.vectors && x2.vectors;
  Brought<T, Tile::kRows> rows;
  Brought<T, Tile::kColumns> columns;
  const auto load = [&](int64_t first, T* buffer) {
    if (vectors) {
      rows.load(x1, first_row, first, features);
      columns.load(x2, first_column, first, features);
    } else {
      copy_step<T, Tile::kRows>(x1, first_row, first, features, buffer, Tile::kRowPitch);
      copy_step<T, Tile::kColumns>(x2, first_column, first, features, buffer + kColumnsAt,
                                   Tile::kColumnPitch);
    }
  };
  const auto put = [&](T* buffer) {
    if (!vectors) return;
    rows.put(buffer, Tile::kRowPitch);
    columns.put(buffer + kColumnsAt, Tile::kColumnPitch);
  };
  load(0, shared);
  put(shared);
  __syncthreads();
  T *now = shared, *next = shared + Tile::kBuffer;
#pragma unroll 1
  for (int64_t first = 0; first < features; first += kDepth) {
    const bool more = first + kDepth < features;
    if (more) load(first + kDepth, next);  // all are done with this buffer since the last barrier
    multiply_step(now, now + kColumnsAt, sums);
    if (more) put(next);
    __syncthreads();
    T* const before = now;
    now = next, next = before;
  }
}

// The values of a tile, into `shared` as [kRows][kPitch]. With `upper` only of pairs whose column is not
// before their row. All threads of the block must call; afterwards all values are there.
template <class T>
ZB_DEVICE void kernel_tile(T* shared, const Network<T>& net, const Rows<T>& x1, const Rows<T>& x2,
                           int64_t features, int64_t first_row, int64_t first_column, bool upper) {
  using Tile = Tile<T>;
  Sums<T> sums = {};
  multiply_tile(shared, x1, x2, features, first_row, first_column, sums);
#pragma unroll
  for (int i = 0; i < Tile::kRows / 16; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
      shared[(i / 4 * 64 + 4 * down() + i % 4) * Tile::kPitch + 4 * across() + j] = sums[i][j];
  }
  __syncthreads();
  const int c = static_cast<int>(threadIdx.x) % Tile::kColumns;
  const int64_t column = first_column + c;
#pragma unroll 1
  for (int r = static_cast<int>(threadIdx.x) / Tile::kColumns; r < Tile::kRows;
       r += kThreads / Tile::kColumns) {
    const int64_t row = first_row + r;
    if (row >= x1.rows || column >= x2.rows || (upper && column < row)) continue;
    T& value = shared[r * Tile::kPitch + c];
    const T sum = value, squares = x1.squares[row];
    const bool equal =
        equal_rows(x1.hashes[row], x2.hashes[column], squares, x2.squares[column], sum, features);
    value = kernel_value(net, equal ? squares : sum, x1.moments + row, x1.rows, x2.moments + column,
                         x2.rows, equal);
  }
  __syncthreads();
}

}  // namespace zb::dual_kernel
