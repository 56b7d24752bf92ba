// dual_matvec on the CPU: tiles as in dual_gram.cpp, multiplied by v as soon as they are finished.
//
// The numbers of a tile's row lie along x1, so that a sum over x2 needs no adding across lanes: a task takes
// a block of x1 through all of x2, chunk by chunk. A tile is summed in T, and tiles are added in float64, in
// the order of x2: the result does not depend on the number of threads.
//
// Where x1 is x2 a tile above the diagonal serves twice, the second time turned over. What it then adds
// belongs to another task's rows: it goes to sums of a slot. Which tasks share a slot depends on the shape
// alone, one thread runs them in order, and the slots are added in order after each chunk.
#include <algorithm>
#include <numeric>
#include <vector>

#include "common/register.h"
#include "dual_kernel/cpu/loops.h"

namespace zb::dual_kernel::cpu {
namespace {

constexpr int64_t kSlots = 32;
constexpr int64_t kParts = 64;  // tasks there should be, where x1 has fewer blocks

// v [rows, p], dense: itself or a copy.
template <class T>
class Vectors {
 public:
  explicit Vectors(const Tensor& v)
      : dense_(v.is_contiguous() ? v : torch::stable::contiguous(v)), p_(v.size(1)) {}
  const T* row(int64_t i) const { return static_cast<const T*>(dense_.data_ptr()) + i * p_; }

 private:
  Tensor dense_;
  int64_t p_;
};

template <class T>
class Product {
 public:
  Product(const Problem& p, const Tensor& x1, const Tensor& x2, const Tensor& v)
      : p_(p),
        network_(network_of(p)),
        lanes_(network_, Matrix<T>(x1)),
        others_(p.symmetric ? lanes_ : Rows<T>(network_, Matrix<T>(x2))),
        v_(v),
        size_(kBlock * p.d),
        sums_(static_cast<size_t>(lanes_.blocks() * kBlock * p.p), 0) {}

  void run(T* out) {
    const int64_t chunk = std::min(others_.blocks(), chunk_blocks<T>(p_.d));
    T* packed_rows = static_cast<T*>(arena(Use::kChunk).get(chunk * size_ * static_cast<int64_t>(sizeof(T))));
    for (int64_t begin = 0; begin < others_.blocks(); begin += chunk) {
      const int64_t end = std::min(begin + chunk, others_.blocks());
      pack_chunk(others_, begin, end, p_.d, run_.pack_rows, packed_rows);
      p_.symmetric ? twice(begin, end, packed_rows) : once(begin, end, packed_rows);
    }
    arena(Use::kChunk).release();
    write(out);
    if (p_.symmetric) equal_results(out);
    note_kernel(run_.matvec);
  }

 private:
  T* tile_memory() const {
    return static_cast<T*>(arena(Use::kTile).get(2 * kTileSize * static_cast<int64_t>(sizeof(T))));
  }
  Block<T> own_block(int64_t j) const {
    T* own = static_cast<T*>(arena(Use::kBlock).get(size_ * static_cast<int64_t>(sizeof(T))));
    return packed(lanes_, j, p_.d, run_.pack_lanes, own);
  }
  Block<T> row_block(int64_t i, int64_t begin, const T* packed_rows) const {
    Block<T> rows = others_.block(i);
    rows.packed = packed_rows + (i - begin) * size_;
    return rows;
  }
  double* sums(int64_t block) { return sums_.data() + block * kBlock * p_.p; }  // [p][kBlock]

  void once(int64_t begin, int64_t end, const T* packed_rows) {
    const int64_t blocks = lanes_.blocks(), sums_size = kBlock * p_.p;
    const int64_t parts = std::clamp<int64_t>(kParts / blocks, 1, end - begin);
    std::vector<double> parts_of_sums(parts > 1 ? static_cast<size_t>(blocks * parts * sums_size) : 0, 0);
    parallel_tasks(blocks * parts, [&](int64_t task) {
      const int64_t j = task / parts, part = task % parts;
      T* tile = tile_memory();
      const Block<T> lanes = own_block(j);
      double* to = parts > 1 ? parts_of_sums.data() + task * sums_size : sums(j);
      for (int64_t i = begin + (end - begin) * part / parts; i < begin + (end - begin) * (part + 1) / parts;
           ++i) {
        const Block<T> rows = row_block(i, begin, packed_rows);
        run_.tile(network_, rows, lanes, tile);
        run_.multiply(tile, rows.count, v_.row(i * kBlock), p_.p, to);
      }
      arena(Use::kBlock).release();
    });
    for (size_t task = 0; task * sums_size < parts_of_sums.size(); ++task) {
      double* to = sums(static_cast<int64_t>(task) / parts);
      for (int64_t n = 0; n < sums_size; ++n) to[n] += parts_of_sums[task * sums_size + n];
    }
  }

