// The pass before the tiles: of each input its sum of squares, its hash and its moments at every layer.
//
// Floor (bytes): x once. A warp takes a row; its sum runs in one fixed order, so equal rows have equal bits.
#include "common/cuda/ptx.h"
#include "dual_kernel/cuda/rows.h"

namespace zb::dual_kernel {
namespace {

constexpr int kThreads = 256;

// The finishing steps of splitmix64: each bit of x changes each of the result with a chance near 1/2.
ZB_DEVICE uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

ZB_DEVICE uint64_t bits_of(float v) { return cuda::bits_as<uint32_t>(v == 0 ? 0.0f : v); }
ZB_DEVICE uint64_t bits_of(double v) { return cuda::bits_as<uint64_t>(v == 0 ? 0.0 : v); }

template <class T>
__global__ void __launch_bounds__(kThreads)
    describe_rows(Network<T> net, const T* x, int64_t rows, int64_t features, int64_t row_step,
                  int64_t column_step, T* squares, uint64_t* hashes, Moments<T>* to) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;
  constexpr int kWarps = kThreads / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; row < rows;
       row += int64_t{gridDim.x} * kWarps) {
    T sum = 0;
    uint64_t hash = 0;
#pragma unroll 4
    for (int64_t k = lane; k < features; k += 32) {
      const T v = x[row * row_step + k * column_step];
      sum = cuda::multiply_add(v, v, sum);
      hash += mix(bits_of(v) + static_cast<uint64_t>(k + 1) * kGolden);
    }
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) {
      sum += __shfl_xor_sync(cuda::kWholeWarp, sum, apart);
      hash += __shfl_xor_sync(cuda::kWholeWarp, hash, apart);
    }
    if (lane != 0) continue;
    squares[row] = sum;
    hashes[row] = mix(hash);
    T q = net.b2 + net.first_w2 * sum;
#pragma unroll 1
    for (int64_t layer = 0; layer < net.depth; ++layer) {
      const Moments<T> m = moments(net, q);
      to[layer * rows + row] = m;
      q = net.b2 + net.w2 * dual_pair(net, m, q, m, true).dual;
    }
  }
}

}  // namespace

template <class T>
Rows<T> rows_of(const cuda::Place& place, const Network<T>& net, const Tensor& x, RowMemory& memory) {
  constexpr int64_t kVector = 16 / sizeof(T);
  const int64_t rows = x.size(0), features = x.size(1), row_step = x.stride(0), column_step = x.stride(1);
  memory.squares = empty_on(x, {rows}, x.scalar_type());
  memory.hashes = empty_on(x, {rows}, ScalarType::Long);
  memory.moments = empty_on(x, {net.depth, rows, 4}, x.scalar_type());
  const T* const data = cuda::read<T>(x);
  const bool vectors = column_step == 1 && features % kVector == 0 && (rows == 1 || row_step % kVector == 0) &&
                       reinterpret_cast<uintptr_t>(data) % 16 == 0;
  T* const squares = cuda::write<T>(memory.squares);
  auto* const hashes = static_cast<uint64_t*>(memory.hashes.mutable_data_ptr());
  auto* const to = static_cast<Moments<T>*>(memory.moments.mutable_data_ptr());
  cuda::launch(place, "dual_kernel rows", describe_rows<T>, cuda::pieces(rows, kThreads / 32), kThreads, 0, net,
               data, rows, features, row_step, column_step, squares, hashes, to);
  return {data, rows, row_step, column_step, vectors, squares, hashes, to};
}

template Rows<float> rows_of<float>(const cuda::Place&, const Network<float>&, const Tensor&, RowMemory&);
template Rows<double> rows_of<double>(const cuda::Place&, const Network<double>&, const Tensor&, RowMemory&);

}  // namespace zb::dual_kernel
