// What a library ran last in the calling thread, for `zbkernels.last_kernel()`.
#pragma once

namespace zb {

// A name such as "direct avx512"; its memory must stay as it is until the next.
void note_kernel(const char* name);
const char* noted_kernel();

// Where one of several kernels was chosen: each that was asked before it, with its reason, both string
// literals.
void note_refusals_from_here();
void note_refusal(const char* kernel, const char* reason);

}  // namespace zb
