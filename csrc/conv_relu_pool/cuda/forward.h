// What the forward kernels share: the call they are given, and the list they are chosen from (forward.cu).
#pragma once

#include "common/cuda/bits.h"
#include "common/cuda/dtype.h"
#include "conv_relu_pool/cuda/geometry.h"

namespace zb::conv_relu_pool {

// Where bits go; nullptr where not wanted. `image_bits` is the distance of two images in sig, `plane_bits`
// that of two planes of a bit code.
struct Sinks {
  uint64_t* map_sig;     // units "relu": act > 0 over the un-pooled map
  uint64_t* output_sig;  // units "output": y > 0 (also "relu" without a pool)
  uint64_t* winner_sig;  // units "winner": unit_bits bits of each code
  uint64_t* map_code;    // where the gradient's factor is 1, over the un-pooled map
  void* position_code;   // max pooling: uint8, or int32 where `wide`
  bool wide;
  Strides code_strides;
  int64_t image_bits, plane_bits, unit_bits;
};

// Writes the code of one pooled output of a max pool: 0 where no gradient passes, else 1 + the winner's
// position (with a slope 1 + 2 · position, and 1 more where the winner is not positive).
template <class A>
ZB_DEVICE int position_code(A value, A slope, int winner) {
  if (slope > 0) return 1 + 2 * winner + (value > 0 ? 0 : 1);
  return value > 0 || value != value ? 1 + winner : 0;
}

// Where the gradient passes unscaled: pre > 0, and at slope 0 also NaN. `act` tells it as well as `pre`.
template <class A>
ZB_DEVICE bool passes(A act, A slope) {
  return act > 0 || (slope == 0 && act != act);
}

// What is added to the map before it is activated; `from` is null where nothing is.
template <class T>
struct Added {
  const T* from;
  Strides at;  // of the un-pooled map

  // pre and this, both of T, rounded to T.
  ZB_DEVICE cuda::Sum<T> to(cuda::Sum<T> pre, int64_t offset) const {
    return cuda::rounded<T>(pre + cuda::widen(from[offset]));
  }
};

struct Call {
  const cuda::Place& place;
  const Problem& p;
  const Geometry& g;
  const Tensor &x, &weight;
  const Tensor* residual;
  const Outputs& out;
  const Sinks& sinks;
};

template <class T>
Added<T> added_in(const Call& c) {
  if (!c.residual) return {};
  const auto& s = c.p.r_strides;
  return {cuda::read<T>(*c.residual), {s[0], s[1], s[2], s[3]}};
}

// One kernel: why it can't run a call (nullptr where it can), and how it is run.
struct ForwardKernel {
  const char* name;
  const char* (*can_run)(const Call&);
  void (*run)(const Call&);
};

// Writes the bits of map positions that lie in no window (what floor leaves), where such bits are wanted.
void write_uncovered(const Call& c);

extern const ForwardKernel kFirstLayerTensorCore;  // few input channels, half precision
extern const ForwardKernel kFirstLayer;            // few input channels
extern const ForwardKernel kTensorCore;            // half precision and TF32
extern const ForwardKernel kFmaTiles;              // full-precision float32, many channels
extern const ForwardKernel kGeneral;               // everything

}  // namespace zb::conv_relu_pool
