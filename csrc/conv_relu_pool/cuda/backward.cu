// conv → act → pool on a GPU, backward, without atomics: each result is one sum in one fixed order.
//
// With the position codes of a max pool and few input channels, straight from the codes
// (backward_direct_*.cu). Everything else by way of the gradient of the un-pooled map, written once
// (backward_map.cu): as matrix products in tiles (backward_tiles_*.cu), on tensor cores where the dtype has
// them, or one by one (backward_simt.cu).
//
// Floor (bytes): grad, code, x, weight once, grad_x, grad_weight once. Floor (operations): 2·N·K·H1·W1·Cg·R·S
// multiply-adds, fewer where the code's zeros are used.
//
// Why no library's convolution: results here repeat bit by bit, and aten::convolution_backward repeats only
// where the process has asked for it (torch.backends.cudnn.deterministic), which LibTorch's stable ABI can
// neither read nor set. aten::cudnn_convolution_transpose takes `deterministic` as an argument and could make
// the gradient of the input; the gradient of the weight as aten::cudnn_convolution with x and grad transposed
// would be one product of C·R·S by K with nothing to split its N·H1·W1 terms among blocks.
//
// Ladder
//   1  the un-pooled gradient is written once and read by both products, in the dtype of x as torch's own
//      chain of backward passes has it.
//   2  few input channels and depthwise straight from the codes. The choice is by predicted times.
//   3  many channels as matrix products in tiles. None of this has run on a card yet.
#include "conv_relu_pool/cuda/backward.h"

#include "common/cuda/tf32.h"
#include "common/last_kernel.h"

namespace zb::conv_relu_pool {
namespace {

// Which gradients are faster straight from the codes, as predicted for an H100 (3.35 TB/s; an SM reads 32
// numbers of shared memory a clock and multiplies 128). Not yet measured on a card.
//
// The weight's: one read of shared memory a tap and pooled output, and per 28 taps as much again to stage x,
// grad and code. By way of the map: the map written and read, and a multiply-add for each of its H1·W1 /
// (P·Q) = 4 positions, as fast as one read, so that staging again and again speaks against many taps. Tensor
// cores multiply 8 times as fast and more, but take 8 channels (4 of TF32) for the fewest. The input's,
// depthwise: the bytes of the map saved, 8 of 13.25 numbers a pooled output. With more channels a position of
// the map is used many times, and making it once is right.
struct Direct {
  bool input, weight;
};
Direct faster_directly(const Problem& p) {
  constexpr int64_t kMostTaps = 150, kMostKernels = 4, kFewChannels = 8;
  if (p.pool != Pool::kMax) return {false, false};
  const bool tensor_cores = p.dtype == ScalarType::Half || p.dtype == ScalarType::BFloat16 ||
                            (p.dtype == ScalarType::Float && cuda::tf32_allowed(cuda::Tf32::kConvolution));
  return {p.Cg == 1 && p.Kg <= kMostKernels && p.R * p.S <= kMostTaps,
          p.Cg * p.R * p.S <= kMostTaps && !(tensor_cores && p.Cg >= kFewChannels && p.Kg >= kFewChannels)};
}

// How a gradient is made.
enum Way { kNotWanted, kDirect, kTiles, kSimt };

// Whether there is a reason against a kernel, which `last_refusals` then tells.
bool refused(const char* kernel, const char* reason) {
  if (reason) note_refusal(kernel, reason);
  return reason;
}

const char* name_of(Way input, Way weight) {
  constexpr const char* kNames[4][4] = {
      {"", "backward direct weight", "backward tiles weight", "backward simt weight"},
      {"backward direct input", "backward direct input + direct weight",
       "backward direct input + tiles weight", "backward direct input + simt weight"},
      {"backward tiles input", "backward tiles input + direct weight", "backward tiles input + tiles weight",
       "backward tiles input + simt weight"},
      {"backward simt input", "backward simt input + direct weight", "backward simt input + tiles weight",
       "backward simt input + simt weight"}};
  return kNames[input][weight];
}

}  // namespace

std::tuple<Tensor, Tensor> backward(const Problem& p, const Tensor& grad, const Tensor& x,
                                    const Tensor& weight, const Tensor& code, bool need_x, bool need_weight) {
  const cuda::Place place("conv_relu_pool2d backward", x, &weight);
  const Ints x_sizes(x.sizes().begin(), x.sizes().end());
  const Tensor grad_x = empty_on(x, need_x ? x_sizes : Ints{0}, p.dtype, need_x && p.x_channels_last);
  const Tensor grad_weight = empty_on(x, need_weight ? Ints{p.K, p.Cg, p.R, p.S} : Ints{0}, p.dtype,
                                      need_weight && p.w_channels_last);
  if (p.N == 0) {
    if (need_weight) {
      cuda::dispatch(p.dtype, [&](auto type) {
        place.clear(grad_weight, grad_weight.numel() * sizeof(typename decltype(type)::type));
      });
    }
    return {grad_x, grad_weight};
  }
  if (!need_x && !need_weight) return {grad_x, grad_weight};

  const Geometry g = geometry_of(p);
  const bool positions = p.pool == Pool::kMax;
  const Tensor kept = positions ? code : torch::stable::contiguous(code);  // a bit code comes as it was given
  const Code codes{kept.const_data_ptr(), p.code_dtype == ScalarType::Int,
                   positions ? strides_of(kept) : Strides{}, p.map_words()};
  const BackwardCall call{place, p, g, grad, x, weight, codes};
  const Direct faster = faster_directly(p);
  note_refusals_from_here();
  Way input = kNotWanted, by_weight = kNotWanted;
  if (need_x) {
    input = faster.input && direct_input_grad(call, grad_x)    ? kDirect
            : refused("tiles input", tiles_refuse_input(p, g)) ? kSimt
                                                               : kTiles;
  }
  if (need_weight) {
    by_weight = faster.weight && direct_weight_grad(call, grad_weight) ? kDirect
                : refused("tiles weight", tiles_refuse_weight(p, g))   ? kSimt
                                                                       : kTiles;
  }
  if (input > kDirect || by_weight > kDirect) {
    const MapGrad map = spread_grad(call, input == kTiles || by_weight == kTiles);
    if (input == kTiles) tiles_input_grad(call, map, grad_x);
    if (input == kSimt) simt_input_grad(call, map, grad_x);
    if (by_weight == kTiles) tiles_weight_grad(call, map, grad_weight);
    if (by_weight == kSimt) simt_weight_grad(call, map, grad_weight);
  }
  note_kernel(name_of(input, by_weight));
  return {grad_x, grad_weight};
}

}  // namespace zb::conv_relu_pool
