// nap_group on a GPU: a table of hashes finds equal rows, and compares words; a prefix sum numbers groups.
//
// Floor: one read of the words, and a write of the numbers. The table adds to that: each row claims or meets
// an entry (24 bytes a row, in a cache of 50 MB up to 2 million rows), reads the row that has claimed it, and
// enters its number as the first of its group. Which row claims an entry depends on the order in which
// threads run; nothing of the result does: the groups are those of equal words, the first row is a maximum,
// and the counts are sums of integers.
//
// Ladder
//   1  insert, count the first rows, number them, look up. Predicted for a million rows of 512 bits on an
//      H100: 0.2 ms, of which 0.02 ms are the read of the words. Not yet run on a card.
#include "common/last_kernel.h"
#include "common/register.h"
#include "nap/cuda/signatures.h"

namespace zb::nap {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kSteps = 8;                     // of a warp, in numbering
constexpr int kTileRows = kThreads * kSteps;  // of a block

// One entry of the table; cleared memory is empty.
struct alignas(16) Entry {
  // The hash's highest bits, above 1 + the row that has claimed the entry; later the number of the group.
  unsigned long long row;
  unsigned long long first;  // N - the first row of the group
};

struct Table {
  Entry* entries;
  int64_t size;
  int row_bits;

  // Where the search of a hash begins: its share of the table.
  ZB_DEVICE int64_t home(uint64_t hash) const {
    return static_cast<int64_t>(static_cast<unsigned __int128>(hash) * static_cast<uint64_t>(size) >> 64);
  }
  ZB_DEVICE unsigned long long entry(uint64_t hash, int64_t n) const {
    return hash >> row_bits << row_bits | static_cast<uint64_t>(n + 1);
  }
  ZB_DEVICE bool may_be_equal(unsigned long long a, unsigned long long b) const {
    return a >> row_bits == b >> row_bits;
  }
  ZB_DEVICE int64_t row(unsigned long long entry) const {
    return static_cast<int64_t>(entry & ((1ull << row_bits) - 1)) - 1;
  }
};

// Whether two rows are equal, to all of their `lanes`. The whole warp must call; rows of lanes that do not
// ask count as equal.
template <bool PAIRS>
ZB_DEVICE bool equal_rows(const Signatures& sig, bool asks, int64_t n, int64_t m, int lanes) {
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  uint64_t differ = 0;
  if (asks) {
    const uint64_t *const x = sig.data + n * sig.row_step, *const y = sig.data + m * sig.row_step;
#pragma unroll 4
    for (int64_t word = 2 * lane; word < sig.words; word += 2 * lanes) {
      Pair<PAIRS> a, b;
      a.load(sig, x, word), b.load(sig, y, word);
      differ |= (a.v[0] ^ b.v[0]) | (a.v[1] ^ b.v[1]);
    }
  }
  const uint32_t votes = __ballot_sync(cuda::kWholeWarp, differ != 0);
  const uint32_t own = lanes == 32 ? cuda::kWholeWarp : (1u << lanes) - 1;
  return (votes >> threadIdx.x % 32 / lanes * lanes & own) == 0;
}

// Finds or makes the entry of each row: entry_of[n].
template <bool PAIRS>
__global__ void __launch_bounds__(kThreads, PAIRS ? 4 : 3)
    insert_rows(Signatures sig, int lanes, Table table, int64_t* __restrict__ entry_of) {
  const int at_once = kThreads / lanes, own = static_cast<int>(threadIdx.x) / lanes;
  const int leader = static_cast<int>(threadIdx.x) % 32 / lanes * lanes;
  const bool leads = static_cast<int>(threadIdx.x) % 32 == leader;
  for (int64_t start = int64_t{blockIdx.x} * at_once; start < sig.rows;
       start += int64_t{gridDim.x} * at_once) {
    const int64_t n = start + own;
    const bool live = n < sig.rows;
    const uint64_t hash =
        hash_row<PAIRS>(sig, sig.data + (live ? n * sig.row_step : 0), live ? sig.words : 0, lanes).a;
    const unsigned long long mine = table.entry(hash, n);
    int64_t at = table.home(hash);
    bool open = live;
    while (__any_sync(cuda::kWholeWarp, open)) {
      unsigned long long found = 0;
      if (open && leads) {
        auto* const entry = &table.entries[at].row;
        found = cuda::load_relaxed(reinterpret_cast<const uint64_t*>(entry));
        if (found == 0) found = atomicCAS(entry, 0ull, mine);
      }
      found = __shfl_sync(cuda::kWholeWarp, found, leader);
      const bool met = open && found != 0, alike = met && table.may_be_equal(found, mine);
      const bool equal = equal_rows<PAIRS>(sig, alike, n, table.row(found), lanes);
      if (open && (!met || (alike && equal))) {
        open = false;
      } else if (open && ++at == table.size) {
        at = 0;
      }
    }
    if (!live || !leads) continue;
    entry_of[n] = at;
    auto* const first = &table.entries[at].first;
    const auto behind = static_cast<unsigned long long>(sig.rows - n);
    // Most rows of a large group need not write.
    if (cuda::load_relaxed(reinterpret_cast<const uint64_t*>(first)) < behind) atomicMax(first, behind);
  }
}

// The rows kSteps * 32 from `start` on that are the first of their group, 32 in each of the votes; their
// number.
ZB_DEVICE int vote_for_firsts(const Table& table, const int64_t* entry_of, int64_t start, int64_t N,
                              uint32_t (&votes)[kSteps]) {
  int total = 0;
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const int64_t n = start + 32 * s + threadIdx.x % 32;
    const bool is_first = n < N && table.entries[entry_of[n]].first == static_cast<unsigned long long>(N - n);
    votes[s] = __ballot_sync(cuda::kWholeWarp, is_first);
    total += __popc(votes[s]);
  }
  return total;
}

