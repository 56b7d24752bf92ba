// What a library ran last in the calling thread, for `zbkernels.last_kernel()`.
#pragma once

namespace zb {

void note_kernel(const char* literal);  // a string literal such as "direct avx512"

}  // namespace zb