  void twice(int64_t begin, int64_t end, const T* packed_rows) {
    const int64_t blocks = lanes_.blocks(), sums_size = kBlock * p_.p;
    const int64_t slots = std::min(kSlots, blocks - begin);
    slot_sums_.assign(static_cast<size_t>(slots * (end - begin) * sums_size), 0);
    parallel_tasks(slots, [&](int64_t slot) {
      double* turned = slot_sums_.data() + slot * (end - begin) * sums_size;
      T* tile = tile_memory();
      for (int64_t j = begin + slot; j < blocks; j += slots) {
        const Block<T> lanes = own_block(j);
        for (int64_t i = begin; i < std::min(end, j + 1); ++i) {
          const Block<T> rows = row_block(i, begin, packed_rows);
          run_.tile(network_, rows, lanes, tile);
          run_.multiply(tile, rows.count, v_.row(i * kBlock), p_.p, sums(j));
          if (i == j) continue;
          run_.transpose(tile, tile + kTileSize);
          run_.multiply(tile + kTileSize, lanes.count, v_.row(j * kBlock), p_.p,
                        turned + (i - begin) * sums_size);
        }
      }
      arena(Use::kBlock).release();
    });
    for (int64_t slot = 0; slot < slots; ++slot) {
      const double* from = slot_sums_.data() + slot * (end - begin) * sums_size;
      for (int64_t n = 0; n < (end - begin) * sums_size; ++n) sums(begin)[n] += from[n];
    }
  }

  void write(T* out) {
    for (int64_t row = 0; row < p_.N; ++row) {
      const double* from = sums(row / kBlock) + row % kBlock;
      for (int64_t n = 0; n < p_.p; ++n) out[row * p_.p + n] = static_cast<T>(from[n * kBlock]);
    }
  }

  bool same_rows(int64_t a, int64_t b) const {
    const Matrix<T>& x = lanes_.x();
    for (int64_t k = 0; k < p_.d; ++k) {
      if (x.data[a * x.row + k * x.column] != x.data[b * x.row + k * x.column]) return false;
    }
    return true;
  }

  // Rows before and after a tile's diagonal are added in different orders: equal ones get the result of the
  // first.
  void equal_results(T* out) const {
    std::vector<int64_t> order(static_cast<size_t>(p_.N));
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return lanes_.hash(a) != lanes_.hash(b) ? lanes_.hash(a) < lanes_.hash(b) : a < b;
    });
    int64_t first = 0;
    for (const int64_t row : order) {
      if (row != first && lanes_.hash(row) == lanes_.hash(first) && same_rows(row, first)) {
        std::copy_n(out + first * p_.p, p_.p, out + row * p_.p);
      } else {
        first = row;
      }
    }
  }

  const Problem& p_;
  const Loops<T> run_ = loops<T>();
  const Network network_;
  const Rows<T> lanes_, others_;
  const Vectors<T> v_;
  const int64_t size_;
  std::vector<double> sums_, slot_sums_;
};

}  // namespace

void matvec(const Problem& p, const Tensor& x1, const Tensor& x2, const Tensor& v, Tensor& out) {
  if (p.dtype == ScalarType::Float) {
    Product<float>(p, x1, x2, v).run(static_cast<float*>(out.mutable_data_ptr()));
  } else {
    Product<double>(p, x1, x2, v).run(static_cast<double*>(out.mutable_data_ptr()));
  }
}

void gram(const Problem& p, const Tensor& x1, const Tensor& x2, Tensor& out);

namespace {
const Registration registration("CPU", {ZB_DUAL_KERNELS(gram, matvec)});
}

}  // namespace zb::dual_kernel::cpu
