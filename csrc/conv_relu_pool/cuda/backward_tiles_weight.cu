// The gradient of the weight as a matrix product in tiles: ROWS output channels times 128 columns, which are
// (tap, input channel), summed over the positions of the un-pooled map.
//
// The positions are the rows of both operands in memory (the map and x are NHWC in 16-byte chunks), so a
// buffer holds some positions of each, and fragments are read across: by ldmatrix's transposition for halves,
// number by number for TF32, and as the columns of an outer product for full float32. Chunks go by cp.async
// through a ring of kStages buffers; a tap outside the image is zeros. Blocks share the positions in slices,
// which add_slices sums in one fixed order.
//
// Floor (bytes): the map and x once, slices · K · taps · C sums written and read. Floor (operations):
// N·K·H1·W1·Cg·R·S multiply-adds.
//
// Ladder
//   1  as said. Emulated and compiled; not yet run on a card.
#include "common/cuda/ptx.h"
#include "common/cuda/tf32.h"
#include "conv_relu_pool/cuda/backward.h"
#include "conv_relu_pool/cuda/tile_operands.h"

namespace zb::conv_relu_pool {
namespace {

constexpr int kColumns = 128;
constexpr int kPositionBytes = 64;  // of one channel in a buffer: 32 halves or 16 floats

// Bytes of a position in a buffer of COLUMNS channels. Fragments are read across eight positions (halves) or
// four (floats): what is left free between positions spreads those over all banks.
template <class T, int COLUMNS>
constexpr int pitch() {
  return COLUMNS * static_cast<int>(sizeof(T)) + (sizeof(T) == 2 ? 16 : 32);
}
template <class T, int COLUMNS>
ZB_DEVICE int across_at(int position, int chunk) {
  return position * pitch<T, COLUMNS>() + chunk * kChunk;
}
template <class T, int COLUMNS>
constexpr int buffer_bytes() {
  return kPositionBytes / static_cast<int>(sizeof(T)) * pitch<T, COLUMNS>();
}

// --- two ways to multiply: sums(row, column) += Σ rows(position, row) · columns(position, column) ------

// Tensor cores: 4 warps of 64 rows × 64 columns (of 32, where there are only 64 rows).
template <class T, int ROWS>
struct TensorCoreOuter {
  static constexpr int kThreads = 128, kBlocksPerSm = ROWS == 64 ? 3 : 2;
  static constexpr int kDown = ROWS / 64, kFragments = 32 * kDown / 8;  // of 8 columns, in a warp
  float sums[4][kFragments][4];

  ZB_DEVICE static int first_row() { return static_cast<int>(threadIdx.x) / 32 % kDown * 64; }
  ZB_DEVICE static int first_column() {
    return static_cast<int>(threadIdx.x) / 32 / kDown * (8 * kFragments);
  }

  ZB_DEVICE void clear() {
#pragma unroll
    for (int m = 0; m < 4; ++m) {
#pragma unroll
      for (int n = 0; n < kFragments; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[m][n][i] = 0;
      }
    }
  }

  // The number of a float buffer at (position, column), as TF32.
  template <int COLUMNS>
  ZB_DEVICE static uint32_t tf32_at(const unsigned char* buffer, int position, int column) {
    const int at = across_at<T, COLUMNS>(position, column / 4) + column % 4 * 4;
    return cuda::round_tf32(*reinterpret_cast<const uint32_t*>(buffer + at));
  }

  ZB_DEVICE void step(const unsigned char* rows, const unsigned char* columns) {
    const int lane = static_cast<int>(threadIdx.x) % 32, row = first_row(), column = first_column();
    constexpr int kAtOnce = 32 / sizeof(T);  // positions that one mma takes
#pragma unroll(sizeof(T) == 2 ? 2 : 1)
    for (int k = 0; k < kPositionBytes / static_cast<int>(sizeof(T)); k += kAtOnce) {
      uint32_t b[kFragments][2];
      if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int n = 0; n < kFragments; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            b[n][i] = tf32_at<kColumns>(columns, k + lane % 4 + i * 4, column + n * 8 + lane / 4);
          }
        }
      } else {
#pragma unroll
        for (int n = 0; n < kFragments; n += 2) {
          uint32_t four[4];
          const int position = k + lane / 8 % 2 * 8 + lane % 8, chunk = column / 8 + n + lane / 16;
          cuda::load_matrices_across(four, columns + across_at<T, kColumns>(position, chunk));
          b[n][0] = four[0], b[n][1] = four[1], b[n + 1][0] = four[2], b[n + 1][1] = four[3];
        }
      }
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        uint32_t a[4];
        if constexpr (sizeof(T) == 4) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            a[i] = tf32_at<ROWS>(rows, k + lane % 4 + i / 2 * 4, row + m * 16 + lane / 4 + i % 2 * 8);
          }
        } else {
          const int position = k + lane / 16 * 8 + lane % 8, chunk = row / 8 + m * 2 + lane / 8 % 2;
          cuda::load_matrices_across(a, rows + across_at<T, ROWS>(position, chunk));
        }
