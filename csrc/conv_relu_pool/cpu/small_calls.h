// Calls whose time goes to arguments rather than arithmetic: described once, run again on other tensors.
//
// Checking thirteen arguments and carrying them through the dispatcher takes some 20 us, as long as one image
// of a first layer. zbkernels/ops/_small_calls.py keeps the description that a call leaves here and runs the
// next call of the same sizes, strides and arguments from it, where nothing wants to see the op.
#pragma once

#include "conv_relu_pool/cpu/call.h"

namespace zb::conv_relu_pool::cpu {

// Copies the call to where this thread asked for it, if it did.
void keep_call(const Call& call);

}  // namespace zb::conv_relu_pool::cpu
