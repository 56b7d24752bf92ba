// What the tiles know of each input before they meet it in a pair: [rows, features] of any strides, the sum
// of squares, a hash, and the moments at every layer.
#pragma once

#include "dual_kernel/cuda/recursion.h"

namespace zb::dual_kernel {

template <class T>
struct Rows {
  const T* data;
  int64_t rows, row_step, column_step;  // in elements
  bool vectors;                         // whether 16 bytes at a time can be read along each row
  const T* squares;                     // [rows]
  const uint64_t* hashes;               // [rows]: alike for equal rows (-0 is 0)
  const Moments<T>* moments;            // [depth, rows]
};

// The memory behind one Rows: (3 + 4·depth) numbers a row, or (2 + 4·depth) of float64.
struct RowMemory {
  Tensor squares, hashes, moments;
};

// Fills the memory, in the order of the stream: one pass over x.
template <class T>
Rows<T> rows_of(const cuda::Place& place, const Network<T>& net, const Tensor& x, RowMemory& memory);

// The hash tells unequal rows apart but for a chance of 2^-64 a pair; a pair that it takes for equal must have
// the product that equal ones have, within what rounding can do. So a wrong guess changes no more than
// rounding may. NaN and infinity are equal to nothing.
template <class T>
ZB_DEVICE bool equal_rows(uint64_t hash1, uint64_t hash2, T squares1, T squares2, T sum, int64_t features) {
  constexpr T eps = sizeof(T) == 4 ? T(1.1920929e-7) : T(2.220446049250313e-16);
  if (hash1 != hash2) return false;
  const T most = 8 * eps * static_cast<T>(features);
  return std::abs(sum - squares1) <= most * squares1 && std::abs(sum - squares2) <= most * squares2;
}

}  // namespace zb::dual_kernel
