// The checks and the arithmetic of sizes, the same for every device. Python checks first, with fuller
// messages; these hold for C++ callers and keep the kernels inside their tensors.
#include <limits>

#include "conv_relu_pool/conv_relu_pool.h"

namespace zb::conv_relu_pool {
namespace {

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

int64_t multiply(const char* op, int64_t a, int64_t b) {
  int64_t product = 0;
  STD_TORCH_CHECK(!__builtin_mul_overflow(a, b, &product), op, ": a size overflows 64 bits");
  return product;
}

int64_t add(const char* op, int64_t a, int64_t b) {
  int64_t sum = 0;
  STD_TORCH_CHECK(!__builtin_add_overflow(a, b, &sum), op, ": a size overflows 64 bits");
  return sum;
}

Pool pool_of(const char* op, const Word& word) {
  if (word == "none") return Pool::kNone;
  if (word == "max") return Pool::kMax;
  if (word == "avg") return Pool::kAvg;
  STD_TORCH_CHECK(false, op, ": expected pool to be \"max\", \"avg\" or \"none\", got \"", word.text, "\"");
  return Pool::kNone;
}

Units units_of(const char* op, const Word& word) {
  if (word == "") return Units::kNone;
  if (word == "relu") return Units::kRelu;
  if (word == "output") return Units::kOutput;
  if (word == "winner") return Units::kWinner;
  STD_TORCH_CHECK(false, op, ": expected units to be \"relu\", \"output\" or \"winner\", got \"", word.text,
                  "\"");
  return Units::kNone;
}

void check_at_least(const char* op, const char* name, const Pair& values, int64_t least) {
  STD_TORCH_CHECK(values[0] >= least && values[1] >= least, op, ": expected ", name, " of at least ", least,
                  ", got (", values[0], ", ", values[1], ")");
}

}  // namespace

int64_t conv_size(const char* op, int64_t in, int64_t kernel, int64_t stride, int64_t padding,
                  int64_t dilation) {
  const int64_t extent = add(op, multiply(op, dilation, kernel - 1), 1);
  const int64_t padded = add(op, in, multiply(op, 2, padding));
  STD_TORCH_CHECK(padded >= extent, op, ": the kernel spans ", extent, " but the padded input has only ",
                  padded);
  return (padded - extent) / stride + 1;
}

int64_t pool_size(int64_t in, int64_t kernel, int64_t stride, int64_t padding, bool ceil_mode) {
  const int64_t span = in + 2 * padding - kernel;
  if (span < 0 && !(ceil_mode && span + stride > 0)) return 0;
  int64_t out = (span + (ceil_mode ? stride - 1 : 0)) / stride + 1;
  if (ceil_mode && (out - 1) * stride >= in + padding) --out;  // the last window must start inside
  return out;
}

Problem make_problem(const char* op, const Tensor& x, const Tensor& weight, const Arguments& args,
                     bool need_code, const Word& units) {
  STD_TORCH_CHECK(x.dim() == 4 || x.dim() == 3, op, ": expected x of shape [N, C, H, W] or [C, H, W], got ",
                  shape_text(x));
  STD_TORCH_CHECK(weight.dim() == 4, op, ": expected weight of shape [K, C/groups, R, S], got ",
                  shape_text(weight));
  check_floating(op, "x", x);
  check_same(op, "x", x, "weight", weight);
  check_allocated(op, "x", x);
  check_allocated(op, "weight", weight);
  Problem p{};
  p.batched = x.dim() == 4;
  const int64_t first = p.batched ? 1 : 0;
  p.N = p.batched ? x.size(0) : 1;
  p.C = x.size(first), p.H = x.size(first + 1), p.W = x.size(first + 2);
  p.K = weight.size(0), p.Cg = weight.size(1), p.R = weight.size(2), p.S = weight.size(3);
  p.groups = args.groups;
  STD_TORCH_CHECK(
      p.groups > 0 && p.K % p.groups == 0 && p.Cg > 0 && p.C % p.groups == 0 && p.C / p.groups == p.Cg, op,
      ": expected weight of shape [K, C/groups, R, S] with K divisible by groups, got weight ",
      shape_text(weight), " with x ", shape_text(x), " and groups ", p.groups);
  STD_TORCH_CHECK(p.C > 0 && p.H > 0 && p.W > 0 && p.K > 0 && p.R > 0 && p.S > 0, op,
                  ": only the batch may be empty, got x ", shape_text(x), " and weight ", shape_text(weight));
  p.Kg = p.K / p.groups;
  p.stride = pair(op, "stride", args.stride);
  p.padding = pair(op, "padding", args.padding);
  p.dilation = pair(op, "dilation", args.dilation);
  check_at_least(op, "stride", p.stride, 1);
  check_at_least(op, "padding", p.padding, 0);
  check_at_least(op, "dilation", p.dilation, 1);
  p.H1 = conv_size(op, p.H, p.R, p.stride[0], p.padding[0], p.dilation[0]);
  p.W1 = conv_size(op, p.W, p.S, p.stride[1], p.padding[1], p.dilation[1]);

  p.pool = pool_of(op, args.pool);
  p.pool_kernel = p.pool_stride = {1, 1};
  p.pool_padding = {0, 0};
  if (p.pool != Pool::kNone) {
    p.pool_kernel = pair(op, "pool_kernel", args.pool_kernel);
    const bool given = args.pool_stride.has_value() && !args.pool_stride->empty();
    p.pool_stride = given ? pair(op, "pool_stride", *args.pool_stride) : p.pool_kernel;
    p.pool_padding = pair(op, "pool_padding", args.pool_padding);
    check_at_least(op, "pool_kernel", p.pool_kernel, 1);
    check_at_least(op, "pool_stride", p.pool_stride, 1);
    check_at_least(op, "pool_padding", p.pool_padding, 0);
    for (int d = 0; d < 2; ++d) {
      STD_TORCH_CHECK(p.pool_padding[d] <= p.pool_kernel[d] / 2, op,
                      ": expected pool_padding of at most half of pool_kernel, got ", p.pool_padding[d],
                      " for ", p.pool_kernel[d]);
      STD_TORCH_CHECK(p.pool_kernel[d] < kLargest / 4 && p.pool_stride[d] < kLargest / 4, op,
                      ": pool_kernel or pool_stride overflows 64 bits");
    }
    STD_TORCH_CHECK(multiply(op, p.pool_kernel[0], p.pool_kernel[1]) < (int64_t{1} << 30), op,
                    ": expected a pool window of fewer than 2^30 positions");
  }
  p.ceil_mode = p.pool != Pool::kNone && args.ceil_mode;
  p.count_include_pad = args.count_include_pad;
  p.P = pool_size(p.H1, p.pool_kernel[0], p.pool_stride[0], p.pool_padding[0], p.ceil_mode);
  p.Q = pool_size(p.W1, p.pool_kernel[1], p.pool_stride[1], p.pool_padding[1], p.ceil_mode);
  STD_TORCH_CHECK(p.P > 0 && p.Q > 0, op, ": the pool leaves nothing of the ", p.H1, " x ", p.W1, " map");

  p.slope = args.negative_slope;
  STD_TORCH_CHECK(p.slope >= 0 && p.slope <= 1, op, ": expected 0 <= negative_slope <= 1, got ", p.slope);
  for (int i = 0; i < 4; ++i) p.w_strides[i] = weight.stride(i);
  for (int i = 0; i < 3; ++i) p.x_strides[i + 1] = x.stride(first + i);
  p.x_strides[0] = p.batched ? x.stride(0) : 0;
  p.x_channels_last = is_channels_last(x);
  p.w_channels_last = is_channels_last(weight);
  p.dtype = x.scalar_type();

  p.need_code = need_code;
  const int64_t largest = p.window() * (p.slope > 0 ? 2 : 1);
  p.code_dtype = p.pool != Pool::kMax ? ScalarType::Long
                 : largest <= 255     ? ScalarType::Byte
                                      : ScalarType::Int;
  p.units = units_of(op, units);
  p.unit_bits = 1;
  if (p.units == Units::kWinner) {
    STD_TORCH_CHECK(p.pool == Pool::kMax && p.slope == 0, op,
                    ": units \"winner\" needs pool \"max\" and negative_slope 0");
    while ((int64_t{1} << p.unit_bits) < p.window() + 1) ++p.unit_bits;
  }
  multiply(op, multiply(op, p.N, p.K), multiply(op, p.H1, p.W1));
  return p;
}

void take_residual(Problem& p, const char* op, const Tensor& x, const Tensor& residual) {
  check_same(op, "x", x, "residual", residual);
  check_allocated(op, "residual", residual);
  const int64_t first = p.batched ? 1 : 0, sizes[3] = {p.K, p.H1, p.W1};
  bool fits = residual.dim() == first + 3 && (!p.batched || residual.size(0) == p.N);
  for (int64_t i = 0; fits && i < 3; ++i) fits = residual.size(first + i) == sizes[i];
  STD_TORCH_CHECK(fits, op, ": expected residual of the un-pooled map's shape, ", p.K, " channels of ", p.H1,
                  " x ", p.W1, " for each of x's images, got ", shape_text(residual));
  p.r_strides[0] = p.batched ? residual.stride(0) : 0;
  for (int64_t i = 0; i < 3; ++i) p.r_strides[i + 1] = residual.stride(first + i);
}

Outputs make_outputs(const Problem& p, const Tensor& x) {
  const Ints y_sizes = p.batched ? Ints{p.N, p.K, p.P, p.Q} : Ints{p.K, p.P, p.Q};
  Ints code_sizes{0}, sig_sizes{0};
  bool code_channels_last = false;
  if (p.need_code && p.pool == Pool::kMax) {
    code_sizes = y_sizes;
    code_channels_last = p.x_channels_last;
  } else if (p.need_code) {
    code_sizes = p.batched ? Ints{p.N, p.K, p.map_words()} : Ints{p.K, p.map_words()};
  }
  if (p.units != Units::kNone) {
    const int64_t words = words_for(p.unit_count());
    sig_sizes = p.batched ? Ints{p.N, words} : Ints{words};
  }
  return {empty_on(x, y_sizes, p.dtype, p.x_channels_last),
          empty_on(x, code_sizes, p.need_code ? p.code_dtype : ScalarType::Byte, code_channels_last),
          empty_on(x, sig_sizes, ScalarType::Long)};
}

void check_backward(const Problem& p, const Tensor& x, const Tensor& grad, const Tensor& code) {
  const char* op = "_conv_relu_pool2d_backward";
  check_allocated(op, "grad", grad);
  check_allocated(op, "code", code);
  const Ints y_sizes = p.batched ? Ints{p.N, p.K, p.P, p.Q} : Ints{p.K, p.P, p.Q};
  const Ints code_sizes = p.pool == Pool::kMax ? y_sizes
                          : p.batched          ? Ints{p.N, p.K, p.map_words()}
                                               : Ints{p.K, p.map_words()};
  const auto has = [](const Tensor& t, const Ints& sizes) {
    if (t.dim() != static_cast<int64_t>(sizes.size())) return false;
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (t.size(static_cast<int64_t>(i)) != sizes[i]) return false;
    }
    return true;
  };
  STD_TORCH_CHECK(has(grad, y_sizes), op, ": expected grad of the shape of the result, got ",
                  shape_text(grad));
  STD_TORCH_CHECK(grad.device() == x.device() && code.device() == x.device(), op,
                  ": expected grad and code on the device of x");
  STD_TORCH_CHECK(grad.scalar_type() == p.dtype, op, ": expected grad of the dtype of x");
  STD_TORCH_CHECK(has(code, code_sizes) && code.scalar_type() == p.code_dtype, op,
                  ": expected the code that the forward pass gave, got one of shape ", shape_text(code));
}

}  // namespace zb::conv_relu_pool
