// Activations with a closed form, as zbkernels/infinite/dual_forms.py has them. Without torch: the loops of
// each instruction set include it too.
#pragma once

namespace zb::dual_kernel {

enum class Form {
  kIdentity,
  kPiecewiseLinear,  // max(x, slope x); the absolute value is slope -1
  kErf,
  kGelu,
  kSin,
  kCos,
  kSinPlusCos,
};

// offset + scale s(gain x). Only forms of mean 0 have an offset, so that it adds offset² to the dual
// activation; only erf has a gain.
struct Activation {
  Form form = Form::kIdentity;
  double slope = 0;  // of kPiecewiseLinear, whose derivative kernel is, where a variance is 0:
  double zero_one = 0, zero_both = 0;  // of one input, and of both
  double gain = 1, scale = 1, offset = 0;
};

}  // namespace zb::dual_kernel