ZB_DEVICE int64_t warp_start(int64_t tile) { return tile * kTileRows + threadIdx.x / 32 * (kSteps * 32); }

// counts[tile]: how many first rows each tile has.
__global__ void __launch_bounds__(kThreads)
    count_firsts(Table table, const int64_t* __restrict__ entry_of, int64_t N, int64_t tiles,
                 int64_t* __restrict__ counts) {
  ZB_SHARED_ARRAY(int, sums, kWarps);
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    uint32_t votes[kSteps];
    const int total = vote_for_firsts(table, entry_of, warp_start(tile), N, votes);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = total;
    __syncthreads();
    if (threadIdx.x == 0) {
      int64_t sum = 0;
      for (int w = 0; w < kWarps; ++w) sum += sums[w];
      counts[tile] = sum;
    }
    __syncthreads();
  }
}

// counts [tiles + 1] becomes the sums of all before, by one warp.
__global__ void __launch_bounds__(32) add_up(int64_t* __restrict__ counts, int64_t tiles) {
  const int lane = static_cast<int>(threadIdx.x);
  int64_t before = 0;
  for (int64_t start = 0; start <= tiles; start += 32) {
    const int64_t i = start + lane;
    const int64_t count = i < tiles ? counts[i] : 0;
    int64_t sum = count;
    for (int d = 1; d < 32; d *= 2) {
      const int64_t left = __shfl_up_sync(cuda::kWholeWarp, sum, d);
      if (lane >= d) sum += left;
    }
    if (i <= tiles) counts[i] = before + sum - count;
    before += __shfl_sync(cuda::kWholeWarp, sum, 31);
  }
}

