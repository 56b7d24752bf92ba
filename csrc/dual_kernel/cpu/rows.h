// What each row of x1 and x2 brings to its kernels, found once: its square, its hash, and its variance in
// each layer.
#pragma once

#include <vector>

#include "dual_kernel/cpu/kernels.h"
#include "dual_kernel/dual_kernel.h"

namespace zb::dual_kernel::cpu {

Network network_of(const Problem& p);

// A matrix as it lies in memory.
template <class T>
struct Matrix {
  explicit Matrix(const Tensor& t)
      : data(static_cast<const T*>(t.data_ptr())), rows(t.size(0)), row(t.stride(0)), column(t.stride(1)) {}

  const T* data;
  int64_t rows, row, column;
};

// Of all rows of x, in blocks of kBlock.
template <class T>
class Rows {
 public:
  Rows(const Network& network, const Matrix<T>& x);

  const Matrix<T>& x() const { return x_; }
  int64_t blocks() const { return ceil_div(x_.rows, kBlock); }
  int64_t count(int64_t block) const { return std::min(kBlock, x_.rows - block * kBlock); }
  uint64_t hash(int64_t row) const { return hash_[row]; }

  // The block without its packed numbers.
  Block<T> block(int64_t block) const {
    const int64_t first = block * kBlock;
    return {nullptr,
            layers_.data() + first * per_row_,
            hash_.data() + first,
            labels_.data() + first,
            squares_.data() + first,
            equal_.data() + first,
            extreme_.data() + first,
            count(block),
            careful_[block] != 0};
  }

 private:
  void look_at(const Network& network, int64_t block);

  Matrix<T> x_;
  int64_t per_row_;  // quantities of all layers
  std::vector<T> layers_, labels_, squares_, equal_, extreme_;
  std::vector<uint64_t> hash_;
  std::vector<uint8_t> careful_;
};

}  // namespace zb::dual_kernel::cpu
