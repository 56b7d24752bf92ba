// Kernels of infinitely wide fully connected networks: the problem, checked once, and the ops of every
// device.
//
// A device supplies two functions over a Problem and registers ZB_DUAL_KERNELS(gram, matvec). README.md
// beside this file says what the ops mean.
#pragma once

#include "common/aten.h"
#include "common/tensor.h"
#include "dual_kernel/forms.h"

namespace zb::dual_kernel {

// The recursion of zbkernels/infinite/kernels.py: K_1 = b2 + w2/d x·y, K' = b2 + w2 D(K), T' = K' + w2 D'(K)
// T.
struct Problem {
  int64_t N, M, d;  // x1 [N, d], x2 [M, d]
  int64_t p;        // v [M, p]; 0 in dual_gram
  bool tangent;     // the tangent kernel T; else K
  bool first_only;  // T without the K' that is added in each layer: the first layer alone trains
  bool symmetric;   // x1 and x2 are the same memory: K is symmetric
  int64_t depth;    // hidden layers
  double w2, b2;    // squares of w_std and b_std
  Activation activation;
  ScalarType dtype;  // float or double
};

// Longer ones, of which no number needs as much, have no compiled form.
using Name = Text<256>;

// False where the name is of no activation with a compiled form; the reference then runs or says what is
// wrong.
bool parse_activation(const Name& name, Activation& activation);

// Raises (RuntimeError in Python) where the call has no meaning; kernels rely on what it lets through.
Problem make_problem(const char* op, const Tensor& x1, const Tensor& x2, const Tensor* v, const Word& kernel,
                     const Activation& activation, int64_t depth, double w_std, double b_std,
                     const Word& train);

// The reference of zbkernels/ops, for activations without a compiled form. Raises where there is no Python.
Tensor reference(const char* op, const Tensor& x1, const Tensor& x2, const Tensor* v, const Word& kernel,
                 const Name& activation, int64_t depth, double w_std, double b_std, const Word& train);

// x1, x2 of any strides to the matrix [N, M], contiguous. Neither N nor M is 0.
using Gram = void (*)(const Problem&, const Tensor& x1, const Tensor& x2, Tensor& out);
// x1, x2, v of any strides to [N, p], contiguous. None of N, M and p is 0.
using Matvec = void (*)(const Problem&, const Tensor& x1, const Tensor& x2, const Tensor& v, Tensor& out);

template <Gram gram>
Tensor dual_gram(Tensor x1, Tensor x2, Word kernel, Name activation, int64_t depth, double w_std,
                 double b_std, Word train) {
  const NoGrad no_grad;
  Activation form;
  if (!parse_activation(activation, form)) {
    return reference("dual_gram", x1, x2, nullptr, kernel, activation, depth, w_std, b_std, train);
  }
  const Problem p = make_problem("dual_gram", x1, x2, nullptr, kernel, form, depth, w_std, b_std, train);
  Tensor out = empty_on(x1, {p.N, p.M}, p.dtype);
  if (out.numel() > 0) gram(p, x1, x2, out);
  return out;
}

template <Matvec matvec>
Tensor dual_matvec(Tensor x1, Tensor x2, Tensor v, Word kernel, Name activation, int64_t depth, double w_std,
                   double b_std, Word train) {
  const NoGrad no_grad;
  Activation form;
  if (!parse_activation(activation, form)) {
    return reference("dual_matvec", x1, x2, &v, kernel, activation, depth, w_std, b_std, train);
  }
  const Problem p = make_problem("dual_matvec", x1, x2, &v, kernel, form, depth, w_std, b_std, train);
  Tensor out = empty_on(x1, {p.N, p.p}, p.dtype);
  if (out.numel() == 0) return out;
  if (p.M == 0) {
    torch::stable::zero_(out);
  } else {
    matvec(p, x1, x2, v, out);
  }
  return out;
}

}  // namespace zb::dual_kernel

// Lists the two ops over the functions of a device, for a zb::Registration.
#define ZB_DUAL_KERNELS(gram, matvec)                                 \
  {"dual_gram", TORCH_BOX((&zb::dual_kernel::dual_gram<gram>))}, {    \
    "dual_matvec", TORCH_BOX((&zb::dual_kernel::dual_matvec<matvec>)) \
  }
