// Which instruction set the CPU kernels use, decided once at run time.
#pragma once

#include "common/last_kernel.h"

namespace zb {

enum class Capability { kPortable, kAvx2, kAvx512, kAvx512Bf16 };  // each has those before it

// The best that the processor and the operating system offer, or a lower one where the environment variable
// ZBKERNELS_CPU_CAPABILITY (portable, avx2, avx512, avx512_bf16) asks for it. Read once, at the first call.
Capability cpu_capability();
const char* capability_name(Capability capability);

// Whether AVX-512 may count bits in vectors (VPOPCNTDQ): a part that not every processor with AVX-512
// has, and that ZBKERNELS_CPU_CAPABILITY=avx512 leaves out.
bool has_vpopcntdq();

// zbkernels.set_conv_precision: true is "highest" (direct sums in one order), false "high" (algorithms
// with fewer operations allowed). Process-wide, read at each call.
bool highest_precision();

}  // namespace zb
