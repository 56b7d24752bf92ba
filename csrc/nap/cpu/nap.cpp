// nap_pack and nap_unpack on the CPU: threads over (row, run of words), a row loop per instruction set.
//
// Measured on 4096 x 16384, milliseconds, Xeon, AVX-512, 2 threads of a shared machine (trust the ratios):
//   nap_pack of float32 15.1, float16 7.8, bool 3.9; nap_unpack 24.3
//   torch's sum of the float32 (one read of the data) 13.2; NumPy's packbits 51.6; the composite of torch's
//   operators ((x > 0) << shift, summed) 479
// On one thread: 27.0 with AVX-512, 32.5 with AVX2, 92.4 in plain C++; torch's sum 25.7.
#include "nap/nap.h"
#include "common/cpu_capability.h"
#include "common/register.h"
#include "nap/cpu/pieces.h"

namespace zb::nap {
namespace {

struct Loops {
  decltype(&portable::pack_row) pack;
  decltype(&portable::unpack_row) unpack;
};

Loops loops() {
#if defined(__x86_64__)
  if (cpu_capability() >= Capability::kAvx512) return {avx512::pack_row, avx512::unpack_row};
  if (cpu_capability() == Capability::kAvx2) return {avx2::pack_row, avx2::unpack_row};
#endif
  return {portable::pack_row, portable::unpack_row};
}

void note(const char* with_avx512, const char* with_avx2, const char* without) {
  const Capability c = cpu_capability();
  note_kernel(c >= Capability::kAvx512 ? with_avx512 : c == Capability::kAvx2 ? with_avx2 : without);
}

void pack(const Rows& rows, const Tensor& any, Tensor& sig) {
  const Tensor x = with_dense_rows(any);
  const Element element = element_of(x.scalar_type());
  const int64_t size = bytes_of(element), stride = row_stride(x);
  const char* from = static_cast<const char*>(x.const_data_ptr());
  auto* to = static_cast<uint64_t*>(sig.mutable_data_ptr());
  const auto pack_row = loops().pack;
  for_each_piece(rows, [&](int64_t n, int64_t first, int64_t last) {
    pack_row(element, from + (n * stride + 64 * first) * size, units_between(rows, first, last),
             to + n * rows.words + first);
  });
  note("nap_pack avx512", "nap_pack avx2", "nap_pack portable");
}

void unpack(const Rows& rows, const Tensor& any, Tensor& bits) {
  const Tensor sig = with_dense_rows(any);
  const int64_t stride = row_stride(sig);
  const auto* from = static_cast<const uint64_t*>(sig.const_data_ptr());
  auto* to = static_cast<uint8_t*>(bits.mutable_data_ptr());
  const auto unpack_row = loops().unpack;
  for_each_piece(rows, [&](int64_t n, int64_t first, int64_t last) {
    unpack_row(from + n * stride + first, units_between(rows, first, last), to + n * rows.F + 64 * first);
  });
  note("nap_unpack avx512", "nap_unpack avx2", "nap_unpack portable");
}

const Registration registration("CPU", {ZB_NAP_KERNELS(pack, unpack)});

}  // namespace
}  // namespace zb::nap
