// Large results in large pages.
#pragma once

#include <cstdint>

namespace zb {

// Asks the system to back fresh memory by huge pages, where it is large enough for some. A large tensor's
// memory comes from the system anew at each call (the C library gives it back when the last one dies), and a
// fault for each 4 KiB page can cost more than the kernel that fills it.
void prefer_huge_pages(void* memory, int64_t bytes);

}  // namespace zb