#pragma unroll
        for (int n = 0; n < kFragments; ++n) {
          cuda::multiply_fragments<T>(sums[m][n], a, b[n][0], b[n][1]);
        }
      }
    }
  }

  // To the tile's corner in a matrix of `pitch` columns, of which `rows_left` rows and `columns_left` columns
  // (a multiple of 4) remain.
  ZB_DEVICE void store(float* to, int64_t pitch, int64_t rows_left, int64_t columns_left) const {
    using Two = cuda::Vector<float, 2>;
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int m = 0; m < 4; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row() + m * 16 + lane / 4 + half * 8;
        if (row >= rows_left) continue;
#pragma unroll
        for (int n = 0; n < kFragments; ++n) {
          const int column = first_column() + n * 8 + lane % 4 * 2;
          if (column >= columns_left) continue;
          cuda::store_vector_global(to + row * pitch + column,
                                    Two{{sums[m][n][2 * half], sums[m][n][2 * half + 1]}});
        }
      }
    }
  }
};

// Ordinary multiply-adds in full float32: ROWS/16 rows × 8 columns a thread, in runs of four, summed in
// ascending order. A warp reads 4 runs of rows and 8 of columns at once: no bank twice.
template <class T, int ROWS>
struct FmaOuter {
  static constexpr int kThreads = 256, kBlocksPerSm = 2, kRuns = ROWS / 64;
  float sums[4 * kRuns][8];

  ZB_DEVICE static int down() {
    return static_cast<int>(threadIdx.x) % 32 / 8 + static_cast<int>(threadIdx.x) / 32 % 4 * 4;
  }
  ZB_DEVICE static int across() {
    return static_cast<int>(threadIdx.x) % 8 + static_cast<int>(threadIdx.x) / 128 * 8;
  }

  ZB_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < 4 * kRuns; ++i) {
#pragma unroll
      for (int j = 0; j < 8; ++j) sums[i][j] = 0;
    }
  }

  ZB_DEVICE void step(const unsigned char* rows, const unsigned char* columns) {
    using Four = cuda::Vector<float, 4>;
#pragma unroll 1
    for (int position = 0; position < kPositionBytes / 4; ++position) {
      Four a[kRuns], b[2];
#pragma unroll
      for (int r = 0; r < kRuns; ++r) {
        a[r] = cuda::load_vector<Four>(rows + across_at<T, ROWS>(position, down() + 16 * r));
      }
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        b[c] = cuda::load_vector<Four>(columns + across_at<T, kColumns>(position, across() + 16 * c));
      }
#pragma unroll
      for (int i = 0; i < 4 * kRuns; ++i) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          sums[i][j] = cuda::multiply_add(a[i / 4].v[i % 4], b[j / 4].v[j % 4], sums[i][j]);
        }
      }
    }
  }

  ZB_DEVICE void store(float* to, int64_t pitch, int64_t rows_left, int64_t columns_left) const {
    using Four = cuda::Vector<float, 4>;
#pragma unroll
    for (int i = 0; i < 4 * kRuns; ++i) {
      const int row = (down() + i / 4 * 16) * 4 + i % 4;
      if (row >= rows_left) continue;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int column = (across() + c * 16) * 4;
        if (column >= columns_left) continue;
        Four four;
#pragma unroll
        for (int e = 0; e < 4; ++e) four.v[e] = sums[i][4 * c + e];
        cuda::store_vector_global(to + row * pitch + column, four);
      }
    }
  }
};

// --- the way in ---------------------------------------------------------------------------------------

struct MapInput {
  const unsigned char* data;
  int64_t pitch;  // bytes of a position
  int chunks;     // of a group
};

