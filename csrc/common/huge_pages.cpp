#include "common/huge_pages.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace zb {

void prefer_huge_pages([[maybe_unused]] void* memory, [[maybe_unused]] int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr int64_t kLeast = int64_t{4} << 20, kPage = int64_t{2} << 20;
  if (bytes < kLeast) return;
  const auto begin = (reinterpret_cast<uintptr_t>(memory) + kPage - 1) / kPage * kPage;
  const auto end = (reinterpret_cast<uintptr_t>(memory) + static_cast<uintptr_t>(bytes)) / kPage * kPage;
  // A refusal (a kernel without them) changes nothing.
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

}  // namespace zb
