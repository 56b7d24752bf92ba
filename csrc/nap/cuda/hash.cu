// nap_hash on a GPU.
//
// Floor: one read of the words. Mixing a word takes some 30 instructions of 32 bits, which an SM runs at 64 a
// clock: 17 bytes a clock, beside the 14.5 bytes a clock and SM that an H100's memory gives. So both limits
// are near each other.
//
// Ladder
//   1  16 bytes a lane, as many lanes a row as it takes (8 for 1024 bits). Predicted: three quarters of the
//      memory's bandwidth or more. Not yet run on a card.
#include "common/last_kernel.h"
#include "common/register.h"
#include "nap/cuda/signatures.h"

namespace zb::nap {
namespace {

constexpr int kThreads = 256;

template <bool PAIRS>
__global__ void __launch_bounds__(kThreads)
    hash_rows(Signatures sig, int lanes, cuda::Vector<uint64_t, 2>* __restrict__ hashes) {
  const int at_once = kThreads / lanes, own = static_cast<int>(threadIdx.x) / lanes;
  for (int64_t first = int64_t{blockIdx.x} * at_once; first < sig.rows;
       first += int64_t{gridDim.x} * at_once) {
    const int64_t n = first + own;
    const bool live = n < sig.rows;
    const Hash128 hash =
        hash_row<PAIRS>(sig, sig.data + (live ? n * sig.row_step : 0), live ? sig.words : 0, lanes);
    if (live && threadIdx.x % lanes == 0)
      cuda::store_vector(hashes + n, cuda::Vector<uint64_t, 2>{hash.a, hash.b});
  }
}

void hash(const Rows&, const Tensor& words, Tensor& out) {
  const cuda::Place place("nap_hash", words);
  const Signatures sig = signatures(words);
  const int lanes = lanes_of_a_row(sig);
  cuda::launch(place, "nap_hash rows", in_pairs(sig) ? hash_rows<true> : hash_rows<false>,
               cuda::pieces(sig.rows, kThreads / lanes), kThreads, 0, sig, lanes,
               static_cast<cuda::Vector<uint64_t, 2>*>(out.mutable_data_ptr()));
  note_kernel("nap_hash rows");
}

const Registration registration("CUDA", {ZB_NAP_HASH(hash)});

}  // namespace
}  // namespace zb::nap
