// The checks, the same for every device. Python checks first, with fuller messages; these hold for C++
// callers and keep the kernels inside their tensors.
#include "nap/nap.h"

namespace zb::nap {

Rows pack_rows(const Tensor& x) {
  STD_TORCH_CHECK(x.dim() >= 2, "nap_pack: expected x of shape [N, ...] with at least 2 dimensions, got ",
                  shape_text(x));
  check_allocated("nap_pack", "x", x);
  STD_TORCH_CHECK(is_floating(x.scalar_type()) || x.scalar_type() == ScalarType::Bool,
                  "nap_pack: expected x of dtype float32, float64, float16, bfloat16 or bool");
  Rows rows{x.size(0), 1, 0};
  for (int64_t d = 1; d < x.dim(); ++d) rows.F *= x.size(d);
  rows.words = words_for(rows.F);
  return rows;
}

Rows unpack_rows(const Tensor& sig, int64_t F) {
  STD_TORCH_CHECK(sig.dim() == 2 && sig.scalar_type() == ScalarType::Long,
                  "nap_unpack: expected sig of shape [N, words] and dtype int64, got shape ",
                  shape_text(sig));
  check_allocated("nap_unpack", "sig", sig);
  STD_TORCH_CHECK(F >= 0 && F <= INT64_MAX - 63, "nap_unpack: expected F of at least 0, got ", F);
  STD_TORCH_CHECK(sig.size(1) == words_for(F), "nap_unpack: expected sig of ", words_for(F),
                  " words a row for F = ", F, ", got ", sig.size(1));
  return {sig.size(0), F, sig.size(1)};
}

Tensor with_dense_rows(const Tensor& x) {
  int64_t expected = 1;
  for (int64_t d = x.dim() - 1; d > 0; --d) {
    if (x.size(d) != 1 && x.stride(d) != expected) return torch::stable::contiguous(x);
    expected *= x.size(d);
  }
  return x;
}

}  // namespace zb::nap
