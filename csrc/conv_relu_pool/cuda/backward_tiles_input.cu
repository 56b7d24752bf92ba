// The gradient of the input as a convolution in tiles (tiles.h): the un-pooled gradient with the weights
// mirrored and their channels exchanged.
//
// With a stride, the rows h ≡ f (mod stride) of x meet only every stride-th tap, and are a convolution with
// those alone; so are columns. Each pair of residues is one launch, and no product is with a zero between.
//
// Floor (bytes): the map and weight once, grad_x once. Floor (operations): N·K·H1·W1·Cg·R·S multiply-adds.
//
// Ladder
//   1  as said. Emulated and compiled; not yet run on a card.
#include "conv_relu_pool/cuda/backward.h"

#include "common/cuda/tf32.h"
#include "conv_relu_pool/cuda/tile_operands.h"

namespace zb::conv_relu_pool {
namespace {

// The convolution that makes every stride-th row of grad_x, from row `first` on.
struct Phase {
  int64_t first, rows;
  int64_t tap, taps;  // the first tap met (then every stride-th), and how many
  Axis axis;
};

Phase phase_of(const Axis& a, int64_t first) {
  Phase f{first, cuda::pieces(a.in - first, a.stride), 0, 0, {}};
  f.tap = (first + a.padding) % a.stride;
  f.taps = f.tap < a.kernel ? (a.kernel - 1 - f.tap) / a.stride + 1 : 0;
  const int64_t dilation = a.stride == 1 ? a.dilation : 1;
  // Row first + i·stride meets map row start + i - j·dilation through tap f.tap + j·stride.
  const int64_t start = (first + a.padding - f.tap) / a.stride;
  f.axis = {a.map, f.taps, 1, (f.taps - 1) * dilation - start, dilation, f.rows, 1, 1, 0, f.rows};
  return f;
}

template <class T, template <class, int> class Product>
void run(const BackwardCall& call, const MapGrad& map, const Tensor& grad_x, bool tf32) {
  constexpr int64_t kSize = sizeof(T);
  const Geometry& g = call.g;
  const auto& ws = call.p.w_strides;
  const Strides to = strides_of(grad_x);
  const auto meets_all = [](const Axis& a) { return a.stride <= a.kernel; };
  if (!meets_all(g.h) || !meets_all(g.w)) call.place.clear(grad_x, grad_x.numel() * kSize);
  for (int64_t h = 0; h < g.h.stride && h < g.h.in; ++h) {
    for (int64_t w = 0; w < g.w.stride && w < g.w.in; ++w) {
      const Phase down = phase_of(g.h, h), across = phase_of(g.w, w);
      if (down.taps == 0 || across.taps == 0) continue;
      const Geometry flipped{g.N,       g.K,         g.C,         g.Kg, g.Cg, g.groups,
                             down.axis, across.axis, Pool::kNone, true, 1.0};
      const WeightView view{g.C,   g.Cg,  down.taps * across.taps, across.taps,        g.Kg, g.Kg * ws[0],
                            ws[1], ws[0], -g.h.stride * ws[2],     -g.w.stride * ws[3]};
      const int64_t last = (down.tap + (down.taps - 1) * g.h.stride) * ws[2] +
                           (across.tap + (across.taps - 1) * g.w.stride) * ws[3];
      TileOperands o{};
      o.in = {static_cast<const unsigned char*>(map.data.const_data_ptr()),
              nullptr,
              map.strides.n * kSize,
              map.strides.h * kSize,
              map.strides.w * kSize,
              static_cast<int>(map.channels * kSize / kChunk)};
      chunk_weights<T>(call.place, view, cuda::read<T>(call.weight) + last, tf32, call.weight, o);
      const Strides phase_strides{to.n, to.c, to.h * g.h.stride, to.w * g.w.stride};
      run_tiles<T, Product>(call.place, "conv_relu_pool tiles_input", o.in, flipped, Sinks{},
                            cuda::write<T>(grad_x) + h * to.h + w * to.w, phase_strides);
    }
  }
}

}  // namespace

const char* tiles_refuse_input(const Problem& p, const Geometry& g) {
  constexpr int64_t kMost = 1 << 30, kMostPhases = 16;
  if (p.dtype == ScalarType::Double) return "float64";
  if (g.Kg < 8 || g.Cg < 8) return "fewer than 8 channels in a group";
  for (const Axis* a : {&g.h, &g.w}) {
    if (a->stride > 1 && a->dilation > 1) return "a stride and a dilation";
    if (a->stride > kMostPhases) return "a stride too large";
    if (a->in + 2 * a->padding >= kMost || a->kernel * a->dilation >= kMost) return "an image too large";
  }
  if (g.h.kernel * g.w.kernel * g.Kg >= kMost) return "a filter too large";
  return nullptr;
}

void tiles_input_grad(const BackwardCall& call, const MapGrad& map, const Tensor& grad_x) {
  switch (call.p.dtype) {
    case ScalarType::Half:
      return run<__half, TensorCoreProduct>(call, map, grad_x, false);
    case ScalarType::BFloat16:
      return run<__nv_bfloat16, TensorCoreProduct>(call, map, grad_x, false);
    default:
      if (cuda::tf32_allowed(cuda::Tf32::kConvolution)) {
        return run<float, TensorCoreProduct>(call, map, grad_x, true);
      }
      return run<float, FmaProduct>(call, map, grad_x, false);
  }
}

}  // namespace zb::conv_relu_pool
