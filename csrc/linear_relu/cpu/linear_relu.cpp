// linear_relu on the CPU: torch's matrix product, block of rows by block of rows, and one pass over each
// block for the activation and the sign words while the block is still in the cache.
//
// Measured, milliseconds of CPU time on one thread of a shared Xeon, AVX-512:
//   rows, in -> out        linear_relu  linear_relu_nap   F.linear alone   + relu   + relu_
//   4096, 784 -> 1024          48.0          47.0             46.2          61.8      48.2
//   16384, 128 -> 512          33.4          34.1             30.6          50.4      34.8
#include <algorithm>

#include "common/cpu_capability.h"
#include "common/register.h"
#include "linear_relu/cpu/kernels.h"
#include "linear_relu/linear_relu.h"
#include "nap/cpu/pieces.h"

namespace zb::linear_relu {
namespace {

constexpr int64_t kBlockBytes = int64_t{2} << 20;  // of y
constexpr int64_t kLeastRows = 256;                // fewer, and the product pays for packing the weight again

decltype(&portable::activate_row) activation() {
#if defined(__x86_64__)
  if (cpu_capability() >= Capability::kAvx512) return avx512::activate_row;
  if (cpu_capability() == Capability::kAvx2) return avx2::activate_row;
#endif
  return portable::activate_row;
}

// In place over the block y [count, out], and its rows of sig.
void activate(const Problem& p, const Tensor& y, uint64_t* sig) {
  const nap::Rows rows{y.size(0), p.out, p.words};
  const Element element = nap::element_of(y.scalar_type());
  const int64_t size = nap::bytes_of(element);
  char* start = static_cast<char*>(y.mutable_data_ptr());
  const auto activate_row = activation();
  nap::for_each_piece(rows, [&](int64_t n, int64_t first, int64_t last) {
    activate_row(element, start + (n * p.out + 64 * first) * size, nap::units_between(rows, first, last),
                 p.slope, sig ? sig + n * p.words + first : nullptr);
  });
}

void forward(const Problem& p, const Tensor& x, const Tensor& weight, Outputs& outputs) {
  const Tensor y = aten::as_matrix(outputs.y, p.rows, p.out);
  auto* sig = p.need_sig ? static_cast<uint64_t*>(outputs.sig.mutable_data_ptr()) : nullptr;
  const Tensor columns = torch::stable::transpose(weight, 0, 1);  // [in, out], a view
  const int64_t size = nap::bytes_of(nap::element_of(p.dtype));
  const int64_t block = std::max(kLeastRows, kBlockBytes / (p.out * size));
  for (int64_t first = 0; first < p.rows; first += block) {
    const int64_t count = std::min(block, p.rows - first);
    const bool all = count == p.rows;  // no view then, which would cost as much as a small product
    Tensor some = all ? y : aten::rows_of(y, first, count);
    aten::mm_out(some, all ? x : aten::rows_of(x, first, count), columns);
    if (p.slope == 1 && !sig) continue;
    uint64_t* words = sig ? sig + first * p.words : nullptr;
    if (size == 2 && p.slope > 0) {  // as torch: the rounded half, times the slope in float32, rounded again
      const Tensor wide = torch::stable::to(some, ScalarType::Float);
      activate(p, wide, words);
      torch::stable::copy_(some, wide);
    } else {
      activate(p, some, words);
    }
  }
  note_kernel("linear_relu aten");
}

const Registration registration("CPU", {ZB_LINEAR_RELU_KERNELS(forward)});

}  // namespace
}  // namespace zb::linear_relu
