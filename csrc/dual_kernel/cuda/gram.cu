// dual_gram on a GPU: the product and the whole recursion in one pass, one store a result.
//
// Floor (bytes): x1, x2 and the result once. Floor (operations): N·M·d multiply-adds outside the tensor cores
// (half of them where x1 is x2), and for each pair and layer two divisions, a square root and an arc tangent
// (ReLU), some 80 instructions: a tenth of d = 784 a layer.
//
// Ladder
//   1  128 × 64 pairs a block (64 × 64 in float64), 8 × 4 a thread: 3 loads of 16 bytes from shared memory for
//      32 multiply-adds; of a batch with itself the upper tiles, each written twice. Emulated and compiled;
//      not yet run on a card.
#include "common/last_kernel.h"
#include "dual_kernel/cuda/kernels.h"
#include "dual_kernel/cuda/network.h"
#include "dual_kernel/cuda/product.h"

namespace zb::dual_kernel {
namespace {

constexpr int64_t kBand = 8;  // tiles of rows that blocks side by side share columns for, in the L2 cache

template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    gram_tiles(Network<T> net, Rows<T> x1, Rows<T> x2, int64_t features, bool symmetric, T* out) {
  using Tile = Tile<T>;
  ZB_SHARED_MEMORY(T, shared);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t N = x1.rows, M = x2.rows;
  const int64_t high = cuda::pieces(N, Tile::kRows), wide = cuda::pieces(M, Tile::kColumns);
  for (int64_t item = blockIdx.x; item < high * wide; item += gridDim.x) {
    const int64_t band = item / (kBand * wide) * kBand, within = item % (kBand * wide);
    const int64_t height = high - band < kBand ? high - band : kBand;
    const int64_t first_row = (band + within % height) * Tile::kRows;
    const int64_t first_column = within / height * Tile::kColumns;
    if (symmetric && first_column + Tile::kColumns <= first_row) continue;
    kernel_tile(shared, net, x1, x2, features, first_row, first_column, symmetric);
    for (int i = thread; i < Tile::kRows * Tile::kColumns; i += kThreads) {
      const int r = i / Tile::kColumns, c = i % Tile::kColumns;
      const int64_t row = first_row + r, column = first_column + c;
      if (row >= N || column >= M || (symmetric && column < row)) continue;
      out[row * M + column] = shared[r * Tile::kPitch + c];
    }
    if (symmetric) {
      for (int i = thread; i < Tile::kRows * Tile::kColumns; i += kThreads) {
        const int r = i % Tile::kRows, c = i / Tile::kRows;
        const int64_t row = first_row + r, column = first_column + c;
        if (row >= N || column >= M || column <= row) continue;
        out[column * M + row] = shared[r * Tile::kPitch + c];
      }
    }
    __syncthreads();
  }
}

template <class T>
void run(const cuda::Place& place, const Problem& p, const Tensor& x1, const Tensor& x2, Tensor& out) {
  const Network<T> net = network<T>(p);
  RowMemory memory1, memory2;
  const Rows<T> a = rows_of(place, net, x1, memory1);
  const Rows<T> b = p.symmetric ? a : rows_of(place, net, x2, memory2);
  const int64_t items = cuda::pieces(p.N, Tile<T>::kRows) * cuda::pieces(p.M, Tile<T>::kColumns);
  cuda::launch(place, "dual_gram tiles", gram_tiles<T>, items, kThreads, Tile<T>::shared_bytes(), net, a, b, p.d,
               p.symmetric, cuda::write<T>(out));
}

}  // namespace

void gram(const Problem& p, const Tensor& x1, const Tensor& x2, Tensor& out) {
  const cuda::Place place("dual_gram", x1);
  p.dtype == ScalarType::Float ? run<float>(place, p, x1, x2, out) : run<double>(place, p, x1, x2, out);
  note_kernel("dual_gram tiles");
}

}  // namespace zb::dual_kernel
