// The general backward pass: the gradient of the un-pooled map, written out, then torch's
// convolution_backward.
//
// Each plane (n, k) is put together in the accumulation type by one thread, window after window in row-major
// order, and rounded once: deterministic, and independent of the number of threads.
#include "common/aten.h"
#include "common/cpu_capability.h"
#include "common/parallel.h"
#include "common/vec.h"
#include "conv_relu_pool/cpu/backward.h"
#include "conv_relu_pool/cpu/backward_sparse.h"

namespace zb::conv_relu_pool::cpu {
namespace {

template <class E>
struct Accumulate {
  using type = float;
};
template <>
struct Accumulate<double> {
  using type = double;
};

struct Strides {
  int64_t n, k, p, q;
  explicit Strides(const Tensor& t) : n(t.stride(0)), k(t.stride(1)), p(t.stride(2)), q(t.stride(3)) {}
};

// plane [H1, W1] += the winners' gradients. A position outside of the map (no forward pass writes one) is
// skipped.
template <class T, class E, class Code>
void add_max(const Problem& p, const E* grad, const Strides& gs, const Code* code, const Strides& cs,
             T* plane) {
  const bool leaky = p.slope > 0;
  const T slope = static_cast<T>(p.slope);
  for (int64_t i = 0; i < p.P; ++i) {
    for (int64_t j = 0; j < p.Q; ++j) {
      const int64_t c = code[i * cs.p + j * cs.q];
      if (c == 0) continue;
      const int64_t position = leaky ? (c - 1) / 2 : c - 1;
      const int64_t h = i * p.pool_stride[0] - p.pool_padding[0] + position / p.pool_kernel[1];
      const int64_t w = j * p.pool_stride[1] - p.pool_padding[1] + position % p.pool_kernel[1];
      if (h < 0 || h >= p.H1 || w < 0 || w >= p.W1) continue;
      const T g = value_of(grad[i * gs.p + j * gs.q]);
      plane[h * p.W1 + w] += leaky && c % 2 == 0 ? g * slope : g;
    }
  }
}

// As torch's avg_pool2d: the window is clipped to the padded map for the divisor, then to the map for the
// sum.
template <class T, class E>
void add_avg(const Problem& p, const E* grad, const Strides& gs, T* plane) {
  const auto& [kh, kw] = p.pool_kernel;
  for (int64_t i = 0; i < p.P; ++i) {
    const int64_t top = i * p.pool_stride[0] - p.pool_padding[0];
    const int64_t bottom = std::min(top + kh, p.H1 + p.pool_padding[0]);
    const int64_t h0 = std::max<int64_t>(top, 0), h1 = std::min(bottom, p.H1);
    for (int64_t j = 0; j < p.Q; ++j) {
      const int64_t left = j * p.pool_stride[1] - p.pool_padding[1];
      const int64_t right = std::min(left + kw, p.W1 + p.pool_padding[1]);
      const int64_t w0 = std::max<int64_t>(left, 0), w1 = std::min(right, p.W1);
      const int64_t divisor = p.count_include_pad ? (bottom - top) * (right - left) : (h1 - h0) * (w1 - w0);
      const T share = value_of(grad[i * gs.p + j * gs.q]) / static_cast<T>(divisor);
      for (int64_t h = h0; h < h1; ++h) {
        for (int64_t w = w0; w < w1; ++w) plane[h * p.W1 + w] += share;
      }
    }
  }
}

void apply_bits(const Problem& p, const uint64_t* bits, float* plane) {
  const auto mask = [&] {
#if defined(__x86_64__)
    if (cpu_capability() >= Capability::kAvx512) return avx512::mask_plane;
    if (cpu_capability() == Capability::kAvx2) return avx2::mask_plane;
#endif
    return portable::mask_plane;
  }();
  mask(plane, bits, p.H1 * p.W1, static_cast<float>(p.slope));
}

void apply_bits(const Problem& p, const uint64_t* bits, double* plane) {
  for (int64_t u = 0; u < p.H1 * p.W1; ++u) {
    const bool on = bits[u / 64] >> (u % 64) & 1;
    plane[u] = on ? plane[u] : p.slope == 0 ? 0 : plane[u] * p.slope;
  }
}

template <class E, class Code>
struct Expand {
  using T = typename Accumulate<E>::type;
  const Problem& p;
  const E* grad;
  Strides gs;
  const void* code;
  Strides cs;  // of a max code

  void plane(int64_t n, int64_t k, T* to) const {
    if (p.pool != Pool::kNone) std::memset(to, 0, static_cast<size_t>(p.H1 * p.W1) * sizeof(T));
    const E* g = grad + n * gs.n + k * gs.k;
    if (p.pool == Pool::kMax) {
      return add_max(p, g, gs, static_cast<const Code*>(code) + n * cs.n + k * cs.k, cs, to);
    }
    if (p.pool == Pool::kAvg) {
      add_avg(p, g, gs, to);
    } else {
      for (int64_t h = 0; h < p.H1; ++h) {
        T* row = to + h * p.W1;
        const E* from = g + h * gs.p;
        if (gs.q == 1) {
          for (int64_t w = 0; w < p.W1; ++w) row[w] = value_of(from[w]);
        } else {
          for (int64_t w = 0; w < p.W1; ++w) row[w] = value_of(from[w * gs.q]);
        }
      }
    }
    apply_bits(p, static_cast<const uint64_t*>(code) + (n * p.K + k) * p.map_words(), to);
  }

