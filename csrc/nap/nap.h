// Sign patterns as 64-bit words: the checks and the ops that every device shares.
//
// A device supplies two functions and registers Ops<pack, unpack>. README.md beside this file says what the
// ops mean.
#pragma once

#include "common/aten.h"
#include "common/tensor.h"

namespace zb::nap {

// A matrix of N rows read by a kernel: F units a row (bits of a signature), words = ceil(F / 64) words a row.
struct Rows {
  int64_t N, F, words;
};

// Raise (RuntimeError in Python) where the call has no meaning; kernels rely on what they let through.
Rows pack_rows(const Tensor& x);
Rows unpack_rows(const Tensor& sig, int64_t F);

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

}  // namespace zb::nap

// Lists the ops over the functions of a device, for a zb::Registration.
#define ZB_NAP_KERNELS(pack, unpack)                                   \
  {"nap_pack", TORCH_BOX((&zb::nap::Ops<pack, unpack>::nap_pack))}, {  \
    "nap_unpack", TORCH_BOX((&zb::nap::Ops<pack, unpack>::nap_unpack)) \
  }
