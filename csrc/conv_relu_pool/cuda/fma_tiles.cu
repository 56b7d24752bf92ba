// conv → act → pool in full float32, for many channels.
//
// Floor (bytes): x, weight and y once (+ code, sig); where x is not channels_last in whole chunks it is also
// copied once. Floor (operations): N·K·H1·W1·Cg·R·S multiply-adds outside the tensor cores.
//
// Ladder
//   1  the tiles of tensor_core.cu, multiplied by FMA: 8 × 4 results a thread, 16 loads of 16 bytes from
//      shared memory for 128 multiply-adds. Emulated and compiled; not yet run on a card.
#include "conv_relu_pool/cuda/tile_operands.h"

namespace zb::conv_relu_pool {
namespace {

const char* can_run(const Call& c) {
  return c.p.dtype == ScalarType::Float ? tiles_refuse(c) : "not float32";
}

void run(const Call& c) { run_conv_tiles<float, FmaProduct>(c, "conv_relu_pool fma_tiles", false); }

}  // namespace

const ForwardKernel kFmaTiles{"fma tiles", can_run, run};

}  // namespace zb::conv_relu_pool
