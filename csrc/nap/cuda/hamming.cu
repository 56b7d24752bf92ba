// nap_hamming on a GPU: the distances of all pairs.
//
// Floor: the result, 4 bytes a pair, where rows are short (1,024 bits take an A100 a sixteenth of a clock and
// SM, its memory gives an SM 10 bytes a clock); the products of bits (distances.h) from about 6,000 bits on.
//
// Ladder
//   1  a warp a tile of 32 × 32, no shared memory: what neighbouring warps read of b they find in the cache.
//      Predicted: three quarters of the memory's bandwidth at 1,024 bits. Not yet run on a card.
#include "common/last_kernel.h"
#include "common/register.h"
#include "nap/cuda/all_pairs.h"

namespace zb::nap {
namespace {

void hamming(const Pairs& p, const Tensor& a, const Tensor& b, Tensor& distances) {
  const cuda::Place place("nap_hamming", a);
  all_pairs(place, signatures(a), signatures(b),
            Table<int32_t>{static_cast<int32_t*>(distances.mutable_data_ptr()), p.M, 0, 0});
  note_kernel("nap_hamming bit products");
}

const Registration registration("CUDA", {ZB_NAP_HAMMING(hamming)});

}  // namespace
}  // namespace zb::nap
