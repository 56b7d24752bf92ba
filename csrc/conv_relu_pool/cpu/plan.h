// How a call is cut into tasks. Part of forward_kernel.h.
#pragma once

#include "conv_relu_pool/cpu/direct.h"
#include "conv_relu_pool/cpu/epilogue.h"
#include "conv_relu_pool/cpu/interleave.h"

namespace zb::conv_relu_pool::cpu {
namespace {

constexpr int64_t kMapBytes = 192 << 10;   // pre-activations of one block
constexpr int64_t kPoolBytes = 16 << 10;   // of them those that are pooled at once where the weights are few
constexpr int64_t kSlabBytes = 768 << 10;  // input of one task
constexpr int64_t kColumns = 512;          // of the map, in one task
constexpr int64_t kTasksPerThread = 4;
// few_pixels.h takes at most so many pixels and taps of a channel, and at least so many weights.
constexpr int64_t kFewPixels = 48, kMostTaps = 64, kManyWeights = 1 << 18;

// Folding: a convolution of stride 2 is one of stride 1 over the four phases of its input as channels, with
// filters of half the size: x'[4c + 2a + b][i][j] = x[c][2i + a][2j + b]. With an odd padding the filter gets
// a leading row or column of zeros (shift 1). Whether minimal filtering then applies and pays.
ZB_INLINE bool fold_for_winograd(Call& c) {
  c.fold = c.stride[0];
  if (c.highest || c.groups != 1 || c.fold > 2 || c.stride[1] != c.fold) return false;
  if (c.dilation[0] != 1 || c.dilation[1] != 1) return false;
  int64_t filter[2];
  for (int d = 0; d < 2; ++d) {
    c.shift[d] = c.padding[d] % c.fold;
    filter[d] = up_div(c.kernel[d] + c.shift[d], c.fold);
  }
  c.filter = filter[0];
  c.points = c.filter <= 3 ? 6 : 8;
  if (c.fold == 2 && c.filter == 2) return false;  // of four times as many channels: nothing is saved
  if (filter[0] != filter[1] || c.filter < 2 || c.filter > 7 || c.map[0] * c.map[1] < 16) return false;
  // Multiplications of few channels hide behind the output transform; of 3x3 filters they are so few that it
  // takes more output channels to pay for the input's, and twice as many again where there are half as many
  // registers.
  const int64_t least_outputs = c.filter == 5 ? 16 : Float::n == 16 ? 32 : 64;
  c.few = c.fold == 1 && c.K >= least_outputs &&
          ((c.filter == 3 && c.C >= 2 && c.C <= 7) || (c.filter == 5 && c.C <= 4));
  // Else the transforms of fewer channels cost more than they save.
  const int64_t channels = c.C * c.fold * c.fold;
  const int64_t least_channels = c.filter == 2   ? 16
                                 : c.fold == 2   ? (c.filter == 3 ? 16 : 12)
                                 : c.filter == 3 ? 8
                                                 : 5;
  return c.few || (channels >= least_channels && channels <= 4096 && c.K >= 8);
}

// Whether the weight lies in memory as [K][C][R][S], or as [K][R][S][C] (and then channels_innermost).
ZB_INLINE bool dense_weight(Call& c) {
  const int64_t sizes[4] = {c.K, c.C, c.kernel[0], c.kernel[1]};
  const int64_t taps = sizes[2] * sizes[3];
  const int64_t contiguous[4] = {c.C * taps, taps, sizes[3], 1},
                channels_last[4] = {c.C * taps, 1, sizes[3] * c.C, c.C};
  const auto lies = [&](const int64_t* strides) {
    for (int d = 0; d < 4; ++d) {
      if (sizes[d] > 1 && c.w_strides[d] != strides[d]) return false;
    }
    return true;
  };
  c.channels_innermost = !lies(contiguous);
  return !c.channels_innermost || lies(channels_last);
}

// One image of a deep layer: see few_pixels.h. The sum's order depends on the batch, which "highest"
// excludes.
ZB_INLINE bool few_pixels(Call& c) {
  if (c.element != Element::kFloat || c.highest || c.groups != 1 || c.unpool) return false;
  const int64_t pixels = c.N * c.map[0] * c.map[1], weights = c.K * c.C * c.kernel[0] * c.kernel[1];
  return pixels <= kFewPixels && weights >= kManyWeights && c.kernel[0] * c.kernel[1] <= kMostTaps &&
         dense_weight(c);
}

template <class T>
void plan_algorithm(Call& c) {
  c.all_map = c.units == UnitKind::kRelu || c.code_kind == CodeKind::kBits;
  c.channel_block = kBlock<T>;
  if (few_pixels(c)) {
    c.algorithm = Algorithm::kFewPixels;
    return;
  }
  if (sizeof(T) == 4 && fold_for_winograd(c)) {
    c.algorithm = Algorithm::kWinograd;
    c.blocks = up_div(c.K, kBlock<T>);
    return;
  }
  if (sizeof(T) == 4 && c.Cg == 1 && c.Kg == 1 && c.groups > 1) {
    c.algorithm = Algorithm::kDepthwise;
    return;
  }
  // Work in vector operations a row of the map, with vectors along the output channels and along the columns.
  const int64_t n = Vec<T>::n;
  const int64_t along_channels = c.groups * up_div(c.Kg, n) * c.map[1],
                along_columns = c.K * up_div(c.map[1], n);
  c.algorithm = along_channels > 2 * along_columns ? Algorithm::kDirectPixels : Algorithm::kDirect;
  c.blocks = c.algorithm == Algorithm::kDirect ? c.groups * up_div(c.Kg, kBlock<T>) : up_div(c.K, kBlock<T>);
}

// The most rows (d = 0) or columns (d = 1) of the map that `outputs` of y need, gaps and ends included.
ZB_INLINE int64_t map_extent(const Call& c, int d, int64_t outputs) {
  if (c.all_map && outputs >= c.out[d]) return c.map[d];
  const int64_t windows = (outputs - 1) * c.pool_stride[d] + c.pool_kernel[d];
  return least(c.map[d], c.all_map ? windows + c.pool_stride[d] + c.pool_kernel[d] : windows);
}

// The longest block of outputs whose part of the map has at most `limit` rows or columns, but at least one.
ZB_INLINE int64_t outputs_within(const Call& c, int d, int64_t limit) {
  const int64_t one = map_extent(c, d, 1);
  if (one >= limit) return 1;
  return least(c.out[d], (limit - one) / c.pool_stride[d] + 1);
}

// Few images: fewer rows and channel blocks a task, until every thread has some.
ZB_INLINE void spread(Call& c, int64_t row_block, int64_t row_step) {
  const int64_t wanted = c.threads * kTasksPerThread;
  c.rows = cut_evenly(c.out[0], row_block);
  const int64_t others = c.images.count * c.columns.count;
  if (others * c.rows.count < wanted) {
    const int64_t pieces = up_div(wanted, others);
    c.rows = cut_evenly(c.out[0], least(row_block, up_to(most(1, c.out[0] / pieces), row_step)));
  }
  const int64_t tasks = others * c.rows.count;
  c.block_cut = cut_evenly(
      c.blocks, tasks >= c.threads * 2 ? c.blocks : up_div(c.blocks, up_div(c.threads * 2, tasks)));
}

template <class T>
struct DirectScratch {
  T *slab, *map, *value, *position;
  Map<T>* maps;
  int64_t* offsets;
  Runs<T> runs;
};

template <class T>
DirectScratch<T> direct_scratch(const Call& c, Scratch& memory) {
  const SlabShape shape = slab_shape(c, c.map_rows, c.map_columns);
  const int64_t outputs = c.rows.block * c.columns.block * kBlock<T>;
  DirectScratch<T> s;
  s.slab = memory.take<T>(slab_size<T>(c, c.images.block, shape.rows, shape.pitch));
  s.map = memory.take<T>(c.images.block * c.map_rows * c.map_columns * kBlock<T>);
  s.value = memory.take<T>(outputs);
  s.position = memory.take<T>(outputs);
  s.maps = memory.take<Map<T>>(c.images.block);
  s.offsets = memory.take<int64_t>(c.chain_offsets);
  s.runs = take_runs<T>(c, c.map_rows * c.map_columns, c.rows.block * c.columns.block, memory);
  return s;
}

// one_chain: no sum is cut.
template <class T>
void plan_slabs(Call& c, bool one_chain) {
  constexpr int64_t size = sizeof(T);
  c.columns = cut_evenly(c.out[1], outputs_within(c, 1, kColumns));
  c.map_columns = map_extent(c, 1, c.columns.block);
  const int64_t map_row = c.map_columns * kBlock<T> * size;
  choose_slab(c, c.map[0], c.map_columns);
  const int64_t slab_row = c.planes * slab_shape(c, 1, c.map_columns).pitch * size;
  // Map rows that fit: by the map's own size, and by the input rows that they need.
  const int64_t by_slab =
      most(1, (kSlabBytes / slab_row - (c.kernel[0] - 1) * c.dilation[0] - 1) / c.stride[0] + 1);
  const int64_t rows_fit = clamped(kMapBytes / map_row, 1, most(by_slab, kMapBytes / map_row / 8));
  c.images = {c.N, 1, c.N};
  spread(c, outputs_within(c, 0, rows_fit), 1);
  c.map_rows = map_extent(c, 0, c.rows.block);
  if (c.rows.block == 1) c.map_rows = least(c.map_rows, most(rows_fit, 64));
  choose_slab(c, c.map_rows, c.map_columns);
  // With one chain of weights nothing is gained by computing many rows before they are pooled.
  c.chunk_rows =
      one_chain ? least(c.map_rows, up_to(most(1, kPoolBytes / map_row), c.pool_stride[0])) : c.map_rows;
  // Small images: several a task, which then share each chunk of weights while it is in the cache.
  if (c.rows.count == 1 && c.columns.count == 1 && c.map_rows == map_extent(c, 0, c.out[0])) {
    const int64_t slab = slab_shape(c, c.map_rows, c.map_columns).rows * slab_row;
    const int64_t fit = least(kMapBytes / (c.map_rows * map_row), kSlabBytes / slab);
    c.images = cut_evenly(c.N, clamped(fit, 1, most(1, c.N / (c.threads * kTasksPerThread))));
  }
  Scratch count{nullptr, 0};
  direct_scratch<T>(c, count);
  c.scratch_bytes = count.used;
}

template <class T>
void plan_direct(Call& c) {
  const int64_t taps = c.kernel[0] * c.kernel[1], chain = chain_channels(c, c.Cg);
  const bool pixels = c.algorithm == Algorithm::kDirectPixels;
  c.planes = c.C;
  c.chain_offsets = chain * taps;
  c.weight_units = pixels ? c.K : c.blocks * c.Cg;
  c.weight_bytes = static_cast<int64_t>(sizeof(T)) * (pixels ? c.K : c.blocks * kBlock<T>)*c.Cg * taps;
  plan_slabs<T>(c, pixels || chain == c.Cg);
}

}  // namespace
}  // namespace zb::conv_relu_pool::cpu
