// conv → act → pool on tensor cores (mma.sync): float16, bfloat16, and float32 where torch allows TF32.
//
// Floor (bytes): x, weight and y once (+ code, sig); where x is not channels_last in whole chunks it is also
// copied once. Floor (operations): N·K·H1·W1·Cg·R·S multiply-adds at the tensor cores' rate; what feeds them
// from shared memory (64 × 64 by a warp: 8 ldmatrix for 32 mma) caps mma.sync near two thirds of that on an
// H100.
//
// Ladder
//   1  128 × 128 (or 64) tiles, 3-stage cp.async ring, windows pooled in registers. Emulated and compiled;
//      not yet run on a card.
#include "conv_relu_pool/cuda/tile_operands.h"

#include "common/cuda/tf32.h"

namespace zb::conv_relu_pool {
namespace {

const char* can_run(const Call& c) {
  if (c.p.dtype == ScalarType::Float) {
    if (!cuda::tf32_allowed(cuda::Tf32::kConvolution)) return "float32, and torch doesn't allow TF32";
    if (c.p.units != Units::kNone) return "signatures are never made of TF32";
  }
  return tiles_refuse(c);
}

void run(const Call& c) {
  switch (c.p.dtype) {
    case ScalarType::Float:
      return run_conv_tiles<float, TensorCoreProduct>(c, "conv_relu_pool tensor_core", true);
    case ScalarType::Half:
      return run_conv_tiles<__half, TensorCoreProduct>(c, "conv_relu_pool tensor_core", false);
    default:
      return run_conv_tiles<__nv_bfloat16, TensorCoreProduct>(c, "conv_relu_pool tensor_core", false);
  }
}

}  // namespace

const ForwardKernel kTensorCore{"tensor core", can_run, run};

}  // namespace zb::conv_relu_pool