// Copies the chunks of one thread, step by step: one chunk of the map, at every kMapApart-th position, and
// one of x (always of one tap) at every kApart-th.
template <class T, int THREADS, int ROWS>
class OuterLoader {
 public:
  ZB_DEVICE OuterLoader(const TileInput& in, const MapInput& map, const Geometry& g, int64_t group,
                        int64_t first_row, int64_t first_column, int64_t begin, int64_t end)
      : in_(in), g_(g), pitch_(map.pitch) {
    const int t = static_cast<int>(threadIdx.x);
    map_chunk_ = t % kMapChunks, map_position_ = t / kMapChunks;
    const int64_t row_chunk = first_row * static_cast<int>(sizeof(T)) / kChunk + map_chunk_;
    map_ = map.data + (begin + map_position_) * pitch_ + (group * map.chunks + row_chunk) * kChunk;
    map_left_ = row_chunk < map.chunks ? static_cast<int>(end - begin) - map_position_ : 0;

    chunk_ = t % kChunks, position_ = t / kChunks;
    const int64_t column_chunk = first_column * static_cast<int>(sizeof(T)) / kChunk + chunk_;
    const int64_t tap = column_chunk / in.chunks;
    left_ = tap < g.h.kernel * g.w.kernel ? static_cast<int>(end - begin) - position_ : 0;
    dy_ = static_cast<int>(tap / g.w.kernel * g.h.dilation - g.h.padding);
    dz_ = static_cast<int>(tap % g.w.kernel * g.w.dilation - g.w.padding);
    const int64_t l = begin + position_;
    column_ = static_cast<int>(l % g.w.map), row_ = static_cast<int>(l / g.w.map % g.h.map);
    image_ = in.x + l / g.map_size() * in.n + (group * in.chunks + column_chunk % in.chunks) * kChunk;
  }

  // The next step's chunks, into one buffer.
  ZB_DEVICE void load(unsigned char* rows, unsigned char* columns) {
#pragma unroll
    for (int i = 0; i < kPositions / kMapApart; ++i) {
      const bool there = map_left_ > 0;
      cuda::copy_async(rows + across_at<T, ROWS>(map_position_ + i * kMapApart, map_chunk_), map_, there);
      if (there) map_ += kMapApart * pitch_;
      map_left_ -= kMapApart;
    }
#pragma unroll
    for (int i = 0; i < kPositions / kApart; ++i) {
      const int y = row_ * static_cast<int>(g_.h.stride) + dy_;
      const int z = column_ * static_cast<int>(g_.w.stride) + dz_;
      const bool inside = left_ > 0 && y >= 0 && y < g_.h.in && z >= 0 && z < g_.w.in;
      const int64_t offset = inside ? y * in_.h + z * in_.w : 0;
      cuda::copy_async(columns + across_at<T, kColumns>(position_ + i * kApart, chunk_), image_ + offset,
                       inside);
      left_ -= kApart;
      if (left_ > 0) walk();
    }
  }

 private:
  static constexpr int kEach = kChunk / sizeof(T), kPositions = kPositionBytes / sizeof(T);
  static constexpr int kMapChunks = ROWS / kEach, kMapApart = THREADS / kMapChunks;
  static constexpr int kChunks = kColumns / kEach, kApart = THREADS / kChunks;
  static_assert(kPositions % kMapApart == 0 && kPositions % kApart == 0, "threads cover whole buffers");

  ZB_DEVICE void walk() {
    column_ += kApart;
    while (column_ >= g_.w.map) {
      column_ -= static_cast<int>(g_.w.map);
      if (++row_ == g_.h.map) row_ = 0, image_ += in_.n;
    }
  }

  const TileInput& in_;
  const Geometry& g_;
  const int64_t pitch_;
  const unsigned char *map_, *image_;
  int map_chunk_, map_position_, map_left_;
  int chunk_, position_, left_, dy_, dz_, row_, column_;
};

// --- the kernel ---------------------------------------------------------------------------------------

// slices [slice, K, R·S, channels in whole chunks].
template <class T, template <class, int> class Product, int ROWS>
__global__ void __launch_bounds__(Product<T, ROWS>::kThreads, Product<T, ROWS>::kBlocksPerSm)
    outer_tiles(TileInput in, MapInput map, Geometry g, int64_t slice_length, int64_t slice_count,
                float* __restrict__ slices) {
  using Multiply = Product<T, ROWS>;
  constexpr int kRowBuffer = buffer_bytes<T, ROWS>(), kBuffer = kRowBuffer + buffer_bytes<T, kColumns>();
  constexpr int kPositions = kPositionBytes / sizeof(T);
  ZB_SHARED_MEMORY(unsigned char, shared);
  const int64_t columns = g.h.kernel * g.w.kernel * in.chunks * (kChunk / sizeof(T));
  const int64_t length = g.N * g.map_size();
  const int64_t across = cuda::pieces(columns, kColumns), down = cuda::pieces(g.Kg, ROWS);
  for (int64_t item = blockIdx.x; item < slice_count * g.groups * down * across; item += gridDim.x) {
    // Neighbouring blocks read the same positions.
    const int64_t column = item % across * kColumns, row = item / across % down * ROWS;
    const int64_t group = item / across / down % g.groups, slice = item / across / down / g.groups;
    const int64_t begin = slice * slice_length;
    const int64_t end = begin + slice_length < length ? begin + slice_length : length;
    OuterLoader<T, Multiply::kThreads, ROWS> loader(in, map, g, group, row, column, begin, end);
    const int steps = static_cast<int>(cuda::pieces(end - begin, kPositions));
    Multiply product;
    product.clear();
    sum_steps<kRowBuffer, kBuffer>(shared, steps, loader, product);
    product.store(slices + (slice * g.K + group * g.Kg + row) * columns + column, columns, g.Kg - row,
                  columns - column);
  }
}

