// What is added to pre-activations before they are activated: a tensor of the un-pooled map's shape, of any
// strides. Part of forward_kernel.h.
//
// Where y alone is wanted, without a pool, and lies as the residual does, a task writes y as if there were no
// residual, and goes over its part of y once more while that is in the caches: both are then read in long
// runs. That is at the task's end in channels_last, else after each block, whose planes follow one another.
// Of planes that tasks have cut only short runs lie together: those wait until all tasks are done. In
// training, with a pool or with a signature the residual joins a block's map instead, a few rows of 32
// channels at a time.
//
// Versions, forward, float32, no pool, milliseconds of one thread of a busy EPYC (Zen 4, AVX-512), best; in
// brackets what the convolution alone takes, and it with torch's add_ and relu_ behind it, in the same run:
//                              8x64x56x56 to 256, 1x1                  32x64x32x32 to 64, 3x3
//                              NCHW               channels_last        NCHW            channels_last
//   into the map               14.7 [11.3, 13.6]  15.6 [11.6, 14.2]    9.6 [8.8, 9.4]  10.4 [9.6, 10.2]
//   over y, while in caches    14.0 [11.1, 13.4]  12.8 [11.4, 13.6]    9.0 [8.6, 9.3]   9.7 [9.2, 10.0]
//   cut planes at the end      13.0 [11.5, 13.8]
#pragma once

#include "conv_relu_pool/cpu/interleave.h"

