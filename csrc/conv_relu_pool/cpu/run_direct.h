// A task of the direct kernels: slabs of input, chunks of the map, outputs. Part of forward_kernel.h.
#pragma once

#include "conv_relu_pool/cpu/epilogue.h"
#include "conv_relu_pool/cpu/plan.h"

namespace zb::conv_relu_pool::cpu {
namespace {

// What a slab holds, and how pre-activations are summed of it.
template <class E, class T>
struct ChannelSums {
  static Slab<T> fill(const Call& c, Range images, Range rows, Range columns, T* data) {
    return fill_channels<E, T>(c, images, rows, columns, data);
  }
  static void block(const Call& c, const Block& b, const Slab<T>& slab, Range images, const Map<T>* maps,
                    int64_t* offsets) {
    c.algorithm == Algorithm::kDirectPixels ? pixels_block(c, b, slab, images, maps, offsets)
                                            : direct_block(c, b, slab, images, maps, offsets);
  }
};

template <class E, class T, class Sums>
void run_direct(const Call& c, const Task& t, DirectScratch<T> s) {
  const Pooled<T> pooled{s.value, s.position, t.out_rows, t.out_columns};
  const int64_t row_pitch = t.columns.size() * kBlock<T>;
  // A window of more rows than fit into the scratch comes in pieces (and the task is one output row).
  const bool whole = t.rows.size() <= c.map_rows;
  Slab<T> slab{};
  if (whole) slab = Sums::fill(c, t.images, t.rows, t.columns, s.slab);
  // All rows of several images at once, so that they share the weights of a chain, or a few rows of one
  // image.
  const int64_t together = c.chunk_rows < t.rows.size() ? 1 : t.images.size();
  for (int64_t i = t.blocks.begin; i < t.blocks.end; ++i) {
    const Block b = block_at(c, i);
    for (int64_t first = 0; first < t.images.size(); first += together) {
      const Range images{first, first + together};
      for (int64_t h = t.rows.begin; h < t.rows.end; h += c.chunk_rows) {
        const Range rows{h, least(h + c.chunk_rows, t.rows.end)};
        if (!whole) slab = Sums::fill(c, t.images, rows, t.columns, s.slab);
        for (int64_t image = images.begin; image < images.end; ++image) {
          s.maps[image] = {s.map + (image - first) * c.map_rows * row_pitch, rows, t.columns, row_pitch};
        }
        Sums::block(c, b, slab, images, s.maps, s.offsets);
        for (int64_t image = images.begin; image < images.end; ++image) {
          const bool last = rows.end == t.rows.end;
          if (c.pool == Pooling::kNone) {  // the map is what is written
            activate<E>(c, s.maps[image], t.images.begin + image, b);
            write_map_bits(c, s.maps[image], s.runs, t.images.begin + image, b, last);
            const Pooled<T> as_it_is{s.maps[image].data, s.position, rows, t.columns};
            write_outputs<E>(c, as_it_is, s.runs, t.images.begin + image, b);
            continue;
          }
          after_convolution<E>(c, s.maps[image], pooled, s.runs, t.images.begin + image, b, last || !whole);
          if (last) write_outputs<E>(c, pooled, s.runs, t.images.begin + image, b);
        }
      }
    }
    finish_block<E, T>(c, t, i);
  }
}

}  // namespace
}  // namespace zb::conv_relu_pool::cpu
