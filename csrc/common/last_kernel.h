// What a library ran last in the calling thread, for `zbkernels.last_kernel()`.
#pragma once

namespace zb {

void note_kernel(const char* literal);  // a string literal such as "direct avx512"

// Where one of several kernels was chosen: each that was asked before it, with its reason, both string
// literals.
void note_refusals_from_here();
void note_refusal(const char* kernel, const char* reason);

}  // namespace zb
