// What one task works on, and the memory it works in. Part of forward_kernel.h.
#pragma once

#include "common/vec.h"
#include "conv_relu_pool/cpu/call.h"

namespace zb::conv_relu_pool::cpu {
namespace {

ZB_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
ZB_INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
ZB_INLINE int64_t clamped(int64_t v, int64_t low, int64_t high) {
  return v < low ? low : v > high ? high : v;
}
ZB_INLINE int64_t up_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
ZB_INLINE int64_t up_to(int64_t a, int64_t b) { return up_div(a, b) * b; }

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

ZB_INLINE Range cut_range(const Cut& cut, int64_t i) {
  return {i * cut.block, least(cut.whole, (i + 1) * cut.block)};
}

ZB_INLINE Cut cut_evenly(int64_t whole, int64_t block) {
  const int64_t count = up_div(whole, clamped(block, 1, whole));
  const int64_t even = up_div(whole, count);
  return {whole, even, up_div(whole, even)};
}

// The rows (d = 0) or columns (d = 1) of the map that the outputs [out.begin, out.end) need. With all_map the
// blocks of outputs together reach every one of them.
ZB_INLINE Range map_range(const Call& c, int d, Range out) {
  const int64_t step = c.pool_stride[d], before = c.pool_padding[d];
  Range r{clamped(out.begin * step - before, 0, c.map[d]),
          clamped((out.end - 1) * step - before + c.pool_kernel[d], 0, c.map[d])};
  if (c.all_map) {
    if (out.begin == 0) r.begin = 0;
    r.end = out.end == c.out[d] ? c.map[d] : most(r.end, clamped(out.end * step - before, 0, c.map[d]));
  }
  return r;
}

template <class T>
constexpr int kBlock = 2 * Vec<T>::n;  // output channels of a block

// The channels of one block.
struct Block {
  int64_t index, group, first, size;
};

ZB_INLINE Block block_at(const Call& c, int64_t index) {
  if (c.algorithm == Algorithm::kDirectPixels ||
      c.algorithm == Algorithm::kDepthwise) {  // blocks run across groups
    const int64_t first = index * c.channel_block;
    return {index, first / c.Kg, first, least(c.channel_block, c.K - first)};
  }
  const int64_t per_group = c.blocks / c.groups, group = index / per_group;
  const int64_t inner = (index % per_group) * c.channel_block;
  return {index, group, group * c.Kg + inner, least(c.channel_block, c.Kg - inner)};
}

struct Task {
  Range images, out_rows, out_columns, blocks;
  Range rows, columns;  // of the map
};

ZB_INLINE Task task_at(const Call& c, int64_t i) {
  Task t;
  // Channel blocks vary fastest: tasks that run at the same time then read the same input.
  t.blocks = cut_range(c.block_cut, i % c.block_cut.count), i /= c.block_cut.count;
  t.out_columns = cut_range(c.columns, i % c.columns.count), i /= c.columns.count;
  t.out_rows = cut_range(c.rows, i % c.rows.count), i /= c.rows.count;
  t.images = cut_range(c.images, i);
  t.rows = map_range(c, 0, t.out_rows);
  t.columns = map_range(c, 1, t.out_columns);
  return t;
}

// Pre-activations of some rows of one image, channels innermost: [rows][columns][channel_block].
template <class T>
struct Map {
  T* data;
  Range rows, columns;  // those that count; there may be more behind them in memory
  int64_t row_pitch;    // in values
};

// Hands out the scratch memory of a thread, in cache lines. With a null base it only counts.
struct Scratch {
  char* base;
  int64_t used;
  template <class T>
  T* take(int64_t count) {
    T* here = reinterpret_cast<T*>(base + used);
    used += up_to(count * static_cast<int64_t>(sizeof(T)), 64);
    return here;
  }
};

}  // namespace
}  // namespace zb::conv_relu_pool::cpu
