// conv → act → pool in one pass: the problem's sizes, checked once, and the ops that every device shares.
//
// A device supplies two functions, forward and backward over a Problem, and registers Ops<forward, backward>.
// The meaning of each argument and the formats of `code` and `sig` are in README.md beside this file.
#pragma once

#include <optional>
#include <tuple>

#include "common/tensor.h"

namespace zb::conv_relu_pool {

enum class Pool { kNone, kMax, kAvg };
enum class Units { kNone, kRelu, kOutput, kWinner };

struct Problem {
  // x [N, C, H, W] and weight [K, Cg, R, S]; an unbatched x has N = 1 and batched = false.
  bool batched;
  int64_t N, C, H, W, K, Cg, Kg, R, S, groups;
  // The un-pooled map is [N, K, H1, W1], the result [N, K, P, Q] (equal without a pool).
  int64_t H1, W1, P, Q;
  Pair stride, padding, dilation;
  Pool pool;
  Pair pool_kernel, pool_stride, pool_padding;
  bool ceil_mode, count_include_pad;
  double slope;
  std::array<int64_t, 4> x_strides, w_strides;  // in elements, N C H W and K C R S
  bool x_channels_last, w_channels_last;        // the memory format of y (and grad_x), and of grad_weight
  std::array<int64_t, 4> r_strides;             // of the residual [N, K, H1, W1], where there is one
  ScalarType dtype;
  // what else the forward pass writes
  bool need_code;
  ScalarType code_dtype;  // Byte or Int for max pooling, Long (bits) otherwise
  Units units;
  int64_t unit_bits;  // bits of one unit: 1, or the width of a winner code

  int64_t window() const { return pool_kernel[0] * pool_kernel[1]; }
  int64_t map_words() const { return words_for(H1 * W1); }  // words of one plane of a bit code
  int64_t unit_count() const {
    return units == Units::kNone ? 0 : units == Units::kRelu ? K * H1 * W1 : K * P * Q * unit_bits;
  }
};

struct Arguments {
  Ints stride, padding, dilation;
  int64_t groups;
  Word pool;
  Ints pool_kernel;
  std::optional<Ints> pool_stride;
  Ints pool_padding;
  bool ceil_mode, count_include_pad;
  double negative_slope;
};

struct Outputs {
  Tensor y, code, sig;
};

// Sizes of one dimension, as torch has them. All arithmetic is 64-bit and refuses what would overflow.
int64_t conv_size(const char* op, int64_t in, int64_t kernel, int64_t stride, int64_t padding,
                  int64_t dilation);
int64_t pool_size(int64_t in, int64_t kernel, int64_t stride, int64_t padding, bool ceil_mode);

// Raises (RuntimeError in Python) where the call has no meaning; kernels rely on what it lets through.
Problem make_problem(const char* op, const Tensor& x, const Tensor& weight, const Arguments& args,
                     bool need_code, const Word& units);
// Notes the residual's strides. Raises where it is not of the un-pooled map's shape, x's dtype and device.
void take_residual(Problem& p, const char* op, const Tensor& x, const Tensor& residual);
Outputs make_outputs(const Problem& p, const Tensor& x);
void check_backward(const Problem& p, const Tensor& x, const Tensor& grad, const Tensor& code);

// `residual` is null where there is none.
using Residual = std::optional<Tensor>;
using Forward = void (*)(const Problem&, const Tensor& x, const Tensor& weight, const Tensor* residual,
                         Outputs& out);
using Backward = std::tuple<Tensor, Tensor> (*)(const Problem&, const Tensor& grad, const Tensor& x,
                                                const Tensor& weight, const Tensor& code, bool need_x,
                                                bool need_weight);

template <Forward forward, Backward backward>
struct Ops {
  static Outputs run(const char* op, const Tensor& x, const Tensor& weight, const Residual& residual,
                     const Arguments& args, bool need_code, const Word& units) {
    Problem p = make_problem(op, x, weight, args, need_code, units);
    if (residual) take_residual(p, op, x, *residual);
    Outputs out = make_outputs(p, x);
    if (out.y.numel() > 0) forward(p, x, weight, residual ? &*residual : nullptr, out);
    return out;
  }

