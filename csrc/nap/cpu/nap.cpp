// nap_pack and nap_unpack on the CPU: threads over (row, run of words), a row loop per instruction set.
//
// Measured on 4096 x 16384, milliseconds, Xeon, AVX-512, 2 threads of a shared machine (trust the ratios):
//   nap_pack of float32 15.1, float16 7.8, bool 3.9; nap_unpack 24.3
//   torch's sum of the float32 (one read of the data) 13.2; NumPy's packbits 51.6; the composite of torch's
//   operators ((x > 0) << shift, summed) 479
// On one thread: 27.0 with AVX-512, 32.5 with AVX2, 92.4 in plain C++; torch's sum 25.7.
#include "nap/nap.h"
#include "common/register.h"
#include "nap/cpu/loops.h"
#include "nap/cpu/pieces.h"

namespace zb::nap {
namespace {

void pack(const Rows& rows, const Tensor& any, Tensor& sig) {
  const Tensor x = with_dense_rows(any);
  const Element element = element_of(x.scalar_type());
  const int64_t size = bytes_of(element), stride = row_stride(x);
  const char* from = static_cast<const char*>(x.const_data_ptr());
  auto* to = static_cast<uint64_t*>(sig.mutable_data_ptr());
  const auto pack_row = row_loops().pack;
  for_each_piece(rows, [&](int64_t n, int64_t first, int64_t last) {
    pack_row(element, from + (n * stride + 64 * first) * size, units_between(rows, first, last),
             to + n * rows.words + first);
  });
  ZB_NAP_NOTE("nap_pack");
}

void unpack(const Rows& rows, const Tensor& any, Tensor& bits) {
  const Tensor sig = with_dense_rows(any);
  const int64_t stride = row_stride(sig);
  const auto* from = static_cast<const uint64_t*>(sig.const_data_ptr());
  auto* to = static_cast<uint8_t*>(bits.mutable_data_ptr());
  const auto unpack_row = row_loops().unpack;
  for_each_piece(rows, [&](int64_t n, int64_t first, int64_t last) {
    unpack_row(from + n * stride + first, units_between(rows, first, last), to + n * rows.F + 64 * first);
  });
  ZB_NAP_NOTE("nap_unpack");
}

const Registration registration("CPU", {ZB_NAP_KERNELS(pack, unpack)});

}  // namespace
}  // namespace zb::nap