namespace zb::conv_relu_pool::cpu {
namespace {

// A value of the element type, as a convolution that returns a tensor gives it.
template <class E, class T>
ZB_INLINE typename Vec<T>::reg rounded(typename Vec<T>::reg v) {
  if constexpr (sizeof(E) != sizeof(T)) {
    E narrow[Vec<T>::n];
    store_as(narrow, v);
    return load_as(narrow);
  } else {
    return v;
  }
}

// `lanes` channels of some neighbouring pixels of the residual, [pixel][Vec<T>::n].
template <class E, class T>
ZB_INLINE void load_residual(const Call& c, const E* from, int64_t lanes, int64_t pixels, T* to) {
  if constexpr (sizeof(T) == sizeof(float)) {
    interleave(from, c.r_strides[1], c.r_strides[3], lanes, pixels, to);
  } else {
    for (int64_t i = 0; i < pixels; ++i) {
      for (int64_t k = 0; k < lanes; ++k) {
        to[i * Vec<T>::n + k] = value_of(from[k * c.r_strides[1] + i * c.r_strides[3]]);
      }
    }
  }
}

// Adds the residual to a block's pre-activations, which are rounded first, as in a sum of two tensors. What
// the sum is rounded to is left to the activation.
template <class E, class T>
void add_residual(const Call& c, const Map<T>& map, int64_t image, const Block& b) {
  using V = Vec<T>;
  constexpr int64_t n = V::n, kTogether = 64;  // pixels
  const E* plane = static_cast<const E*>(c.residual) + image * c.r_strides[0] + b.first * c.r_strides[1] +
                   map.rows.begin * c.r_strides[2] + map.columns.begin * c.r_strides[3];
  const auto add = [](T* to, typename V::reg v) { V::store(to, V::add(rounded<E, T>(V::load(to)), v)); };
  // Rows that follow one another here and there are one.
  const int64_t columns = map.columns.size();
  const bool joined = map.row_pitch == columns * kBlock<T> && c.r_strides[2] == columns * c.r_strides[3];
  const int64_t runs = joined ? 1 : map.rows.size(), length = joined ? map.rows.size() * columns : columns;
  alignas(64) T line[kTogether * n] = {};
  for (int64_t r = 0; r < runs; ++r) {
    const E* from = plane + r * c.r_strides[2];
    T* to = map.data + r * map.row_pitch;
    if (c.r_strides[1] == 1 && b.size == kBlock<T>) {
      for (int64_t i = 0; i < length; ++i, from += c.r_strides[3], to += kBlock<T>) {
        add(to, load_as(from));
        add(to + n, load_as(from + n));
      }
      continue;
    }
    for (int64_t first = 0; first < length; first += kTogether) {
      const int64_t some = least(kTogether, length - first);
      for (int64_t k = 0; k < b.size; k += n) {
        load_residual<E, T>(c, from + k * c.r_strides[1] + first * c.r_strides[3], least(n, b.size - k), some,
                            line);
        for (int64_t i = 0; i < some; ++i) add(to + (first + i) * kBlock<T> + k, V::load(line + i * n));
      }
    }
  }
}

// Whether the residual is added to y rather than to the map.
ZB_INLINE bool adds_to_outputs(const Call& c) {
  if (!c.residual || c.pool != Pooling::kNone) return false;
  if (c.code_kind != CodeKind::kNone || c.units != UnitKind::kNone) return false;
  const int64_t sizes[4] = {c.N, c.K, c.out[0], c.out[1]};
  for (int d = 0; d < 4; ++d) {
    if (sizes[d] > 1 && c.r_strides[d] != c.y_strides[d]) return false;
  }
  return true;
}

ZB_INLINE Call without_residual(const Call& c) {
  Call plain = c;
  plain.residual = nullptr;
  plain.summed = &c;
  plain.slope = 1;
  return plain;
}

// y = act(y + residual) of `count` neighbours.
template <class E, class T>
void add_run(const Call& c, E* y, const E* residual, int64_t count) {
  using V = Vec<T>;
  constexpr int64_t n = V::n;
  const typename V::reg slope = V::set1(static_cast<T>(c.slope));
  const auto sum = [&](const E* a, const E* b) {
    const typename V::reg v = V::add(load_as(a), load_as(b));
    if (c.slope == 1) return v;
    if (c.slope == 0) return V::relu(v);
    const typename V::reg pre = rounded<E, T>(v);
    return V::choose(V::gt(pre, V::zero()), pre, V::mul(pre, slope));
  };
  int64_t i = 0;
  for (; i + n <= count; i += n) store_as(y + i, sum(y + i, residual + i));
  if (i < count) {
    E a[n] = {}, b[n] = {};
    const size_t bytes = sizeof(E) * static_cast<size_t>(count - i);
    std::memcpy(a, y + i, bytes), std::memcpy(b, residual + i, bytes);
    store_as(a, sum(a, b));
    std::memcpy(y + i, a, bytes);
  }
}

// Adds the residual to some blocks of a task's part of y, and applies the activation.
template <class E, class T>
void add_to_outputs(const Call& c, const Task& t, Range blocks) {
  const Block last = block_at(c, blocks.end - 1);
  const int64_t first = block_at(c, blocks.begin).first, channels = last.first + last.size - first;
  const int64_t columns = t.out_columns.size(), rows = t.out_rows.size();
  const bool whole_rows = columns == c.out[1];
  const bool side_by_side = c.y_strides[1] == 1;  // channels
  const auto add = [&](int64_t image, int64_t k, int64_t row, int64_t column, int64_t count) {
    const int64_t at =
        image * c.y_strides[0] + k * c.y_strides[1] + row * c.y_strides[2] + column * c.y_strides[3];
    add_run<E, T>(c, static_cast<E*>(c.y) + at, static_cast<const E*>(c.residual) + at, count);
  };
  for (int64_t image = t.images.begin; image < t.images.end; ++image) {
    const int64_t planes = side_by_side ? 1 : channels;
    for (int64_t k = first; k < first + planes; ++k) {
      if (whole_rows && (!side_by_side || channels == c.K)) {  // one run of rows
        add(image, k, t.out_rows.begin, 0, rows * columns * (side_by_side ? channels : 1));
        continue;
      }
      for (int64_t row = t.out_rows.begin; row < t.out_rows.end; ++row) {
        if (!side_by_side || channels == c.K) {
          add(image, k, row, t.out_columns.begin, columns * (side_by_side ? channels : 1));
          continue;
        }
        for (int64_t w = t.out_columns.begin; w < t.out_columns.end; ++w) add(image, k, row, w, channels);
      }
    }
  }
}

// What is left of a call with adds_to_outputs once a block of its convolution is written, once all of a task
// are, and (planes that tasks have cut, begin to end of N·K) once all tasks are done.
template <class E, class T>
ZB_INLINE void finish_block(const Call& c, const Task& t, int64_t block) {
  if (!c.summed || c.adds_planes || c.y_strides[1] == 1) return;
  add_to_outputs<E, T>(*c.summed, t, {block, block + 1});
}
template <class E, class T>
ZB_INLINE void finish_task(const Call& c, const Task& t) {
  if (c.y_strides[1] == 1) add_to_outputs<E, T>(c, t, t.blocks);
}
template <class E, class T>
void finish_planes(const Call& c, int64_t begin, int64_t end) {
  const int64_t plane = c.out[0] * c.out[1], first = begin * plane;
  add_run<E, T>(c, static_cast<E*>(c.y) + first, static_cast<const E*>(c.residual) + first,
                (end - begin) * plane);
}

ZB_INLINE void plan_residual(Call& c) {
  const bool cut = c.rows.count > 1 || c.columns.count > 1;
  c.adds_planes = cut && c.y_strides[1] != 1 && adds_to_outputs(c);
}

}  // namespace
}  // namespace zb::conv_relu_pool::cpu