  static Tensor conv_relu_pool2d(Tensor x, Tensor weight, Ints stride, Ints padding, Ints dilation,
                                 int64_t groups, Residual residual, Word pool, Ints pool_kernel,
                                 std::optional<Ints> pool_stride, Ints pool_padding, bool ceil_mode,
                                 bool count_include_pad, double negative_slope) {
    return run("conv_relu_pool2d", x, weight, residual,
               {stride, padding, dilation, groups, pool, pool_kernel, pool_stride, pool_padding, ceil_mode,
                count_include_pad, negative_slope},
               false, Word{})
        .y;
  }

  static std::tuple<Tensor, Tensor> conv_relu_pool2d_nap(Tensor x, Tensor weight, Ints stride, Ints padding,
                                                         Ints dilation, int64_t groups, Residual residual,
                                                         Word pool, Ints pool_kernel,
                                                         std::optional<Ints> pool_stride, Ints pool_padding,
                                                         bool ceil_mode, bool count_include_pad,
                                                         double negative_slope, Word units) {
    STD_TORCH_CHECK(!(units == ""),
                    "conv_relu_pool2d_nap: expected units to be \"relu\", \"output\" or \"winner\"");
    Outputs out = run("conv_relu_pool2d_nap", x, weight, residual,
                      {stride, padding, dilation, groups, pool, pool_kernel, pool_stride, pool_padding,
                       ceil_mode, count_include_pad, negative_slope},
                      false, units);
    return {out.y, out.sig};
  }

  static std::tuple<Tensor, Tensor, Tensor> forward_op(Tensor x, Tensor weight, Ints stride, Ints padding,
                                                       Ints dilation, int64_t groups, Residual residual,
                                                       Word pool, Ints pool_kernel, Ints pool_stride,
                                                       Ints pool_padding, bool ceil_mode,
                                                       bool count_include_pad, double negative_slope,
                                                       bool need_code, Word units) {
    Outputs out = run("_conv_relu_pool2d_forward", x, weight, residual,
                      {stride, padding, dilation, groups, pool, pool_kernel, pool_stride, pool_padding,
                       ceil_mode, count_include_pad, negative_slope},
                      need_code, units);
    return {out.y, out.code, out.sig};
  }

  static std::tuple<Tensor, Tensor> backward_op(Tensor grad, Tensor x, Tensor weight, Tensor code,
                                                Ints stride, Ints padding, Ints dilation, int64_t groups,
                                                Word pool, Ints pool_kernel, Ints pool_stride,
                                                Ints pool_padding, bool ceil_mode, bool count_include_pad,
                                                double negative_slope, bool need_x, bool need_weight) {
    const Problem p = make_problem("_conv_relu_pool2d_backward", x, weight,
                                   {stride, padding, dilation, groups, pool, pool_kernel, pool_stride,
                                    pool_padding, ceil_mode, count_include_pad, negative_slope},
                                   true, Word{});
    check_backward(p, x, grad, code);
    return backward(p, grad, x, weight, code, need_x, need_weight);
  }
};

}  // namespace zb::conv_relu_pool

// Lists the four ops over the two functions of a device, for a zb::Registration.
#define ZB_CONV_RELU_POOL_KERNELS(forward, backward)                                                         \
  {"conv_relu_pool2d", TORCH_BOX((&zb::conv_relu_pool::Ops<forward, backward>::conv_relu_pool2d))},          \
      {"conv_relu_pool2d_nap",                                                                               \
       TORCH_BOX((&zb::conv_relu_pool::Ops<forward, backward>::conv_relu_pool2d_nap))},                      \
      {"_conv_relu_pool2d_forward", TORCH_BOX((&zb::conv_relu_pool::Ops<forward, backward>::forward_op))}, { \
    "_conv_relu_pool2d_backward", TORCH_BOX((&zb::conv_relu_pool::Ops<forward, backward>::backward_op))      \
  }
