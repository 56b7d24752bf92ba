// A table of the distances of all pairs, or of keys that order them.
#pragma once

#include "nap/cuda/distances.h"

namespace zb::nap {

// A distance, or with Value = uint64_t the key distance << row_bits | first + row of b.
template <class Value>
struct Table {
  Value* values;
  int64_t row_step;
  int64_t first;
  int row_bits;

  ZB_DEVICE Value of(int32_t distance, int64_t row) const {
    if constexpr (sizeof(Value) == 4) return distance;
    return static_cast<Value>(distance) << row_bits | static_cast<Value>(first + row);
  }
};

template <class Value, int CHUNKS, bool PAIRS>
__global__ void __launch_bounds__(kPairThreads, 3)
    distances_of_all(Signatures a, Signatures b, int64_t part_rows, Table<Value> table) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t groups = cuda::pieces(a.rows, kTile), parts = cuda::pieces(b.rows, part_rows);
  const bool whole =
      table.row_step % 2 == 0 && reinterpret_cast<uintptr_t>(table.values) % (2 * sizeof(Value)) == 0;
  for (int64_t item = int64_t{blockIdx.x} * kPairWarps + threadIdx.x / 32; item < groups * parts;
       item += int64_t{gridDim.x} * kPairWarps) {
    // Neighbouring warps take the same rows of b.
    const int64_t first = item % groups * kTile, start = item / groups * part_rows;
    const int64_t last = start + part_rows < b.rows ? start + part_rows : b.rows;
    Products<CHUNKS, PAIRS> products;
    products.begin(a, first);
#pragma unroll 1
    for (int64_t m0 = start; m0 < last; m0 += kTile) {
      Relative found;
      products.tile(a, b, m0, found);
#pragma unroll
      for (int h = 0; h < 4; ++h) {
        const int64_t n = first + 8 * h + lane / 4;
        if (n >= a.rows) continue;
        Value* const row = table.values + n * table.row_step;
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          const int64_t m = m0 + 8 * t + 2 * (lane % 4);
          const auto value = [&](int c) { return table.of(products.distance(h, found.of[t][h][c]), m + c); };
          const cuda::Vector<Value, 2> two{value(0), value(1)};
          if (whole && m + 1 < last) {
            cuda::store_vector(row + m, two);
          } else {
            if (m < last) row[m] = two.v[0];
            if (m + 1 < last) row[m + 1] = two.v[1];
          }
        }
      }
    }
  }
}

template <class Value>
void all_pairs(const cuda::Place& place, const Signatures& a, const Signatures& b,
               const Table<Value>& table) {
  const int64_t part_rows = rows_of_a_part(place, a.rows, b.rows, 16 * kTile);
  const auto kernel = kernel_for(a, b, [](auto chunks, auto pairs) {
    return distances_of_all<Value, decltype(chunks)::value, decltype(pairs)::value>;
  });
  cuda::launch(place, "nap_hamming bit products", kernel,
               cuda::pieces(cuda::pieces(a.rows, kTile) * cuda::pieces(b.rows, part_rows), kPairWarps),
               kPairThreads, 0, a, b, part_rows, table);
}

}  // namespace zb::nap
