// The forward pass on the CPU: copies the problem into plain data, picks the instruction set, and runs the
// tasks. The kernels are in forward_kernel.h, direct.h, winograd.h and epilogue.h.
#include <cstring>
#include <string_view>

#include "common/cpu_capability.h"
#include "common/last_kernel.h"
#include "common/parallel.h"
#include "common/register.h"
#include "conv_relu_pool/cpu/call.h"
#include "conv_relu_pool/cpu/kernels.h"
#include "conv_relu_pool/cpu/run_call.h"
#include "conv_relu_pool/cpu/small_calls.h"

namespace zb::conv_relu_pool::cpu {
namespace {

Call make_call(const Problem& p, const Tensor& x, const Tensor& weight, const Tensor* residual,
               Outputs& out) {
  Call c{};
  c.N = p.N, c.C = p.C, c.K = p.K, c.Cg = p.Cg, c.Kg = p.Kg, c.groups = p.groups;
  const int64_t in[2] = {p.H, p.W}, kernel[2] = {p.R, p.S}, map[2] = {p.H1, p.W1}, result[2] = {p.P, p.Q};
  for (int d = 0; d < 2; ++d) {
    c.in[d] = in[d], c.kernel[d] = kernel[d], c.map[d] = map[d], c.out[d] = result[d];
    // What a single row, tap or output makes meaningless may be so large that products of it overflow.
    c.stride[d] = map[d] > 1 ? p.stride[d] : 1;
    c.dilation[d] = kernel[d] > 1 ? p.dilation[d] : 1;
    c.pool_stride[d] = result[d] > 1 ? p.pool_stride[d] : 1;
    c.padding[d] = p.padding[d], c.pool_kernel[d] = p.pool_kernel[d];
    c.pool_padding[d] = p.pool_padding[d];
  }
  c.pool = p.pool == Pool::kMax ? Pooling::kMax : p.pool == Pool::kAvg ? Pooling::kAvg : Pooling::kNone;
  c.count_include_pad = p.count_include_pad;
  c.slope = p.slope;
  // Signatures are always of direct sums: where a sum is exactly 0, the rounding of a transform would decide
  // a bit, and the pattern would change with the contrast.
  c.highest = highest_precision() || p.units != Units::kNone;
  c.element = element_of(p.dtype);
  c.x = x.data_ptr(), c.weight = weight.data_ptr(), c.y = out.y.data_ptr();
  c.residual = residual ? residual->data_ptr() : nullptr;
  for (int i = 0; i < 4; ++i) {
    c.x_strides[i] = p.x_strides[i], c.w_strides[i] = p.w_strides[i], c.r_strides[i] = p.r_strides[i];
  }
  const int64_t plane = p.P * p.Q;
  c.y_strides[0] = p.K * plane;
  c.y_strides[1] = p.x_channels_last ? 1 : plane;
  c.y_strides[2] = p.x_channels_last ? p.Q * p.K : p.Q;
  c.y_strides[3] = p.x_channels_last ? p.K : 1;
  c.code_kind = !p.need_code                       ? CodeKind::kNone
                : p.pool != Pool::kMax             ? CodeKind::kBits
                : p.code_dtype == ScalarType::Byte ? CodeKind::kByte
                                                   : CodeKind::kInt;
  c.code = p.need_code ? out.code.data_ptr() : nullptr;
  c.units = p.units == Units::kRelu     ? UnitKind::kRelu
            : p.units == Units::kOutput ? UnitKind::kOutput
            : p.units == Units::kWinner ? UnitKind::kWinner
                                        : UnitKind::kNone;
  c.sig = c.units == UnitKind::kNone ? nullptr : static_cast<uint64_t*>(out.sig.data_ptr());
  c.unit_bits = p.unit_bits;
  c.sig_words = words_for(p.unit_count());
  c.threads = thread_count();
  return c;
}

const char* name_of(const Kernels& kernels, const Call& c) {
  return c.algorithm == Algorithm::kWinograd       ? kernels.winograd_name
         : c.algorithm == Algorithm::kDirectPairs  ? kernels.pairs_name
         : c.algorithm == Algorithm::kFewPixels    ? kernels.few_pixels_name
         : c.algorithm == Algorithm::kDirectPixels ? kernels.pixels_name
         : c.algorithm == Algorithm::kDepthwise    ? kernels.depthwise_name
                                                   : kernels.direct_name;
}

// What the choice of a kernel depends on: no rows or columns of a pool, no memory format of x.
Call unpooled(Element element, int64_t C, int64_t K, int64_t groups, const int64_t* map) {
  Call c{};
  c.N = 1, c.C = C, c.K = K, c.groups = groups, c.Cg = C / groups, c.Kg = K / groups;
  c.element = element;
  c.pool = Pooling::kNone;
  c.threads = 1;
  for (int d = 0; d < 2; ++d) c.map[d] = c.out[d] = map[d], c.pool_kernel[d] = c.pool_stride[d] = 1;
  return c;
}

}  // namespace

void forward(const Problem& p, const Tensor& x, const Tensor& weight, const Tensor* residual, Outputs& out) {
  Call call = make_call(p, x, weight, residual, out);
  // Tasks share words of the bit formats, so bits are added to zeros.
  if (call.sig) std::memset(call.sig, 0, static_cast<size_t>(out.sig.numel()) * 8);
  if (call.code_kind == CodeKind::kBits) std::memset(call.code, 0, static_cast<size_t>(out.code.numel()) * 8);

  keep_call(call);
  run_forward(call);
}

void run_forward(Call& call) {
  const Kernels& kernels = kernels_here();
  kernels.plan(call);
  const bool training = call.code_kind != CodeKind::kNone;  // each call brings new weights
  run_call(kernels, call, !training);
  note_kernel(name_of(kernels, call));
}

namespace {

const Registration registration{"CPU", {ZB_CONV_RELU_POOL_KERNELS(&forward, &backward)}};

}  // namespace
}  // namespace zb::conv_relu_pool::cpu

// For zb.explain: the kernel of a forward pass. sizes: C, K, groups, then two each (rows, columns): the
// input, the filter, stride, padding, dilation, the un-pooled map; then N, and the weight's strides.
// with_units: the call returns a signature.
extern "C" __attribute__((visibility("default"))) const char* zb_cpu_conv_kernel(const char* dtype,
                                                                                 const int64_t* sizes,
                                                                                 int with_units) {
  using namespace zb::conv_relu_pool::cpu;
  const std::string_view name = dtype;
  const Element element = name == "float64"    ? Element::kDouble
                          : name == "float16"  ? Element::kHalf
                          : name == "bfloat16" ? Element::kBFloat
                                               : Element::kFloat;
  Call c = unpooled(element, sizes[0], sizes[1], sizes[2], sizes + 13);
  for (int d = 0; d < 2; ++d) {
    c.in[d] = sizes[3 + d], c.kernel[d] = sizes[5 + d], c.padding[d] = sizes[9 + d];
    c.stride[d] = c.map[d] > 1 ? sizes[7 + d] : 1;
    c.dilation[d] = c.kernel[d] > 1 ? sizes[11 + d] : 1;
  }
  c.N = sizes[15];
  for (int i = 0; i < 4; ++i) c.w_strides[i] = sizes[16 + i];
  c.highest = zb::highest_precision() || with_units;
  const Kernels& kernels = kernels_here();
  kernels.plan(c);
  return name_of(kernels, c);
}
