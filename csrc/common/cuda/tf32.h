// Whether torch allows TF32 for float32, which LibTorch's stable ABI doesn't tell: Python tells it
// (ops/_tf32.py).
#pragma once

namespace zb::cuda {

enum class Tf32 { kConvolution, kMatmul };

bool tf32_allowed(Tf32 where);  // no, until told otherwise

}  // namespace zb::cuda
