// dual_matvec on a GPU: K(x1, x2) v, a tile of K at a time, which never leaves the block.
//
// Floor (operations): those of dual_gram (gram.cu), and N·M·p multiply-adds. Memory: what is known of the rows,
// and a sum of each result for every part of the columns. There are parts only where there are too few rows to
// fill the device, so at most about 4 blocks an SM in all.
//
// Ladder
//   1  the tiles of gram.cu, each multiplied by its rows of v out of shared memory, one thread a result; sums
//      of the parts are added in their order, so results repeat bit by bit. Of a batch with itself no use is
//      made of the symmetry. Emulated and compiled; not yet run on a card.
#include "common/last_kernel.h"
#include "dual_kernel/cuda/kernels.h"
#include "dual_kernel/cuda/network.h"
#include "dual_kernel/cuda/product.h"

namespace zb::dual_kernel {
namespace {

// v [M, columns] of any strides, in elements.
template <class T>
struct Vectors {
  const T* data;
  int64_t columns, row_step, column_step;
};

// sums [parts, p, N]: of part s the columns s·part_tiles·kColumns, ….
template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    matvec_tiles(Network<T> net, Rows<T> x1, Rows<T> x2, int64_t features, Vectors<T> v, int64_t parts,
                 int64_t part_tiles, T* sums) {
  using Tile = Tile<T>;
  ZB_SHARED_MEMORY(T, shared);
  const int64_t N = x1.rows, M = x2.rows;
  const int64_t high = cuda::pieces(N, Tile::kRows), wide = cuda::pieces(M, Tile::kColumns);
  for (int64_t item = blockIdx.x; item < high * parts; item += gridDim.x) {
    // Neighbouring blocks take the same columns.
    const int64_t first_row = item % high * Tile::kRows, part = item / high;
    const int64_t begin = part * part_tiles, end = begin + part_tiles < wide ? begin + part_tiles : wide;
#pragma unroll 1
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t first_column = tile * Tile::kColumns, left = M - first_column;
      const int columns = static_cast<int>(left < Tile::kColumns ? left : Tile::kColumns);
      kernel_tile(shared, net, x1, x2, features, first_row, first_column, false);
      for (int64_t i = threadIdx.x; i < Tile::kRows * v.columns; i += kThreads) {
        const int64_t row = first_row + i % Tile::kRows, q = i / Tile::kRows;
        if (row >= N) continue;
        const T* const values = shared + i % Tile::kRows * Tile::kPitch;
        const T* const own = v.data + first_column * v.row_step + q * v.column_step;
        T sum = 0;
#pragma unroll 4
        for (int c = 0; c < columns; ++c) sum = cuda::multiply_add(values[c], own[c * v.row_step], sum);
        T* const to = sums + (part * v.columns + q) * N + row;
        *to = tile == begin ? sum : *to + sum;  // always this thread's
      }
      __syncthreads();
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    matvec_sums(const T* sums, int64_t parts, int64_t N, int64_t columns, T* out) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < N * columns;
       i += int64_t{gridDim.x} * kThreads) {
    const int64_t row = i / columns, q = i % columns;
    T sum = 0;
    for (int64_t part = 0; part < parts; ++part) sum += sums[(part * columns + q) * N + row];
    out[i] = sum;
  }
}

template <class T>
void run(const cuda::Place& place, const Problem& p, const Tensor& x1, const Tensor& x2, const Tensor& v,
         Tensor& out) {
  constexpr int64_t kBlocksOfAnSm = 4;
  const Network<T> net = network<T>(p);
  RowMemory memory1, memory2;
  const Rows<T> a = rows_of(place, net, x1, memory1);
  const Rows<T> b = p.symmetric ? a : rows_of(place, net, x2, memory2);
    const int64_t columns = p.p, high = cuda::pieces(p.N, Tile<T>::kRows), wide = cuda::pieces(p.M, Tile<T>::kColumns);
  const int64_t wanted = cuda::pieces(kBlocksOfAnSm * place.processors(), high);
  const int64_t part_tiles = cuda::pieces(wide, wanted < wide ? wanted : wide);
  const int64_t parts = cuda::pieces(wide, part_tiles);
  const Tensor sums = empty_on(x1, {parts, columns, p.N}, p.dtype);
  cuda::launch(place, "dual_matvec tiles", matvec_tiles<T>, high * parts, kThreads, Tile<T>::shared_bytes(),
               net, a, b, p.d, Vectors<T>{cuda::read<T>(v), columns, v.stride(0), v.stride(1)}, parts,
               part_tiles, cuda::write<T>(sums));
  cuda::launch(place, "dual_matvec sums", matvec_sums<T>, cuda::pieces(p.N * columns, kThreads), kThreads, 0,
               cuda::read<T>(sums), parts, p.N, columns, cuda::write<T>(out));
}

}  // namespace

void matvec(const Problem& p, const Tensor& x1, const Tensor& x2, const Tensor& v, Tensor& out) {
  const cuda::Place place("dual_matvec", x1);
  p.dtype == ScalarType::Float ? run<float>(place, p, x1, x2, v, out)
                               : run<double>(place, p, x1, x2, v, out);
  note_kernel("dual_matvec tiles");
}

}  // namespace zb::dual_kernel
