// nap_topk on a GPU: the database streams past, in parts; each warp keeps the nearest rows of 32 queries.
//
// Floor: the products of bits (distances.h), N·M·bits / 16,384 clocks of an SM at an A100's rate; one read of
// the database where there are few queries. Looking at a distance costs 2 operations at 64 a clock, as long
// as 512 bits of products: shorter rows are bound by that. For a tile of 32 × 32 and 1,024 bits sm_90's code
// has 32 products (64 clocks at that rate), 32 counts of bits (64 clocks) and some 160 other instructions,
// side by side.
//
// A distance that is less than the k-th best of a list is appended to it, by an atomic on its length. A list
// that has no room for another tile is sorted and cut to k, which lowers that bound. Of 6,000 rows in random
// order some 130 come into a list of k = 5, with four cuts; so most tiles of such a part have a row for one
// of the 32 queries, and are looked at twice.
//
// Ladder
//   1  a warp a part and 32 queries, which registers hold up to 1,024 bits; a block a query merges the
//      lists of the parts. Predicted for 1,000 queries, 200,000 rows of 1,024 bits, k = 5 on an H100, if its
//      rate is an A100's: 0.06 ms of products, 0.2 ms in all. Not yet run on a card.
#include "common/last_kernel.h"
#include "common/register.h"
#include "nap/cuda/all_pairs.h"
#include "nap/cuda/nearest_list.h"

namespace zb::nap {
namespace {

constexpr size_t kMostShared = 80 * 1024;  // of a block: two fit an SM of sm_80
constexpr uint64_t kNone = INT64_MAX;      // behind all keys
constexpr int32_t kNoBound = INT32_MAX;    // of distances: every row of the database is nearer

// The rows of the database in parts. A part's key is distance << number_bits | row - first row of the part.
struct Split {
  int64_t parts, part_rows;
  int number_bits, row_bits;  // the latter of a row of the database, in the keys that come out
};

// What a warp keeps in shared memory: of each of 32 queries the keys, how many, and the bound.
template <class Key>
struct Lists {
  Key* keys;
  int* counts;
  int32_t* bounds;
  int room;  // keys of one query

  static size_t bytes(int k) {
    return kTile * (static_cast<size_t>(k + kRoom) * sizeof(Key) + sizeof(int) + sizeof(int32_t));
  }
  ZB_DEVICE Lists(unsigned char* memory, int k) : room(k + kRoom) {
    keys = reinterpret_cast<Key*>(memory);
    counts = reinterpret_cast<int*>(keys + kTile * room);
    bounds = reinterpret_cast<int32_t*>(counts + kTile);
  }
  ZB_DEVICE Key* of(int query) const { return keys + query * room; }
};

// Cuts the list of one query, and lowers its bound to the k-th best.
template <class Key>
ZB_DEVICE void cut(const Lists<Key>& lists, int query, int k, int number_bits) {
  const int count = cut_to_k(lists.of(query), lists.counts[query], k);
  if (threadIdx.x % 32 == 0) {
    lists.counts[query] = count;
    if (count == k) lists.bounds[query] = static_cast<int32_t>(lists.of(query)[k - 1] >> number_bits);
  }
  __syncwarp();
}

// keys [N, parts, k]: the nearest of each part, ascending, then kNone.
template <class Key, int CHUNKS, bool PAIRS>
__global__ void __launch_bounds__(kPairThreads, PAIRS ? 3 : 2)
    nearest_of_parts(Signatures q, Signatures db, Split split, int k, size_t warp_bytes,
                     uint64_t* __restrict__ keys) {
  ZB_SHARED_MEMORY(unsigned char, memory);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const Lists<Key> lists(memory + warp * warp_bytes, k);
  const int64_t groups = cuda::pieces(q.rows, kTile);
  for (int64_t item = int64_t{blockIdx.x} * warps + warp; item < groups * split.parts;
       item += int64_t{gridDim.x} * warps) {
    // Neighbouring warps take the same part of the database.
    const int64_t first = item % groups * kTile, part = item / groups, start = part * split.part_rows;
    const int64_t last = start + split.part_rows < db.rows ? start + split.part_rows : db.rows;
    Products<CHUNKS, PAIRS> products;
    products.begin(q, first);
    lists.counts[lane] = 0;
    lists.bounds[lane] = first + lane < q.rows ? kNoBound : INT32_MIN;
    __syncwarp();
    int32_t bounds[4];  // less |a|, but for those that bound nothing or all
    const auto read_bounds = [&] {
#pragma unroll
      for (int h = 0; h < 4; ++h) {
        const int32_t bound = lists.bounds[lane / 4 + 8 * h];
        bounds[h] = bound == kNoBound || bound == INT32_MIN ? bound : bound - products.a_bits(h);
      }
    };
    read_bounds();
#pragma unroll 1
    for (int64_t m0 = start; m0 < last; m0 += kTile) {
      Relative found;
      products.tile(q, db, m0, found);
      bool any = false;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
#pragma unroll
          for (int h = 0; h < 4; ++h) any |= found.of[t][h][c] < bounds[h];
        }
      }
      if (!__any_sync(cuda::kWholeWarp, any)) continue;
#pragma unroll
      for (int h = 0; h < 4; ++h) {
        const int query = lane / 4 + 8 * h;
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            if (found.of[t][h][c] >= bounds[h]) continue;
            const auto distance = static_cast<Key>(products.distance(h, found.of[t][h][c]));
            const auto number = static_cast<Key>(m0 - start + 8 * t + 2 * (lane % 4) + c);
            const int at = atomicAdd(lists.counts + query, 1);
            lists.of(query)[at] = distance << split.number_bits | number;
          }
        }
      }
      __syncwarp();
      uint32_t full = __ballot_sync(cuda::kWholeWarp, lists.counts[lane] > lists.room - kTile);
      if (full == 0) continue;
      for (; full != 0; full &= full - 1) cut(lists, __popc((full & -full) - 1), k, split.number_bits);
      read_bounds();
    }
    const int queries = q.rows - first < kTile ? static_cast<int>(q.rows - first) : kTile;
    for (int query = 0; query < queries; ++query) {
      cut(lists, query, k, split.number_bits);
      const int count = lists.counts[query];
      uint64_t* const out = keys + ((first + query) * split.parts + part) * k;
      for (int i = lane; i < k; i += 32) {
        const Key key = i < count ? lists.of(query)[i] : 0;
        const uint64_t distance = static_cast<uint64_t>(key >> split.number_bits);
        const uint64_t number = static_cast<uint64_t>(key) - (distance << split.number_bits);
        out[i] = i < count ? distance << split.row_bits | (static_cast<uint64_t>(start) + number) : kNone;
      }
    }
    __syncwarp();
  }
}

