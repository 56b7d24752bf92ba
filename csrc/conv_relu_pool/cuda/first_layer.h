// What the two kernels for few input channels share: which part of a call a block takes, what both refuse,
// and bits on their way out. A block's part is a rectangle of pool windows (of map positions, without a pool)
// of one image, with some channels of one group; the map positions below those windows are its part of the
// map.
#pragma once

#include "common/cuda/bits.h"
#include "conv_relu_pool/cuda/forward.h"

namespace zb::conv_relu_pool {

constexpr int kFirstMostChannels = 4;  // input channels of a group
constexpr int kFirstMostRows = 7, kFirstMostRowStride = 2, kFirstMostWindow = 4;
// Two blocks fit an SM of compute capability 8.0, with what the driver takes and some static arrays.
constexpr size_t kFirstMostShared = 164 * 1024 / 2 - 1024 - 256;

// One tile of a call: where it lies, and how much of it exists.
struct Item {
  int64_t n, group, k;  // image, group, first channel (of all K)
  int64_t p, q;         // first window
  int64_t top, left;    // first map position, outside the map where padding is
  int channels;
  int out_rows, out_columns;                         // windows that exist
  int row_begin, row_end, column_begin, column_end;  // map positions of the tile that exist

  // A tile has channel_blocks, items_h and items_w, the numbers of tiles along each dimension; out_rows,
  // out_columns, rows(), columns() and channels(), the sizes of one.
  template <class Tile>
  ZB_DEVICE void set(const Geometry& g, const Tile& t, int64_t number) {
    const int64_t block = part(number, t.channel_blocks);
    group = part(number, g.groups);
    q = part(number, t.items_w) * t.out_columns;
    p = part(number, t.items_h) * t.out_rows;
    n = number;
    top = g.h.window_start(p);
    left = g.w.window_start(q);
    k = group * g.Kg + block * t.channels();
    channels = least(t.channels(), g.Kg - block * t.channels());
    out_rows = least(t.out_rows, g.h.out - p);
    out_columns = least(t.out_columns, g.w.out - q);
    row_begin = top < 0 ? static_cast<int>(-top) : 0;
    column_begin = left < 0 ? static_cast<int>(-left) : 0;
    row_end = least(t.rows(), g.h.map - top);
    column_end = least(t.columns(), g.w.map - left);
  }

  // number % by, and number /= by. Most are by 1, and a division takes long while the block waits.
  ZB_DEVICE static int64_t part(int64_t& number, int64_t by) {
    if (by == 1) return 0;
    const int64_t quotient = number / by, rest = number - quotient * by;
    number = quotient;
    return rest;
  }
  // 0 where nothing is left: tiles that only hold map positions in no window have no output.
  ZB_DEVICE static int least(int size, int64_t left) {
    return left < 0 ? 0 : static_cast<int>(left < size ? left : size);
  }
};

// How many elements before `p` the last address lies that 16 divides.
template <class T>
ZB_DEVICE int past_alignment(const T* p) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(p) % 16 / sizeof(T));
}

// A rectangle of bits, alike in each channel of the item: where it starts in the words and how far rows and
// channels are apart there.
struct Bits {
  int rows, columns;
  int64_t first, row_bits, channel_bits;
};

// Bits on(channel, row, column). All threads of the block must call.
template <class F>
ZB_DEVICE void write_bits(int threads, const Item& item, uint64_t* words, const Bits& b, F&& on) {
  const int size = b.rows * b.columns, count = item.channels * size;
  const bool rows_follow = b.columns == b.row_bits;
  const int length = rows_follow ? size : b.columns;
  for (int begin = 0; begin < count; begin += threads) {
    const int i = begin + static_cast<int>(threadIdx.x);
    const bool live = i < count;
    const int k = live ? i / size : 0, at = live ? i - k * size : 0;
    const int row = at / b.columns, column = at - row * b.columns;
    cuda::or_lanes(words, b.first + k * b.channel_bits + row * b.row_bits + column, rows_follow ? at : column,
                   length, live, live && on(k, row, column));
  }
}

