// act(x weightᵀ) on a GPU, and the sign bits of its results.
//
// Floor (bytes): x, weight and y once (+ 1 bit a result). Floor (operations): rows·out·in multiply-adds, on
// tensor cores for float16, bfloat16 and, where torch allows it, TF32; in float32 (float64) otherwise.
//
// Ladder
//   1  64 × 64 tiles through shared memory, activation in the epilogue; a tile's 64 columns are one word
//      of the signature, put together from ballots, so no word has two writers. Kept for float64 and small
//      layers.
//   2  the tiles of the convolution (conv_relu_pool/cuda/tiles.h), to which a row of x is an image of one
//      pixel. Emulated and compiled; not yet run on a card.
#include "linear_relu/linear_relu.h"

#include "common/cuda/tf32.h"
#include "common/cuda/tile_product.h"
#include "common/last_kernel.h"
#include "common/register.h"
#include "conv_relu_pool/cuda/tile_operands.h"

namespace zb::linear_relu {
namespace {

using cuda::kTile;
using cuda::Sum;

// A matrix of any strides, row by row, for tile_product.
template <class T>
struct Rows {
  const T* data;
  int64_t row_stride, column_stride, first, rows, at;

  ZB_DEVICE void begin(int64_t l) { at = l * column_stride; }
  ZB_DEVICE void next() { at += cuda::kTileDepth * column_stride; }
  ZB_DEVICE Sum<T> load(int i) const {
    const int64_t row = first + threadIdx.x / 16 + 16 * i;
    return row < rows ? cuda::widen(data[row * row_stride + at]) : Sum<T>(0);
  }
};

struct Matrix {
  int64_t rows, row_stride, column_stride;
};

template <class T>
__global__ void __launch_bounds__(cuda::kTileThreads)
    tiles(const T* __restrict__ x, Matrix x_matrix, const T* __restrict__ weight, Matrix weight_matrix,
          int64_t in, double negative_slope, T* __restrict__ y, uint64_t* __restrict__ sig) {
  using A = Sum<T>;
  ZB_SHARED_MEMORY(A, shared);
  const A slope = static_cast<A>(negative_slope);
  const int64_t out = weight_matrix.rows, across = cuda::pieces(out, kTile);
  const int64_t items = across * cuda::pieces(x_matrix.rows, kTile);
  const int low = static_cast<int>(threadIdx.x) % 16, high = static_cast<int>(threadIdx.x) / 16;
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const int64_t first_row = item / across * kTile, first_column = item % across * kTile;
    Rows<T> left{x, x_matrix.row_stride, x_matrix.column_stride, first_row, x_matrix.rows, 0};
    Rows<T> right{weight, weight_matrix.row_stride, weight_matrix.column_stride, first_column, out, 0};
    A sums[4][4] = {};
    cuda::tile_product(shared, int64_t{0}, in, left, right, sums);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t row = first_row + high + 16 * i;
      uint64_t word = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int64_t column = first_column + low + 16 * j;
        const bool inside = row < x_matrix.rows && column < out;
        const A value = cuda::activate<T>(cuda::rounded<T>(sums[i][j]), slope);
        if (inside) y[row * out + column] = cuda::narrow<T>(value);
        // A warp holds 16 columns of two rows: the odd one in the upper half of the votes.
        const uint32_t votes = __ballot_sync(cuda::kWholeWarp, inside && value > 0);
        word |= static_cast<uint64_t>(high % 2 ? votes >> 16 : votes & 0xffffu) << (16 * j);
      }
      if (sig && low == 0 && row < x_matrix.rows) sig[row * across + first_column / kTile] = word;
    }
  }
}

// One row of x is an image of one pixel, one row of weight a 1×1 filter.
conv_relu_pool::Geometry as_convolution(const Problem& p) {
  const conv_relu_pool::Axis one{1, 1, 1, 0, 1, 1, 1, 1, 0, 1};
  return {p.rows, p.in, p.out, p.in, p.out, 1, one, one, conv_relu_pool::Pool::kNone, true, p.slope};
}

template <class T, template <class, int> class Product>
void run_tiles(const cuda::Place& place, const Problem& p, const Tensor& x, const Tensor& weight,
               Outputs& outputs, bool tf32) {
  namespace conv = conv_relu_pool;
  const conv::Geometry g = as_convolution(p);
  conv::Geometry rows = g;  // for the copy of x: rows are the pixels of one image
  rows.N = 1, rows.h.in = p.rows;
  conv::TileOperands o = conv::tile_operands<T>(place, rows, x, {0, x.stride(1), x.stride(0), 0}, weight,
                                                {weight.stride(0), weight.stride(1), 0, 0}, tf32);
  o.in.n = o.in.h;
  conv::Sinks sinks{};
  sinks.image_bits = p.words * 64;
  if (p.need_sig) {
    sinks.output_sig = cuda::write<uint64_t>(outputs.sig);
    place.clear(outputs.sig, outputs.sig.numel() * 8);
  }
  conv::run_tiles<T, Product>(place, "linear_relu tiles", o.in, g, sinks, cuda::write<T>(outputs.y),
                              {p.out, 1, p.out, p.out});
}

// Why the tiles of the convolution can't run this; nullptr where they can.
const char* tiles_refuse(const Problem& p) {
  if (p.dtype == ScalarType::Double) return "float64";
  if (p.in < 8 || p.out < 8) return "fewer than 8 features or units";
  return p.in < 1 << 30 ? nullptr : "2^30 features or more";
}

void run_small(const cuda::Place& place, const Problem& p, const Tensor& x, const Tensor& weight,
               Outputs& outputs) {
  const int64_t items = cuda::pieces(p.rows, kTile) * cuda::pieces(p.out, kTile);
  cuda::dispatch(p.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    cuda::launch(place, "linear_relu tiles", tiles<T>, items, cuda::kTileThreads,
                 cuda::tile_shared_bytes<Sum<T>>(), cuda::read<T>(x),
                 Matrix{p.rows, x.stride(0), x.stride(1)}, cuda::read<T>(weight),
                 Matrix{p.out, weight.stride(0), weight.stride(1)}, p.in, p.slope, cuda::write<T>(outputs.y),
                 p.need_sig ? cuda::write<uint64_t>(outputs.sig) : nullptr);
  });
  note_kernel("simt");
}

void forward(const Problem& p, const Tensor& x, const Tensor& weight, Outputs& outputs) {
  const cuda::Place place(p.need_sig ? "linear_relu_nap" : "linear_relu", x, &weight);
  note_refusals_from_here();
  if (const char* reason = tiles_refuse(p)) {
    note_refusal("tiles", reason);
    return run_small(place, p, x, weight, outputs);
  }
  using conv_relu_pool::FmaProduct;
  using conv_relu_pool::TensorCoreProduct;
  if (p.dtype == ScalarType::Half) {
    run_tiles<__half, TensorCoreProduct>(place, p, x, weight, outputs, false);
  } else if (p.dtype == ScalarType::BFloat16) {
    run_tiles<__nv_bfloat16, TensorCoreProduct>(place, p, x, weight, outputs, false);
  } else if (cuda::tf32_allowed(cuda::Tf32::kMatmul) && !p.need_sig) {  // signatures are never made of TF32
    run_tiles<float, TensorCoreProduct>(place, p, x, weight, outputs, true);
  } else {
    run_tiles<float, FmaProduct>(place, p, x, weight, outputs, false);
    return note_kernel("fma tiles");
  }
  note_kernel("tensor core");
}

const Registration registration("CUDA", {ZB_LINEAR_RELU_KERNELS(forward)});

}  // namespace
}  // namespace zb::linear_relu
