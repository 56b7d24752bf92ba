// Sign patterns as 64-bit words: the checks and the ops that every device shares.
//
// A device supplies a function for each op and registers it by the op's macro below, one Registration in
// each of its files: ZB_NAP_KERNELS(pack, unpack), ZB_NAP_HASH(hash), ... README.md beside this file
// says what the ops mean.
#pragma once

#include <tuple>

#include "common/aten.h"
#include "common/tensor.h"

namespace zb::nap {

// A matrix of N rows read by a kernel: F units a row (bits of a signature), words = ceil(F / 64) words a
// row.
struct Rows {
  int64_t N, F, words;
};

// Two batches of signatures, a [N, words] and b [M, words].
struct Pairs {
  int64_t N, M, words;
};

// Raise (RuntimeError in Python) where the call has no meaning; kernels rely on what they let through.
Rows pack_rows(const Tensor& x);
Rows unpack_rows(const Tensor& sig, int64_t F);
Rows signature_rows(const char* op, const Tensor& sig);
Rows frequency_rows(const Tensor& sig, int64_t F);
Pairs hamming_pairs(const Tensor& a, const Tensor& b);
Pairs topk_pairs(const Tensor& q, const Tensor& db, int64_t k);

// How many bits a number of [0, largest] takes.
inline int64_t bits_of(int64_t largest) {
  int64_t bits = 0;
  for (; largest > 0; largest >>= 1) ++bits;
  return bits;
}

// x itself where each row x[n] lies dense in memory in logical order (rows may have any distance), else a
// contiguous copy. row_stride is the distance between rows, in elements.
Tensor with_dense_rows(const Tensor& x);
inline int64_t row_stride(const Tensor& x) { return x.size(0) > 1 ? x.stride(0) : 0; }

// x [N, ...] of any strides to sig [N, words], contiguous. Neither N nor F is 0.
using Pack = void (*)(const Rows&, const Tensor& x, Tensor& sig);
// sig [N, words] of any strides to bits bool [N, F], contiguous. Neither N nor F is 0.
using Unpack = void (*)(const Rows&, const Tensor& sig, Tensor& bits);

template <Pack pack, Unpack unpack>
struct Ops {
  static Tensor nap_pack(Tensor x) {
    const NoGrad no_grad;
    const Rows rows = pack_rows(x);
    Tensor sig = empty_on(x, {rows.N, rows.words}, ScalarType::Long);
    if (sig.numel() > 0) pack(rows, x, sig);
    return sig;
  }

  static Tensor nap_unpack(Tensor sig, int64_t F) {
    const NoGrad no_grad;
    const Rows rows = unpack_rows(sig, F);
    Tensor bits = empty_on(sig, {rows.N, rows.F}, ScalarType::Bool);
    if (bits.numel() > 0) unpack(rows, sig, bits);
    return bits;
  }
};

// sig [N, words] to hash int64 [N, 2], contiguous. N is not 0, words may be.
using Hash = void (*)(const Rows&, const Tensor& sig, Tensor& hash);

template <Hash hash>
Tensor nap_hash(Tensor sig) {
  const NoGrad no_grad;
  const Rows rows = signature_rows("nap_hash", sig);
  Tensor out = empty_on(sig, {rows.N, 2}, ScalarType::Long);
  if (rows.N > 0) hash(rows, sig, out);
  return out;
}

// a, b to distances int32 [N, M], contiguous. Neither N nor M is 0, words may be.
using Hamming = void (*)(const Pairs&, const Tensor& a, const Tensor& b, Tensor& distances);

template <Hamming hamming>
Tensor nap_hamming(Tensor a, Tensor b) {
  const NoGrad no_grad;
  const Pairs pairs = hamming_pairs(a, b);
  Tensor distances = empty_on(a, {pairs.N, pairs.M}, ScalarType::Int);
  if (distances.numel() > 0) hamming(pairs, a, b, distances);
  return distances;
}

// The k rows of db nearest to each of q, ties by the lower row: distances int32 [N, k] and rows int64
// [N, k], contiguous. N is not 0, and k at least 1 and at most M; words may be 0.
using TopK = void (*)(const Pairs&, int64_t k, const Tensor& q, const Tensor& db, Tensor& distances,
                      Tensor& rows);

template <TopK topk>
std::tuple<Tensor, Tensor> nap_topk(Tensor q, Tensor db, int64_t k) {
  const NoGrad no_grad;
  const Pairs pairs = topk_pairs(q, db, k);
  Tensor distances = empty_on(q, {pairs.N, k}, ScalarType::Int);
  Tensor rows = empty_on(q, {pairs.N, k}, ScalarType::Long);
  if (rows.numel() > 0) topk(pairs, k, q, db, distances, rows);
  return {distances, rows};
}

using Groups = std::tuple<Tensor, Tensor, Tensor>;  // ids [N], first [G], counts [G]

// Groups of equal rows, numbered by first appearance. Neither N nor words is 0. A function of a device
// that works behind the host's back waits for it, and raises where its stream is being captured.
using Group = Groups (*)(const Rows&, const Tensor& sig);

Groups one_group(const Rows& rows, const Tensor& sig);  // of rows without words, or of none

template <Group group>
Groups nap_group(Tensor sig) {
  const NoGrad no_grad;
  const Rows rows = signature_rows("nap_group", sig);
  return rows.N > 0 && rows.words > 0 ? group(rows, sig) : one_group(rows, sig);
}

// How often each of the first F bits is set: counts int64 [F], contiguous, with memory of any content. F
// is not 0, and rows.words = ceil(F / 64), of which sig may have more; N may be 0.
using Frequency = void (*)(const Rows&, const Tensor& sig, Tensor& counts);

template <Frequency frequency>
Tensor nap_frequency(Tensor sig, int64_t F) {
  const NoGrad no_grad;
  const Rows rows = frequency_rows(sig, F);
  Tensor counts = empty_on(sig, {F}, ScalarType::Long);
  if (F > 0) frequency(rows, sig, counts);
  return counts;
}

}  // namespace zb::nap

// An op over the function of a device, for a zb::Registration.
#define ZB_NAP_HASH(function) {"nap_hash", TORCH_BOX((&zb::nap::nap_hash<function>))}
#define ZB_NAP_HAMMING(function) {"nap_hamming", TORCH_BOX((&zb::nap::nap_hamming<function>))}
#define ZB_NAP_TOPK(function) {"nap_topk", TORCH_BOX((&zb::nap::nap_topk<function>))}
#define ZB_NAP_GROUP(function) {"nap_group", TORCH_BOX((&zb::nap::nap_group<function>))}
#define ZB_NAP_FREQUENCY(function) {"nap_frequency", TORCH_BOX((&zb::nap::nap_frequency<function>))}

// The same for the two ops that convert, over two functions.
#define ZB_NAP_KERNELS(pack, unpack)                                   \
  {"nap_pack", TORCH_BOX((&zb::nap::Ops<pack, unpack>::nap_pack))}, {  \
    "nap_unpack", TORCH_BOX((&zb::nap::Ops<pack, unpack>::nap_unpack)) \
  }