ZB_DEVICE void split_key(uint64_t key, int row_bits, int32_t& distance, int64_t& row) {
  distance = static_cast<int32_t>(key >> row_bits);
  row = static_cast<int64_t>(key & ((uint64_t{1} << row_bits) - 1));
}

// Of `count` keys a query its k smallest, by a block a query: each warp of a share, the first of all.
constexpr int kMergeThreads = 256, kMergeWarps = kMergeThreads / 32;

__global__ void __launch_bounds__(kMergeThreads)
    merge(const uint64_t* __restrict__ keys, int64_t N, int64_t count, int k, int row_bits,
          int32_t* __restrict__ distances, int64_t* __restrict__ rows) {
  ZB_SHARED_ARRAY(uint64_t, lists, kMergeWarps* kMostKeys);
  ZB_SHARED_ARRAY(int, counts, kMergeWarps);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  uint64_t* const own = lists + warp * kMostKeys;
  for (int64_t n = blockIdx.x; n < N; n += gridDim.x) {
    int held = 0;
    uint64_t bound = kNone;
    const auto take = [&](uint64_t key) {
      const uint32_t votes = __ballot_sync(cuda::kWholeWarp, key < bound);
      if (key < bound) own[held + __popc(votes & ((1u << lane) - 1))] = key;
      held += __popc(votes);
      __syncwarp();
      if (held <= kMostKeys - 32) return;
      held = cut_to_k(own, held, k);
      if (held == k) bound = own[k - 1];
    };
    for (int64_t i = warp * 32; i < count; i += kMergeThreads)
      take(i + lane < count ? keys[n * count + i + lane] : kNone);
    held = cut_to_k(own, held, k);
    if (lane == 0) counts[warp] = held;
    __syncthreads();
    if (warp == 0) {
      for (int w = 1; w < kMergeWarps; ++w) {
        for (int i = 0; i < counts[w]; i += 32)
          take(i + lane < counts[w] ? lists[w * kMostKeys + i + lane] : kNone);
      }
      cut_to_k(own, held, k);
      for (int i = lane; i < k; i += 32) split_key(own[i], row_bits, distances[n * k + i], rows[n * k + i]);
    }
    __syncthreads();
  }
}

// keys [N, …, row_step apart] to what the op returns.
__global__ void __launch_bounds__(kMergeThreads)
    split_keys(const uint64_t* __restrict__ keys, int64_t N, int64_t row_step, int64_t k, int row_bits,
               int32_t* __restrict__ distances, int64_t* __restrict__ rows) {
  for (int64_t i = int64_t{blockIdx.x} * kMergeThreads + threadIdx.x; i < N * k;
       i += int64_t{gridDim.x} * kMergeThreads)
    split_key(keys[i / k * row_step + i % k], row_bits, distances[i], rows[i]);
}

template <class T>
T* write_at(const Tensor& t, int64_t first) {
  return static_cast<T*>(t.mutable_data_ptr()) + first;
}

Signatures rows_of(Signatures s, int64_t first, int64_t count) {
  s.data += first * s.row_step, s.rows = count;
  return s;
}

