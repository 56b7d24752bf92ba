// dual_gram on the CPU: tiles of kBlock x kBlock numbers, each finished through all layers before it is
// stored once.
//
// A chunk of x2, packed, is shared by all threads and stays in the last cache; a task takes a block of x1
// through it. Where x1 is x2 only the tiles on and above the diagonal are computed, and stored twice.
#include <cstring>

#include "common/register.h"
#include "dual_kernel/cpu/loops.h"

namespace zb::dual_kernel::cpu {
namespace {

template <class T>
void store(const T* k, int64_t rows, int64_t columns, T* to, int64_t stride) {
  for (int64_t i = 0; i < rows; ++i) {
    std::memcpy(to + i * stride, k + i * kBlock, static_cast<size_t>(columns) * sizeof(T));
  }
}

template <class T>
void gram_of(const Problem& p, const Tensor& x1, const Tensor& x2, Tensor& out) {
  const Loops<T> run = loops<T>();
  const Network network = network_of(p);
  const Rows<T> rows(network, Matrix<T>(x1));
  const Rows<T> others = p.symmetric ? rows : Rows<T>(network, Matrix<T>(x2));
  T* to = static_cast<T*>(out.mutable_data_ptr());
  const int64_t chunk = std::min(others.blocks(), chunk_blocks<T>(p.d)), size = kBlock * p.d;
  T* lanes = static_cast<T*>(arena(Use::kChunk).get(chunk * size * static_cast<int64_t>(sizeof(T))));
  for (int64_t begin = 0; begin < others.blocks(); begin += chunk) {
    const int64_t end = std::min(begin + chunk, others.blocks());
    pack_chunk(others, begin, end, p.d, run.pack_lanes, lanes);
    const int64_t tasks = p.symmetric ? end : rows.blocks();
    // Few rows: the chunk is shared out too.
    const int64_t parts = std::clamp<int64_t>(4 * thread_count() / tasks, 1, end - begin);
    parallel_tasks(tasks * parts, [&](int64_t task) {
      const int64_t i = task / parts, part = task % parts;
      const int64_t first = std::max(begin + (end - begin) * part / parts, p.symmetric ? i : 0);
      const int64_t last = begin + (end - begin) * (part + 1) / parts;
      if (first >= last) return;
      T* own = static_cast<T*>(arena(Use::kBlock).get(size * static_cast<int64_t>(sizeof(T))));
      T* tile = static_cast<T*>(arena(Use::kTile).get(2 * kTileSize * static_cast<int64_t>(sizeof(T))));
      const Block<T> row = packed(rows, i, p.d, run.pack_rows, own);
      for (int64_t j = first; j < last; ++j) {
        Block<T> lane = others.block(j);
        lane.packed = lanes + (j - begin) * size;
        run.tile(network, row, lane, tile);
        store(tile, row.count, lane.count, to + i * kBlock * p.M + j * kBlock, p.M);
        if (p.symmetric && i < j) {
          run.transpose(tile, tile + kTileSize);
          store(tile + kTileSize, lane.count, row.count, to + j * kBlock * p.M + i * kBlock, p.M);
        }
      }
      arena(Use::kBlock).release();
    });
  }
  arena(Use::kChunk).release();
  note_kernel(run.gram);
}

}  // namespace

void gram(const Problem& p, const Tensor& x1, const Tensor& x2, Tensor& out) {
  p.dtype == ScalarType::Float ? gram_of<float>(p, x1, x2, out) : gram_of<double>(p, x1, x2, out);
}

}  // namespace zb::dual_kernel::cpu
