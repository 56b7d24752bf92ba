// Runs a planned call on torch's threads.
#pragma once

#include "common/tensor.h"
#include "conv_relu_pool/cpu/call.h"

namespace zb::conv_relu_pool::cpu {

// The kernels of the instruction set in use.
const Kernels& kernels_here();

// The same, less what is there for single dtypes: for who must know that Winograd runs where it can.
const Kernels& general_kernels_here();

Element element_of(ScalarType dtype);

// Packs the weights and runs all tasks of a call that kernels.plan has planned. With `keep_weights` the
// packed weights come from and go to the cache (packed_weights.h).
void run_call(const Kernels& kernels, Call& call, bool keep_weights);

// Plans and runs a forward call.
void run_forward(Call& call);

}  // namespace zb::conv_relu_pool::cpu