// The bits of the un-pooled map, from act(channel, row, column) of the item's part of it.
template <class F>
ZB_DEVICE void write_map_bits(const Geometry& g, int threads, const Item& item, const Sinks& sinks, F&& act) {
  const float slope = static_cast<float>(g.slope);
  const int top = item.row_begin, left = item.column_begin;
  Bits b{item.row_end - top, item.column_end - left, (item.top + top) * g.w.map + item.left + left, g.w.map,
         g.map_size()};
  const int64_t in_plane = b.first;
  if (sinks.map_sig) {
    b.first = item.n * sinks.image_bits + item.k * g.map_size() + in_plane;
    write_bits(threads, item, sinks.map_sig, b,
               [&](int k, int row, int column) { return act(k, top + row, left + column) > 0; });
  }
  if (sinks.map_code) {
    b.first = (item.n * g.K + item.k) * sinks.plane_bits + in_plane;
    b.channel_bits = sinks.plane_bits;
    write_bits(threads, item, sinks.map_code, b,
               [&](int k, int row, int column) { return passes(act(k, top + row, left + column), slope); });
  }
}

// The bits of outputs, from value(channel, row, column) and winner(…), the position in its window.
template <class V, class W>
ZB_DEVICE void write_output_bits(const Geometry& g, int threads, const Item& item, const Sinks& sinks,
                                 V&& value, W&& winner) {
  const float slope = static_cast<float>(g.slope);
  const int across = item.out_columns, windows = item.out_rows * across;
  const int64_t in_plane = item.p * g.w.out + item.q;
  Bits b{item.out_rows, across, 0, g.w.out, g.out_size()};
  if (sinks.output_sig) {
    b.first = item.n * sinks.image_bits + item.k * g.out_size() + in_plane;
    write_bits(threads, item, sinks.output_sig, b,
               [&](int k, int row, int column) { return value(k, row, column) > 0; });
  }
  if (sinks.map_code && g.pool == Pool::kNone) {
    b.first = (item.n * g.K + item.k) * sinks.plane_bits + in_plane;
    b.channel_bits = sinks.plane_bits;
    write_bits(threads, item, sinks.map_code, b,
               [&](int k, int row, int column) { return passes(value(k, row, column), slope); });
  }
  if (sinks.winner_sig) {
    for (int i = static_cast<int>(threadIdx.x); i < item.channels * windows; i += threads) {
      const int k = i / windows, window = i - k * windows, row = window / across,
                column = window - row * across;
      if (!(value(k, row, column) > 0)) continue;
      const int64_t unit = (item.k + k) * g.out_size() + in_plane + row * g.w.out + column;
      cuda::or_bits(sinks.winner_sig, item.n * sinks.image_bits + unit * sinks.unit_bits,
                    static_cast<uint32_t>(1 + winner(k, row, column)));
    }
  }
}

// Windows that tiles must hold: the outputs, and where map bits are wanted as many more as cover the map.
inline int64_t windows_wanted(const Axis& a, bool map_bits) {
  if (!map_bits) return a.out;
  const int64_t rest = a.map + a.window_padding - a.window;
  const int64_t cover = rest <= 0 ? 1 : cuda::pieces(rest, a.window_stride) + 1;
  return cover > a.out ? cover : a.out;
}

inline bool wants_map_bits(const Call& c) {
  return c.sinks.map_sig != nullptr || c.sinks.map_code != nullptr;
}

// Whether windows are pooled in registers: those that lie in one thread's positions. Map bits aren't made
// there.
inline bool pools_in_registers(const Call& c) {
  const auto two = [](const Axis& a) { return a.window == 2 && a.window_stride == 2; };
  return c.p.pool != Pool::kNone && two(c.g.h) && two(c.g.w) && !wants_map_bits(c);
}

// What neither kernel does; nullptr where both can.
inline const char* first_layers_refuse(const Call& c) {
  const Geometry& g = c.g;
  if (c.residual) return "a residual";
  if (c.p.dtype == ScalarType::Double) return "float64";
  if (g.Cg > kFirstMostChannels) return "more than 4 input channels in a group";
  if (g.h.kernel > kFirstMostRows || g.h.stride > kFirstMostRowStride) {
    return "a kernel of more than 7 rows, or with a row stride above 2";
  }
  if (g.w.dilation != 1 || (g.h.kernel > 1 && g.h.dilation != 1)) return "dilation";
  const auto small = [](const Axis& a) {
    return a.window <= kFirstMostWindow && a.window_stride >= 2 && a.window_stride <= a.window;
  };
  if (g.pool != Pool::kNone && !(small(g.h) && small(g.w))) {
    return "a pool window larger than 4 by 4, less than 2 apart or with gaps";
  }
  return nullptr;
}

}  // namespace zb::conv_relu_pool
