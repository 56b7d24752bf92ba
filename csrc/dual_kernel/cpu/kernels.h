// The loops that are compiled once for each instruction set, and what they work on.
#pragma once

#include <cstdint>

#include "dual_kernel/forms.h"

namespace zb::dual_kernel::cpu {

constexpr int64_t kBlock =
    96;  // rows of x1 or x2 that are packed together: a multiple of every register tile's sides

enum class Kind { kCovariance, kTangent, kFirstLayer };  // NNGP; NTK of all layers; NTK of the first alone

// Problem, as the loops need it.
struct Network {
  Form form;
  Kind kind;
  int64_t depth, features;
  double product, b2;             // K_1 = b2 + product x·y
  double bias, dual, derivative;  // K' = bias + dual D(K); T' = derivative D'(K) T (+ K')
  double odd, even;               // max(x, slope x) = odd x + even |x|
  double zero_one, zero_both;     // its D' where a variance is 0
  double saturation;              // of erf and GELU: 1 + saturation K is what stands in their square roots
  // Piecewise linear without biases: K' and T' of a pair depend on its norms by a factor, on K and T by the
  // cosine. depth > 0.
  bool by_cosines;
  double closeness;  // how far rounding may take the product of equal rows from their squares
};

// What a row brings to each layer (see rows.h), by form.
constexpr int64_t quantities(Form form) {
  switch (form) {
    case Form::kIdentity:
      return 0;
    case Form::kPiecewiseLinear:  // 1 / sqrt(K(x, x)), sqrt(K(x, x))
    case Form::kErf:              // w = 1 / sqrt(1 + saturation K(x, x)), w²
      return 2;
    case Form::kGelu:  // both first ones, with K(x, x) for its root
      return 4;
    default:  // K(x, x) / 2
      return 1;
  }
}

// A block of at most kBlock rows; what is missing to kBlock is filled up: products with 0, the rest with 1.
template <class T>
struct Block {
  const T* packed;       // by pack_rows or pack_lanes
  const T* layers;       // [depth][quantities][kBlock]
  const uint64_t* hash;  // [kBlock], of the row's numbers
  const T* labels;       // [kBlock]: the low bits of hash, as bits of a T
  const T* squares;      // [kBlock]: x·x
  const T* equal;        // [kBlock]: the kernel of a row and its equal
  const T* extreme;      // [kBlock]: above 0 where one of its variances is what `careful` says (NaN where its
                         // kernels must be), else 0
  int64_t count;         // of rows
  bool careful;  // whether one of them has a variance that is 0, not finite, or so large or small that
                 // products of two leave the range of T
};

// K of two blocks is a tile [kBlock][kBlock] of T, a row of it for a row of `rows`. `tile` fills the part
// that rows.count and lanes.count leave, and may write all.
#define ZB_DUAL_LOOPS(T)                                                                                \
  /* x [count, features] with strides of `row` and `column` numbers; packed takes kBlock * features */  \
  void pack_rows(const T* x, int64_t row, int64_t column, int64_t count, int64_t features, T* packed);  \
  void pack_lanes(const T* x, int64_t row, int64_t column, int64_t count, int64_t features, T* packed); \
  void tile(const Network& network, const Block<T>& rows, const Block<T>& lanes, T* k);                 \
  void transpose(const T* k, T* to);                                                                    \
  /* y[vectors][kBlock] += kᵀ v for v [count][vectors], over the first `count` rows of k */             \
  void multiply(const T* k, int64_t count, const T* v, int64_t vectors, double* y);

namespace portable {
ZB_DUAL_LOOPS(float)
ZB_DUAL_LOOPS(double)
}  // namespace portable
namespace avx2 {
ZB_DUAL_LOOPS(float)
ZB_DUAL_LOOPS(double)
}  // namespace avx2
namespace avx512 {
ZB_DUAL_LOOPS(float)
ZB_DUAL_LOOPS(double)
}  // namespace avx512
#undef ZB_DUAL_LOOPS

}  // namespace zb::dual_kernel::cpu