  // Planes of a few channels side by side, so that a channels_last map is written in whole cache lines.
  void run(E* out, bool channels_last) const {
    const int64_t map = p.H1 * p.W1, side = channels_last ? 16 : 1, groups = ceil_div(p.K, side);
    parallel_for(0, p.N * groups, std::max<int64_t>(1, 4096 / (map * side)), [&](int64_t begin, int64_t end) {
      static thread_local Arena arena;
      T* planes = static_cast<T*>(arena.get(side * map * static_cast<int64_t>(sizeof(T))));
      for (int64_t task = begin; task < end; ++task) {
        const int64_t n = task / groups, k0 = task % groups * side, some = std::min(side, p.K - k0);
        if constexpr (std::is_same_v<E, T>) {
          if (!channels_last) {
            plane(n, k0, out + (n * p.K + k0) * map);
            continue;
          }
        }
        for (int64_t k = 0; k < some; ++k) plane(n, k0 + k, planes + k * map);
        if (!channels_last) {
          E* to = out + (n * p.K + k0) * map;
          for (int64_t u = 0; u < map; ++u) put(to + u, planes[u]);
          continue;
        }
        E* to = out + n * map * p.K + k0;
        for (int64_t u = 0; u < map; ++u) {
          for (int64_t k = 0; k < some; ++k) put(to + u * p.K + k, planes[k * map + u]);
        }
      }
      arena.release();
    });
  }
};

template <class E>
void expand(const BackwardArgs& a, const Tensor& out) {
  const Problem& p = a.p;
  const Tensor code = p.pool == Pool::kMax ? a.code : torch::stable::contiguous(a.code);
  const Strides code_strides(p.pool == Pool::kMax ? code : out);
  const auto* grad = static_cast<const E*>(a.grad.const_data_ptr());
  auto* to = static_cast<E*>(out.mutable_data_ptr());
  if (p.code_dtype == ScalarType::Byte) {
    Expand<E, uint8_t>{p, grad, Strides(a.grad), code.const_data_ptr(), code_strides}.run(to,
                                                                                          p.x_channels_last);
  } else {
    Expand<E, int32_t>{p, grad, Strides(a.grad), code.const_data_ptr(), code_strides}.run(to,
                                                                                          p.x_channels_last);
  }
}

// t itself where its strides are those promised (of dimensions of size 1 too), else a copy.
Tensor in_format(const Tensor& t, bool channels_last) {
  Tensor out = empty_on(t, Ints(t.sizes().begin(), t.sizes().end()), t.scalar_type(), channels_last);
  bool same = true;
  for (int64_t d = 0; d < t.dim(); ++d) same = same && t.stride(d) == out.stride(d);
  return same ? t : torch::stable::copy_(out, t);
}

Tensor gradient_of_map(const BackwardArgs& a) {
  const Problem& p = a.p;
  if (p.pool == Pool::kNone && p.slope == 1) return in_format(a.grad, p.x_channels_last);
  const Tensor out = empty_on(a.x, {p.N, p.K, p.H1, p.W1}, p.dtype, p.x_channels_last);
  switch (p.dtype) {
    case ScalarType::Float:
      expand<float>(a, out);
      break;
    case ScalarType::Double:
      expand<double>(a, out);
      break;
    case ScalarType::Half:
      expand<Half>(a, out);
      break;
    default:
      expand<BFloat>(a, out);
  }
  return out;
}

}  // namespace

std::tuple<Tensor, Tensor> backward_dense(const BackwardArgs& a) {
  const Problem& p = a.p;
  // torch 2.13 gives a wrong gradient of a grouped weight where the stride of a single image is not what its
  // format has; and in channels_last it writes past that of a 1x1 weight whose two strides differ.
  const bool pixels = p.R == 1 && p.S == 1 && p.stride[0] != p.stride[1];
  const bool plain = p.groups > 1 || pixels;
  const Tensor map = gradient_of_map(a), grad_pre = pixels ? in_format(map, false) : map;
  const Tensor x = plain ? in_format(a.x, p.x_channels_last && !pixels) : a.x;
  const Tensor weight = plain ? in_format(a.weight, p.w_channels_last && !pixels) : a.weight;
  auto [grad_x, grad_weight] = aten::convolution_backward(grad_pre, x, weight, p.stride, p.padding,
                                                          p.dilation, p.groups, a.need_x, a.need_weight);
  if (a.need_x) grad_x = in_format(grad_x, p.x_channels_last);
  if (a.need_weight) grad_weight = in_format(grad_weight, p.w_channels_last);
  note_kernel("backward dense aten");
  return {grad_x, grad_weight};
}

}  // namespace zb::conv_relu_pool::cpu
