// From pre-activations to y, code and sig. Part of forward_kernel.h.
#pragma once

#include "conv_relu_pool/cpu/bits.h"
#include "conv_relu_pool/cpu/lanes.h"
#include "conv_relu_pool/cpu/residual.h"

namespace zb::conv_relu_pool::cpu {
namespace {

// Whether y is all that is wanted and its rounding and ReLU can wait until it is written: both keep the order
// of values, so the largest of a window is the same before and after.
ZB_INLINE bool rounds_last(const Call& c) {
  return c.code_kind == CodeKind::kNone && c.units == UnitKind::kNone && c.pool != Pooling::kAvg &&
         (c.slope == 0 || c.slope == 1);
}

// Adds the residual, rounds to the element type and applies the activation. Max pooling at slope 0 in float32
// or float64 needs no activation here: the largest value's is what counts.
template <class E, class T>
void activate(const Call& c, const Map<T>& map, int64_t image, const Block& b) {
  using V = Vec<T>;
  constexpr bool rounds = sizeof(E) != sizeof(T);
  if (c.residual) add_residual<E>(c, map, image, b);
  if (rounds_last(c)) return;
  if (!rounds && (c.slope == 1 || (c.slope == 0 && c.pool == Pooling::kMax))) return;
  const bool act = !(c.slope == 0 && c.pool == Pooling::kMax);
  const typename V::reg slope = V::set1(static_cast<T>(c.slope));
  for (int64_t h = 0; h < map.rows.size(); ++h) {
    T* at = map.data + h * map.row_pitch;
    for (int64_t i = 0; i < map.columns.size() * 2; ++i, at += V::n) {
      typename V::reg v = rounded<E, T>(V::load(at));
      if (act && c.slope == 0) {
        v = V::relu(v);
      } else if (act) {
        v = V::choose(V::gt(v, V::zero()), v, rounded<E, T>(V::mul(v, slope)));
      }
      V::store(at, v);
    }
  }
}

// What an epilogue gathers of a block's channels before it is written: runs of bits of the map (units and
// code) and of y (units).
template <class T>
struct Runs {
  BitRun<T> units, code;
};

template <class T>
ZB_INLINE Runs<T> take_runs(const Call& c, int64_t map_pixels, int64_t outputs, Scratch& memory) {
  Runs<T> runs{};
  const int64_t bits = c.units == UnitKind::kRelu   ? map_pixels
                       : c.units == UnitKind::kNone ? 0
                                                    : outputs * c.unit_bits;
  if (bits) runs.units.words = memory.take<uint64_t>(bit_run_size<T>(bits));
  if (c.code_kind == CodeKind::kBits) runs.code.words = memory.take<uint64_t>(bit_run_size<T>(map_pixels));
  return runs;
}

// Bits of the un-pooled map: units="relu", and the code of average and no pooling. Rows of the map that
// follow one another make one run, which is written when `last` rows have come.
template <class T>
void write_map_bits(const Call& c, const Map<T>& map, Runs<T>& runs, int64_t image, const Block& b,
                    bool last) {
  const bool units = c.units == UnitKind::kRelu, code = c.code_kind == CodeKind::kBits;
  if (!units && !code) return;
  const int64_t plane = c.map[0] * c.map[1], code_words = up_div(plane, 64), columns = map.columns.size();
  const bool joined = columns == c.map[1], dense = joined && map.row_pitch == columns * kBlock<T>;
  const int64_t step = dense ? map.rows.size() : 1;
  for (int64_t h = map.rows.begin; h < map.rows.end; h += step) {
    const T* pixels = map.data + (h - map.rows.begin) * map.row_pitch;
    const int64_t count = step * columns;
    if (units) runs.units.template append_signs<false>(pixels, count);
    if (code && c.slope == 0) {
      runs.code.template append_signs<true>(pixels, count);
    } else if (code) {
      runs.code.template append_signs<false>(pixels, count);
    }
    if (joined && !(last && h + step == map.rows.end)) continue;
    const int64_t end = (h + step - 1) * c.map[1] + map.columns.end;  // of the run, in the plane
    if (units) {
      runs.units.flush(c.sig + image * c.sig_words, b.first * plane + end - runs.units.count, plane, b.size);
    }
    if (code) {
      uint64_t* words = static_cast<uint64_t*>(c.code) + (image * c.K + b.first) * code_words;
      runs.code.flush(words, end - runs.code.count, code_words * 64, b.size);
    }
  }
}

// Pooled values (and positions of the winners) of a task's outputs: [rows][columns][kBlock].
template <class T>
struct Pooled {
  T *value, *position;  // a position is an integer of T's size, in T's bits
  Range rows, columns;
};

// The rows of windows that have some of the map's rows; those of the pooled values, from where they begin on.
template <class T>
ZB_INLINE Range touched_rows(const Call& c, const Map<T>& map, const Pooled<T>& pooled) {
  const int64_t step = c.pool_stride[0], before = c.pool_padding[0];
  const int64_t past =
      map.rows.begin + before - c.pool_kernel[0];  // windows that begin here or earlier have ended
  return {most(pooled.rows.begin, past < 0 ? 0 : past / step + 1),
          least(pooled.rows.end, up_div(map.rows.end + before, step))};
}

// x where it is larger or a NaN, else best: the masks of the first need not be joined.
template <class V>
ZB_INLINE typename V::reg largest(typename V::reg x, typename V::reg best) {
  return V::choose(V::is_nan(x), x, V::max(x, best));
}

// Takes in what the map's rows hold of every window. Rows arrive in order, so that the first of equal values
// and the last NaN win. The first call for an output must see the first row of its window.
template <class T, bool POSITION, int VECTORS>
void pool_max(const Call& c, const Map<T>& map, const Pooled<T>& pooled) {
  using V = Vec<T>;
  const typename V::reg lowest = V::set1(-__builtin_inf());
  const Range touched = touched_rows(c, map, pooled);
  const int64_t skipped = (touched.begin - pooled.rows.begin) * pooled.columns.size() * kBlock<T>;
  T *value = pooled.value + skipped, *position = pooled.position + skipped;
  for (int64_t p = touched.begin; p < touched.end; ++p) {
    const int64_t top = p * c.pool_stride[0] - c.pool_padding[0];
    const int64_t first_row = most(top, 0), h0 = most(first_row, map.rows.begin);
    const int64_t h1 = least(top + c.pool_kernel[0], map.rows.end);
    for (int64_t q = pooled.columns.begin; q < pooled.columns.end; ++q) {
      const int64_t left = q * c.pool_stride[1] - c.pool_padding[1];
      const int64_t w0 = most(left, 0), w1 = least(left + c.pool_kernel[1], map.columns.end);
      const bool begins = h0 == first_row;
      const int64_t first = (first_row - top) * c.pool_kernel[1] + w0 - left;
      typename V::reg best[VECTORS], where[VECTORS];
      for (int v = 0; v < VECTORS; ++v) {
        best[v] = begins ? lowest : V::load(value + v * V::n);
        if (POSITION) where[v] = begins ? V::integer(first) : V::load(position + v * V::n);
      }
      for (int64_t h = h0; h < h1; ++h) {
        const T* at = map.data + (h - map.rows.begin) * map.row_pitch + (w0 - map.columns.begin) * kBlock<T>;
        for (int64_t w = w0; w < w1; ++w, at += kBlock<T>) {
          const typename V::reg here = V::integer((h - top) * c.pool_kernel[1] + w - left);
          for (int v = 0; v < VECTORS; ++v) {
            const typename V::reg x = V::load(at + v * V::n);
            if (POSITION) {
              const typename V::mask wins = V::either(V::gt(x, best[v]), V::is_nan(x));
              best[v] = V::choose(wins, x, best[v]);
              where[v] = V::choose(wins, here, where[v]);
            } else {
              best[v] = largest<V>(x, best[v]);
            }
          }
        }
      }
      for (int v = 0; v < VECTORS; ++v, value += V::n, position += V::n) {
        V::store(value, best[v]);
        if (POSITION) V::store(position, where[v]);
      }
      value += (2 - VECTORS) * V::n, position += (2 - VECTORS) * V::n;
    }
  }
}

// Sums of the windows; also pool="none", whose windows are single pixels.
template <class T>
void pool_sum(const Call& c, const Map<T>& map, const Pooled<T>& pooled) {
  using V = Vec<T>;
  const Range touched = touched_rows(c, map, pooled);
  T* value = pooled.value + (touched.begin - pooled.rows.begin) * pooled.columns.size() * kBlock<T>;
  for (int64_t p = touched.begin; p < touched.end; ++p) {
    const int64_t top = p * c.pool_stride[0] - c.pool_padding[0];
    const int64_t h0 = most(most(top, 0), map.rows.begin), h1 = least(top + c.pool_kernel[0], map.rows.end);
    for (int64_t q = pooled.columns.begin; q < pooled.columns.end; ++q, value += kBlock<T>) {
      const int64_t left = q * c.pool_stride[1] - c.pool_padding[1];
      const int64_t w0 = most(left, 0), w1 = least(left + c.pool_kernel[1], map.columns.end);
      for (int v = 0; v < 2; ++v) {
        typename V::reg sum = h0 == most(top, 0) ? V::zero() : V::load(value + v * V::n);
        for (int64_t h = h0; h < h1; ++h) {
          const T* at =
              map.data + (h - map.rows.begin) * map.row_pitch + (w0 - map.columns.begin) * kBlock<T>;
          for (int64_t w = w0; w < w1; ++w, at += kBlock<T>) sum = V::add(sum, V::load(at + v * V::n));
        }
        V::store(value + v * V::n, sum);
      }
    }
  }
}

template <class T>
void pool_rows(const Call& c, const Map<T>& map, const Pooled<T>& pooled, const Block& b) {
  const bool narrow = b.size <= Vec<T>::n;
  if (c.pool != Pooling::kMax) {
    pool_sum(c, map, pooled);
  } else if (c.code_kind != CodeKind::kNone || c.units == UnitKind::kWinner) {
    narrow ? pool_max<T, true, 1>(c, map, pooled) : pool_max<T, true, 2>(c, map, pooled);
  } else {
    narrow ? pool_max<T, false, 1>(c, map, pooled) : pool_max<T, false, 2>(c, map, pooled);
  }
}

// From the pre-activations of some rows to what is kept of them; `last`: no other rows of the image follow.
template <class E, class T>
void after_convolution(const Call& c, const Map<T>& map, const Pooled<T>& pooled, Runs<T>& runs,
                       int64_t image, const Block& b, bool last) {
  activate<E>(c, map, image, b);
  write_map_bits(c, map, runs, image, b, last);
  pool_rows(c, map, pooled, b);
}

// torch's divisor: the window's part inside the padded map, or inside the map itself.
ZB_INLINE int64_t window_extent(const Call& c, int d, int64_t out) {
  const int64_t begin = out * c.pool_stride[d] - c.pool_padding[d];
  const int64_t end = least(begin + c.pool_kernel[d], c.map[d] + c.pool_padding[d]);
  return c.count_include_pad ? end - begin : least(end, c.map[d]) - most(begin, 0);
}

// Turns sums into means.
template <class T>
void divide(const Call& c, const Pooled<T>& pooled) {
  T* value = pooled.value;
  for (int64_t p = pooled.rows.begin; p < pooled.rows.end; ++p) {
    for (int64_t q = pooled.columns.begin; q < pooled.columns.end; ++q) {
      const T divisor = static_cast<T>(window_extent(c, 0, p) * window_extent(c, 1, q));
      for (int64_t k = 0; k < kBlock<T>; ++k) *value++ /= divisor;
    }
  }
}

// What the backward pass has to know of each window, in place of the positions.
template <class T>
void codes_of_positions(const Call& c, const T* value, T* position, int64_t count) {
  using V = Vec<T>;
  const typename V::reg one = V::integer(1), two = V::integer(2);
  for (int64_t i = 0; i < count * 2; ++i, value += V::n, position += V::n) {
    const typename V::reg v = V::load(value), pos = V::load(position);
    const typename V::mask on = V::gt(v, V::zero());
    if (c.slope > 0) {
      V::store(position, V::add_integers(V::add_integers(pos, pos), V::choose(on, one, two)));
    } else {
      V::store(position, V::choose(V::either(on, V::is_nan(v)), V::add_integers(pos, one), V::integer(0)));
    }
  }
}

// The number of each window's winner, or 0, in unit_bits bits.
template <class T>
void append_winners(const Call& c, const T* value, const T* position, int64_t count, BitRun<T>& run) {
  using V = Vec<T>;
  const int64_t together = 64 / c.unit_bits;
  for (int64_t first = 0; first < count; first += together) {
    const int64_t some = least(together, count - first);
    uint64_t words[kBlock<T>] = {};
    for (int64_t i = 0; i < some; ++i) {
      int32_t codes[kBlock<T>];
      for (int v = 0; v < 2; ++v, value += V::n, position += V::n) {
        const typename V::reg code = V::add_integers(V::load(position), V::integer(1));
        store_integers(codes + v * V::n, V::choose(V::gt(V::load(value), V::zero()), code, V::integer(0)));
      }
      for (int64_t k = 0; k < kBlock<T>; ++k) {
        words[k] |= static_cast<uint64_t>(static_cast<uint32_t>(codes[k])) << (i * c.unit_bits);
      }
    }
    run.append(words, some * c.unit_bits);
  }
}

// Everything that is left once the windows of a block are pooled.
template <class E, class T>
void write_outputs(const Call& c, const Pooled<T>& pooled, Runs<T>& kept, int64_t image, const Block& b) {
  using V = Vec<T>;
  if (c.pool == Pooling::kAvg) divide(c, pooled);
  const int64_t columns = pooled.columns.size();
  const bool joined = columns == c.out[1];  // rows follow one another, in y too
  const int64_t runs = joined ? 1 : pooled.rows.size();
  const int64_t length = joined ? pooled.rows.size() * columns : columns;
  const int64_t plane = c.out[0] * c.out[1];
  for (int64_t r = 0; r < runs; ++r) {
    T* value = pooled.value + r * columns * kBlock<T>;
    T* position = pooled.position + r * columns * kBlock<T>;
    const int64_t at = (pooled.rows.begin + r) * c.out[1] + pooled.columns.begin;
    const int64_t offset = image * c.y_strides[0] + b.first * c.y_strides[1] + at * c.y_strides[3];
    const bool last = rounds_last(c);
    if (c.pool == Pooling::kMax && c.slope == 0 && !last) {
      for (int64_t i = 0; i < length * 2; ++i) V::store(value + i * V::n, V::relu(V::load(value + i * V::n)));
    }
    if (c.units == UnitKind::kWinner) append_winners(c, value, position, length, kept.units);
    if (c.code_kind == CodeKind::kByte || c.code_kind == CodeKind::kInt) {
      codes_of_positions(c, value, position, length);
      const auto store = [](auto* to, typename V::reg v) { store_integers(to, v); };
      if (c.code_kind == CodeKind::kByte) {
        write_lanes(c, static_cast<uint8_t*>(c.code) + offset, position, length, b.size, store);
      } else {
        write_lanes(c, static_cast<int32_t*>(c.code) + offset, position, length, b.size, store);
      }
    }
    E* y = static_cast<E*>(c.y) + offset;
    if (c.units == UnitKind::kOutput) {
      if constexpr (sizeof(E) != sizeof(T)) {  // the bit is that of the value returned, which a mean rounds
        for (int64_t i = 0; i < length * 2; ++i) {
          E narrow[V::n];
          store_as(narrow, V::load(value + i * V::n));
          V::store(value + i * V::n, load_as(narrow));
        }
      }
      kept.units.template append_signs<false>(value, length);
    }
    if (c.units == UnitKind::kOutput || c.units == UnitKind::kWinner) {
      kept.units.flush(c.sig + image * c.sig_words, (b.first * plane + at) * c.unit_bits, plane * c.unit_bits,
                       b.size);
    }
    write_values(c, y, value, length, b.size, last && c.slope == 0);
  }
}

}  // namespace
}  // namespace zb::conv_relu_pool::cpu