// Numbers the groups in the order of their first rows. The number of a group goes where its row was.
__global__ void __launch_bounds__(kThreads)
    number_firsts(Table table, const int64_t* __restrict__ entry_of, int64_t N, int64_t tiles,
                  const int64_t* __restrict__ before, int64_t* __restrict__ first) {
  ZB_SHARED_ARRAY(int, sums, kWarps);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    uint32_t votes[kSteps];
    const int64_t start = warp_start(tile);
    const int total = vote_for_firsts(table, entry_of, start, N, votes);
    if (lane == 0) sums[warp] = total;
    __syncthreads();
    int64_t number = before[tile];
    for (int w = 0; w < warp; ++w) number += sums[w];
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int64_t n = start + 32 * s + lane;
      if (votes[s] >> lane & 1) {
        const int64_t own = number + __popc(votes[s] & ((1u << lane) - 1));
        first[own] = n;
        table.entries[entry_of[n]].row = static_cast<unsigned long long>(own);
      }
      number += __popc(votes[s]);
    }
    __syncthreads();
  }
}

// ids holds entries and becomes the groups' numbers. Lanes of one group count as one.
__global__ void __launch_bounds__(kThreads)
    look_up(Table table, int64_t N, int64_t* __restrict__ ids, unsigned long long* __restrict__ counts) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int64_t start = int64_t{blockIdx.x} * kThreads; start < N; start += int64_t{gridDim.x} * kThreads) {
    const int64_t n = start + threadIdx.x;
    const bool live = n < N;
    const int64_t id = live ? static_cast<int64_t>(table.entries[ids[n]].row) : -1;
    if (live) ids[n] = id;
    const uint32_t same = __match_any_sync(cuda::kWholeWarp, id);
    const bool lowest = (same & ((1u << lane) - 1)) == 0;
    if (live && lowest) atomicAdd(counts + id, static_cast<unsigned long long>(__popc(same)));
  }
}

Groups group(const Rows& rows, const Tensor& words) {
  const cuda::Place place("nap_group", words);
  place.refuse_capture("the size of its result depends on the data, which a graph can't hold");
  const Signatures sig = signatures(words);
  const int64_t N = rows.N, size = N + N / 2 + 1, tiles = cuda::pieces(N, kTileRows);
  Tensor memory = empty_on(words, {size, 2}, ScalarType::Long);
  place.clear(memory, size * static_cast<int64_t>(sizeof(Entry)));
  const Table table{static_cast<Entry*>(memory.mutable_data_ptr()), size, static_cast<int>(bits_of(N))};
  Tensor ids = empty_on(words, {N}, ScalarType::Long);
  auto* const entry_of = static_cast<int64_t*>(ids.mutable_data_ptr());
  const int lanes = lanes_of_a_row(sig);
  cuda::launch(place, "nap_group insert", in_pairs(sig) ? insert_rows<true> : insert_rows<false>,
               cuda::pieces(N, kThreads / lanes), kThreads, 0, sig, lanes, table, entry_of);

  Tensor before = empty_on(words, {tiles + 1}, ScalarType::Long);
  auto* const sums = static_cast<int64_t*>(before.mutable_data_ptr());
  cuda::launch(place, "nap_group count", count_firsts, tiles, kThreads, 0, table, entry_of, N, tiles, sums);
  cuda::launch(place, "nap_group add up", add_up, 1, 32, 0, sums, tiles);
  Tensor total = torch::stable::narrow(before, 0, tiles, 1);
  const int64_t groups = place.wait_for(total);

  Tensor first = empty_on(words, {groups}, ScalarType::Long);
  Tensor counts = empty_on(words, {groups}, ScalarType::Long);
  place.clear(counts, groups * static_cast<int64_t>(sizeof(int64_t)));
  cuda::launch(place, "nap_group number", number_firsts, tiles, kThreads, 0, table, entry_of, N, tiles, sums,
               static_cast<int64_t*>(first.mutable_data_ptr()));
  cuda::launch(place, "nap_group look up", look_up, cuda::pieces(N, kThreads), kThreads, 0, table, N,
               entry_of, static_cast<unsigned long long*>(counts.mutable_data_ptr()));
  note_kernel("nap_group table");
  return {ids, first, counts};
}

const Registration registration("CUDA", {ZB_NAP_GROUP(group)});

}  // namespace
}  // namespace zb::nap
