// Weights packed (and transformed, for Winograd) once for as long as they stay the same.
//
// An entry is found by what shapes the packing and is used only where the weight's bytes equal the bytes it
// was made from. Reading them costs far less than packing, and nothing else can be trusted: a version counter
// misses writes through .data, NumPy and DLPack, inference tensors have none, and an address is given out
// again. So an update in place, a deepcopy, a second thread or a second process image cannot bring up an old
// weight.
#pragma once

#include <memory>

#include "conv_relu_pool/cpu/call.h"

namespace zb::conv_relu_pool::cpu {

// Keeps the packed weights alive while a call reads them.
using PackedWeights = std::shared_ptr<const void>;

// Points call.packed_weight at the packed weights, packing them where no entry fits. Returns null, and leaves
// packed_weight alone, where the cache does not serve: it is switched off or in use by another thread, the
// weight is small, has gaps in memory, or would fill more than half of the cache.
PackedWeights find_packed_weights(const Kernels& kernels, Call& call);

// Packs into call.packed_weight, [weight_bytes], on torch's threads.
void pack_weights(const Kernels& kernels, const Call& call);

}  // namespace zb::conv_relu_pool::cpu
