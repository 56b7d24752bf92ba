// The forward pass on a GPU: where the bits go, and which kernel runs. The first that can is taken.
#include "conv_relu_pool/cuda/forward.h"

#include "common/last_kernel.h"
#include "common/register.h"
#include "conv_relu_pool/cuda/backward.h"

namespace zb::conv_relu_pool {
namespace {

void forward(const Problem& p, const Tensor& x, const Tensor& weight, const Tensor* residual, Outputs& out) {
  const cuda::Place place("conv_relu_pool2d", x, &weight);
  Sinks sinks{};
  sinks.unit_bits = p.unit_bits;
  sinks.image_bits = words_for(p.unit_count()) * 64;
  sinks.plane_bits = p.map_words() * 64;
  if (p.units != Units::kNone) {
    auto* const sig = cuda::write<uint64_t>(out.sig);
    if (p.units == Units::kWinner) {
      sinks.winner_sig = sig;
    } else if (p.units == Units::kRelu && p.pool != Pool::kNone) {
      sinks.map_sig = sig;
    } else {
      sinks.output_sig = sig;
    }
    place.clear(out.sig, out.sig.numel() * 8);
  }
  if (p.need_code && p.pool == Pool::kMax) {
    sinks.position_code = out.code.mutable_data_ptr();
    sinks.wide = p.code_dtype == ScalarType::Int;
    sinks.code_strides = strides_of(out.code);
  } else if (p.need_code) {
    sinks.map_code = cuda::write<uint64_t>(out.code);
    place.clear(out.code, out.code.numel() * 8);
  }
  const Geometry g = geometry_of(p);
  const Call call{place, p, g, x, weight, residual, out, sinks};
  note_refusals_from_here();
  for (const ForwardKernel* kernel :
       {&kFirstLayerTensorCore, &kFirstLayer, &kTensorCore, &kFmaTiles, &kGeneral}) {
    if (const char* reason = kernel->can_run(call)) {
      note_refusal(kernel->name, reason);
      continue;
    }
    kernel->run(call);
    return note_kernel(kernel->name);
  }
}

const Registration registration("CUDA", {ZB_CONV_RELU_POOL_KERNELS(forward, backward)});

}  // namespace
}  // namespace zb::conv_relu_pool
