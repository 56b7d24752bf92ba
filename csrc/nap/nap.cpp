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

namespace {

void check_signatures(const char* op, const char* name, const Tensor& sig) {
  STD_TORCH_CHECK(sig.dim() == 2 && sig.scalar_type() == ScalarType::Long, op, ": expected ", name,
                  " of shape [N, words] and dtype int64, got shape ", shape_text(sig));
  check_allocated(op, name, sig);
}

Pairs pairs_of(const char* op, const char* a_name, const Tensor& a, const char* b_name, const Tensor& b) {
  check_signatures(op, a_name, a);
  check_signatures(op, b_name, b);
  check_same(op, a_name, a, b_name, b);
  STD_TORCH_CHECK(a.size(1) == b.size(1), op, ": expected ", a_name, " and ", b_name, " of one width, got ",
                  shape_text(a), " and ", shape_text(b));
  STD_TORCH_CHECK(a.size(1) <= INT32_MAX / 64, op,
                  ": expected rows of less than 2**31 bits (distances are int32), got ", a.size(1), " words");
  return {a.size(0), b.size(0), a.size(1)};
}

}  // namespace

Rows signature_rows(const char* op, const Tensor& sig) {
  check_signatures(op, "sig", sig);
  return {sig.size(0), 64 * sig.size(1), sig.size(1)};
}

Rows frequency_rows(const Tensor& sig, int64_t F) {
  const Rows whole = signature_rows("nap_frequency", sig);
  STD_TORCH_CHECK(F >= 0 && F <= whole.F, "nap_frequency: expected 0 <= F <= ", whole.F, ", the bits of sig ",
                  shape_text(sig), ", got ", F);
  return {whole.N, F, words_for(F)};
}

Pairs hamming_pairs(const Tensor& a, const Tensor& b) { return pairs_of("nap_hamming", "a", a, "b", b); }

Pairs topk_pairs(const Tensor& q, const Tensor& db, int64_t k) {
  const Pairs pairs = pairs_of("nap_topk", "q", q, "db", db);
  STD_TORCH_CHECK(k >= 0 && k <= pairs.M, "nap_topk: expected 0 <= k <= M = ", pairs.M, " rows of db, got ",
                  k);
  STD_TORCH_CHECK(bits_of(64 * pairs.words) + bits_of(pairs.M - 1) <= 63,
                  "nap_topk: expected distance and row to fit in 63 bits, got db of ", shape_text(db));
  return pairs;
}

Groups one_group(const Rows& rows, const Tensor& sig) {
  const int64_t groups = rows.N > 0 ? 1 : 0;
  Tensor ids = empty_on(sig, {rows.N}, ScalarType::Long);
  Tensor first = empty_on(sig, {groups}, ScalarType::Long);
  Tensor counts = empty_on(sig, {groups}, ScalarType::Long);
  torch::stable::zero_(ids);
  torch::stable::zero_(first);
  torch::stable::fill_(counts, static_cast<double>(rows.N));
  return {ids, first, counts};
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
