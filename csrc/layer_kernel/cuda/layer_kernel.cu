// layer_kernel on a GPU: a block takes some units of a pair into registers, and all angles go over them.
//
// Floor (bytes): u and v once. Floor (operations): four multiply-adds and a maximum for each unit and angle,
// which pass the bytes of float32 from about 5 angles on (H100: 67 TFLOP/s beside 3.35 TB/s). A thread sums
// its 8 units for 16 angles at a time; the 32 sums of a warp's lanes then change places while they are
// halved, so that lane i ends with sum i: 31 shuffles for 32 sums, beside the 640 instructions of the units.
// Blocks leave their sums in float64, and a second pass adds them in their order: results repeat bit by bit.
//
// Ladder
//   1  as above, 128 threads, the angles' cosines and sines read from global memory. Emulated and compiled;
//      not yet run on a card.
#include "common/cuda/dtype.h"
#include "common/last_kernel.h"
#include "common/register.h"
#include "layer_kernel/layer_kernel.h"

namespace zb::layer_kernel {
namespace {

using cuda::Sum;

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kAngles = 16;  // at a time: two sums each, one for every lane

// Of a thread, in registers.
template <class T>
constexpr int kUnits = sizeof(Sum<T>) == 8 ? 4 : 8;
template <class T>
constexpr int64_t kBlockUnits = kUnits<T> * kThreads;

// bias is null where there is none; steps between rows in elements.
template <class T>
struct Layer {
  const T *u, *v, *bias;
  int64_t u_step, v_step, P, n, A;
};

// NaN stays.
template <class S>
ZB_DEVICE S relu(S v) {
  return v < 0 ? S(0) : v;
}

// Afterwards sums[0] of lane i is the sum over the warp's lanes of sums[i]. By recursion: of a loop over
// `apart` the compiler makes one at run time, and keeps the sums in local memory for it.
template <int apart = 16, class S>
ZB_DEVICE void spread_sums(S (&sums)[32], int lane) {
  const bool upper = (lane & apart) != 0;
#pragma unroll
  for (int i = 0; i < apart; ++i) {
    const S mine = upper ? sums[i + apart] : sums[i], given = upper ? sums[i] : sums[i + apart];
    sums[i] = mine + __shfl_xor_sync(cuda::kWholeWarp, given, apart);
  }
  if constexpr (apart > 1) spread_sums<apart / 2>(sums, lane);
}

// to [P, parts, 1 + 2 A]: of each part of a pair's units the sum of a², and of a r and r² at each angle.
// turn_step: from a pair's cosines and sines to the next's, 0 where all have the same.
template <class T>
__global__ void __launch_bounds__(kThreads)
    part_sums(Layer<T> layer, const Sum<T>* cosines, const Sum<T>* sines, int64_t turn_step, double* to) {
  using S = Sum<T>;
  ZB_SHARED_ARRAY(S, of_warps, 32 * kWarps);
  const int t = static_cast<int>(threadIdx.x), lane = t % 32, warp = t / 32;
  const int64_t parts = cuda::pieces(layer.n, kBlockUnits<T>);
  for (int64_t item = blockIdx.x; item < layer.P * parts; item += gridDim.x) {
    const int64_t pair = item / parts, first_unit = item % parts * kBlockUnits<T> + t;
    S u[kUnits<T>], v[kUnits<T>], bias[kUnits<T>], a[kUnits<T>], square = 0;
#pragma unroll
    for (int j = 0; j < kUnits<T>; ++j) {
      const int64_t unit = first_unit + j * kThreads;
      const bool live = unit < layer.n;  // else 0, which adds nothing
      u[j] = live ? cuda::widen(layer.u[pair * layer.u_step + unit]) : S(0);
      v[j] = live ? cuda::widen(layer.v[pair * layer.v_step + unit]) : S(0);
      bias[j] = live && layer.bias ? cuda::widen(layer.bias[unit]) : S(0);
      a[j] = relu(u[j] + bias[j]);
      square = cuda::multiply_add(a[j], a[j], square);
    }
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) square += __shfl_xor_sync(cuda::kWholeWarp, square, apart);
    if (lane == 0) of_warps[warp] = square;
    __syncthreads();
    double* const own = to + item * (1 + 2 * layer.A);
    if (t == 0) {
      double total = 0;
      for (int w = 0; w < kWarps; ++w) total += of_warps[w];
      own[0] = total;
    }
    __syncthreads();
    const S *const cosine = cosines + pair * turn_step, *const sine = sines + pair * turn_step;
#pragma unroll 1
    for (int64_t first = 0; first < layer.A; first += kAngles) {
      S sums[2 * kAngles];
#pragma unroll
      for (int k = 0; k < kAngles; ++k) {
        const bool there = first + k < layer.A;
        const S c = there ? cosine[first + k] : S(0), s = there ? sine[first + k] : S(0);
        S cross = 0, length = 0;
#pragma unroll
        for (int j = 0; j < kUnits<T>; ++j) {
          const S r = relu(cuda::multiply_add(c, u[j], cuda::multiply_add(s, v[j], bias[j])));
          cross = cuda::multiply_add(a[j], r, cross);
          length = cuda::multiply_add(r, r, length);
        }
        sums[2 * k] = cross, sums[2 * k + 1] = length;
      }
      spread_sums(sums, lane);
      of_warps[t] = sums[0];
      __syncthreads();
      if (t < 32 && 2 * first + t < 2 * layer.A) {
        double total = 0;
        for (int w = 0; w < kWarps; ++w) total += of_warps[32 * w + t];
        own[1 + 2 * first + t] = total;
      }
      __syncthreads();
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    values(const double* sums, int64_t parts, int64_t P, int64_t A, int64_t n, bool normalized, T* out) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < P * A;
       i += int64_t{gridDim.x} * kThreads) {
    const int64_t pair = i / A, angle = i % A;
    double a2 = 0, ar = 0, r2 = 0;
    for (int64_t part = 0; part < parts; ++part) {
      const double* const of_part = sums + (pair * parts + part) * (1 + 2 * A);
      a2 += of_part[0], ar += of_part[1 + 2 * angle], r2 += of_part[2 + 2 * angle];
    }
    out[i] = cuda::narrow<T>(static_cast<Sum<T>>(value_of_sums(a2, ar, r2, n, normalized)));
  }
}

// torch's cosine or sine, in float64, as the sums have them: the device's own would bring a stack into a
// kernel.
template <class T>
Tensor of_angles(const char* function, const Tensor& angles) {
  std::array<StableIValue, 1> stack{torch::stable::detail::from(angles)};
  ZB_TORCH_CALL(torch_call_dispatcher(function, "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::to(torch::stable::detail::to<Tensor>(stack[0]), cuda::sum_dtype<T>());
}

template <class T>
void run(const cuda::Place& place, const Problem& p, const Inputs& in, Tensor& out) {
  const int64_t parts = cuda::pieces(p.n, kBlockUnits<T>);
  const Tensor cosines = of_angles<T>("aten::cos", in.angles), sines = of_angles<T>("aten::sin", in.angles);
  const Tensor sums = empty_on(in.u, {p.P, parts, 1 + 2 * p.A}, ScalarType::Double);
  const Layer<T> layer{cuda::read<T>(in.u),
                       cuda::read<T>(in.v),
                       static_cast<const T*>(in.bias_data()),
                       in.u_step,
                       in.v_step,
                       p.P,
                       p.n,
                       p.A};
  cuda::launch(place, "layer_kernel sums", part_sums<T>, p.P * parts, kThreads, 0, layer,
               cuda::read<Sum<T>>(cosines), cuda::read<Sum<T>>(sines), p.own_angles ? p.A : 0,
               cuda::write<double>(sums));
  cuda::launch(place, "layer_kernel values", values<T>, cuda::pieces(p.P * p.A, kThreads), kThreads, 0,
               cuda::read<double>(sums), parts, p.P, p.A, p.n, p.normalized, cuda::write<T>(out));
}

void forward(const Problem& p, const Inputs& in, Tensor& out) {
  const cuda::Place place("layer_kernel", in.u);
  cuda::dispatch(p.dtype, [&](auto type) { run<typename decltype(type)::type>(place, p, in, out); });
  note_kernel("layer_kernel sums");
}

const Registration registration("CUDA", {ZB_LAYER_KERNEL(forward)});

}  // namespace
}  // namespace zb::layer_kernel
