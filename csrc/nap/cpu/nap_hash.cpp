// nap_hash on the CPU: threads over rows; hash.inc has the loop.
#include "common/parallel.h"
#include "common/register.h"
#include "nap/cpu/loops.h"
#include "nap/nap.h"

namespace zb::nap {
namespace {

void hash(const Rows& rows, const Tensor& any, Tensor& out) {
  const Tensor sig = with_dense_rows(any);
  const int64_t stride = row_stride(sig);
  const auto* from = static_cast<const uint64_t*>(sig.const_data_ptr());
  auto* to = static_cast<uint64_t*>(out.mutable_data_ptr());
  const auto hash_rows = row_loops().hash;
  const int64_t rows_per_task = ceil_div(8192, rows.words + 1);  // 64 KiB
  parallel_for(0, rows.N, rows_per_task, [&](int64_t begin, int64_t end) {
    hash_rows(from + begin * stride, stride, end - begin, rows.words, to + 2 * begin);
  });
  ZB_NAP_NOTE("nap_hash");
}

const Registration registration("CPU", {ZB_NAP_HASH(hash)});

}  // namespace
}  // namespace zb::nap