template <class T, template <class, int> class Product, int ROWS>
void run_rows(const BackwardCall& call, const MapGrad& grad, const TileInput& in, const Tensor& grad_weight) {
  const Geometry& g = call.g;
  constexpr int64_t kEach = kChunk / sizeof(T), kPositions = kPositionBytes / sizeof(T);
  const int64_t padded = in.chunks * kEach, columns = g.h.kernel * g.w.kernel * padded;
  const int64_t length = g.N * g.map_size();
  // Two blocks on each of an H100's SMs. The slices depend on sizes alone, so that results do not depend on
  // the device.
  const int64_t per_slice = g.groups * cuda::pieces(g.Kg, ROWS) * cuda::pieces(columns, kColumns);
  constexpr int64_t kMostPositions = 1 << 29;  // of a slice, counted in 32 bits
  const int64_t wanted = per_slice < 264 ? 264 / per_slice : 1, least = cuda::pieces(length, kMostPositions);
  const int64_t slice_length =
      cuda::pieces(cuda::pieces(length, wanted > least ? wanted : least), kPositions) * kPositions;
  const int64_t slice_count = cuda::pieces(length, slice_length);
  const Tensor slices = empty_on(call.x, {slice_count, g.K, columns}, ScalarType::Float);
  const MapInput map{static_cast<const unsigned char*>(grad.data.const_data_ptr()),
                     grad.strides.w * static_cast<int64_t>(sizeof(T)),
                     static_cast<int>(grad.channels / kEach)};
  constexpr size_t kShared = size_t{kStages} * (buffer_bytes<T, ROWS>() + buffer_bytes<T, kColumns>());
  cuda::launch(call.place, "conv_relu_pool outer_tiles", outer_tiles<T, Product, ROWS>,
               slice_count * per_slice, Product<T, ROWS>::kThreads, kShared, in, map, g, slice_length,
               slice_count, cuda::write<float>(slices));
  run_add_slices<T>(call.place, g, slices, slice_count, padded, grad_weight);
}

template <class T, template <class, int> class Product>
void run(const BackwardCall& call, const MapGrad& map, const Tensor& grad_weight) {
  const auto& s = call.p.x_strides;
  TileOperands o{};
  chunk_operand<T>(call.place, call.g, call.x, {s[0], s[1], s[2], s[3]}, o);
  const bool half_empty = (call.g.Kg - 1) % 128 < 64 && call.g.Kg < 256;
  (half_empty ? run_rows<T, Product, 64> : run_rows<T, Product, 128>)(call, map, o.in, grad_weight);
}

}  // namespace

const char* tiles_refuse_weight(const Problem& p, const Geometry& g) {
  constexpr int64_t kMost = 1 << 30;
  if (p.dtype == ScalarType::Double) return "float64";
  if (g.Kg < 8 || g.Cg < 5) return "fewer than 8 output or 5 input channels in a group";
  for (const Axis* a : {&g.h, &g.w}) {
    if (a->in + 2 * a->padding >= kMost || a->kernel * a->dilation >= kMost) return "an image too large";
  }
  return g.h.kernel * g.w.kernel * g.Cg < kMost ? nullptr : "a filter too large";
}

void tiles_weight_grad(const BackwardCall& call, const MapGrad& map, const Tensor& grad_weight) {
  switch (call.p.dtype) {
    case ScalarType::Half:
      return run<__half, TensorCoreOuter>(call, map, grad_weight);
    case ScalarType::BFloat16:
      return run<__nv_bfloat16, TensorCoreOuter>(call, map, grad_weight);
    default:
      if (cuda::tf32_allowed(cuda::Tf32::kConvolution)) {
        return run<float, TensorCoreOuter>(call, map, grad_weight);
      }
      return run<float, FmaOuter>(call, map, grad_weight);
  }
}

}  // namespace zb::conv_relu_pool