template <class Key>
void run_parts(const cuda::Place& place, const Signatures& q, const Signatures& db, const Split& split, int k,
               uint64_t* keys) {
  const size_t bytes = Lists<Key>::bytes(k);
  const int most = static_cast<int>(kMostShared / bytes), warps = most < kPairWarps ? most : kPairWarps;
  const auto kernel = kernel_for(q, db, [](auto chunks, auto pairs) {
    return nearest_of_parts<Key, decltype(chunks)::value, decltype(pairs)::value>;
  });
  cuda::launch(place, "nap_topk parts", kernel,
               cuda::pieces(cuda::pieces(q.rows, kTile) * split.parts, warps), 32 * warps, warps * bytes, q,
               db, split, k, bytes, keys);
}

// Up to kMostNearest neighbours.
void run_lists(const cuda::Place& place, const Pairs& p, int64_t k, const Signatures& q, const Signatures& db,
               Tensor& distances, Tensor& rows) {
  constexpr int64_t kQueries = 8192;  // of one launch: bounds the parts' lists
  constexpr int kLeastBits = 15;      // of a number within a part, for keys of 32 bits
  const int distance_bits = static_cast<int>(bits_of(64 * p.words)),
            row_bits = static_cast<int>(bits_of(p.M - 1));
  const int number_bits = distance_bits > 0 ? 32 - distance_bits : 31;
  const bool narrow = number_bits >= kLeastBits;
  const int64_t most = narrow ? int64_t{1} << number_bits : int64_t{1} << 32;
  const int64_t at_once = p.N < kQueries ? p.N : kQueries;
  Split split{0, rows_of_a_part(place, at_once, p.M, most), narrow ? number_bits : 32, row_bits};
  split.parts = cuda::pieces(p.M, split.part_rows);
  Tensor memory = empty_on(distances, {at_once, split.parts, k}, ScalarType::Long);
  for (int64_t n = 0; n < p.N; n += at_once) {
    const Signatures some = rows_of(q, n, p.N - n < at_once ? p.N - n : at_once);
    auto* const keys = write_at<uint64_t>(memory, 0);
    if (narrow) {
      run_parts<uint32_t>(place, some, db, split, static_cast<int>(k), keys);
    } else {
      run_parts<uint64_t>(place, some, db, split, static_cast<int>(k), keys);
    }
    cuda::launch(place, "nap_topk merge", merge, some.rows, kMergeThreads, 0, keys, some.rows,
                 split.parts * k, static_cast<int>(k), row_bits, write_at<int32_t>(distances, n * k),
                 write_at<int64_t>(rows, n * k));
  }
}

// Any number of neighbours: pieces of the table of keys in a bounded memory, of which torch keeps the
// smallest.
void run_pieces(const cuda::Place& place, const Pairs& p, int64_t k, const Signatures& q,
                const Signatures& db, Tensor& distances, Tensor& rows) {
  const int64_t kept_at_once = place.processors() << 17;  // keys, 1 MiB an SM
  const int row_bits = static_cast<int>(bits_of(p.M - 1));
  const int64_t most_rows = p.N < 64 ? p.N : 64;
  const int64_t least = 4 * k > kept_at_once / most_rows ? 4 * k : kept_at_once / most_rows;
  const int64_t columns = p.M < least ? p.M : least;
  int64_t at_once = kept_at_once / columns > 1 ? kept_at_once / columns : 1;
  if (p.N < at_once) at_once = p.N;
  for (int64_t n = 0; n < p.N; n += at_once) {
    const Signatures some = rows_of(q, n, p.N - n < at_once ? p.N - n : at_once);
    Tensor best;
    for (int64_t m = 0; m < p.M; m += columns) {
      const int64_t kept = m < k ? m : k, more = p.M - m < columns ? p.M - m : columns;
      Tensor keys = empty_on(distances, {some.rows, kept + more}, ScalarType::Long);
      if (kept > 0) {
        Tensor front = torch::stable::narrow(keys, 1, 0, kept);
        torch::stable::copy_(front, best);
      }
      all_pairs(place, some, rows_of(db, m, more),
                Table<uint64_t>{write_at<uint64_t>(keys, kept), kept + more, m, row_bits});
      best = aten::smallest(keys, kept + more < k ? kept + more : k);
    }
    cuda::launch(place, "nap_topk split keys", split_keys, cuda::pieces(some.rows * k, kMergeThreads),
                 kMergeThreads, 0, static_cast<const uint64_t*>(best.const_data_ptr()), some.rows,
                 best.stride(0), k, row_bits, write_at<int32_t>(distances, n * k),
                 write_at<int64_t>(rows, n * k));
  }
}

void topk(const Pairs& p, int64_t k, const Tensor& queries, const Tensor& database, Tensor& distances,
          Tensor& rows) {
  const cuda::Place place("nap_topk", queries);
  const Signatures q = signatures(queries), db = signatures(database);
  if (k <= kMostNearest) {
    run_lists(place, p, k, q, db, distances, rows);
    return note_kernel("nap_topk lists");
  }
  run_pieces(place, p, k, q, db, distances, rows);
  note_kernel("nap_topk pieces");
}

const Registration registration("CUDA", {ZB_NAP_TOPK(topk)});

}  // namespace
}  // namespace zb::nap
