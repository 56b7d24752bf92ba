// nap_frequency on the CPU: threads over runs of rows and blocks of words; frequency.inc has the loop.
#include <mutex>

#include "common/parallel.h"
#include "common/register.h"
#include "nap/cpu/loops.h"
#include "nap/nap.h"

namespace zb::nap {
namespace {

constexpr int64_t kBlockWords = 128;      // whose counters a cache holds
constexpr int64_t kGroupsPerFlush = 255;  // what a byte counts
constexpr int64_t kLeastTask = 1 << 14;   // words that pay for a task's own counts

// Adds how often each bit of a block of `words` words is on in `count` rows to counts[words][64].
void count_rows(const FrequencyLoops& loops, const uint64_t* rows, int64_t stride, int64_t count,
                int64_t words, int64_t* counts) {
  static thread_local Arena state_memory, copy_memory;
  const int64_t group_rows = loops.group_rows(words), group_words = group_rows * words;
  void* state = state_memory.get(loops.state_bytes(words));
  auto* copy = static_cast<uint64_t*>(copy_memory.get(8 * group_words));
  std::memset(state, 0, static_cast<size_t>(loops.state_bytes(words)));
  int64_t groups = 0;
  const bool dense = stride == words || group_rows == 16;
  for (int64_t n = 0; n < count; n += group_rows) {
    const int64_t here = std::min(count - n, group_rows);
    if (dense && here == group_rows) {
      loops.count_group(rows + n * stride, stride, words, state);
    } else {
      for (int64_t r = 0; r < here; ++r) {
        std::memcpy(copy + r * words, rows + (n + r) * stride, static_cast<size_t>(8 * words));
      }
      std::memset(copy + here * words, 0, static_cast<size_t>(8 * (group_rows - here) * words));
      loops.count_group(copy, words, words, state);
    }
    if (++groups == kGroupsPerFlush) loops.flush(state, words, false, counts), groups = 0;
  }
  loops.flush(state, words, true, counts);
}

void frequency(const Rows& rows, const Tensor& any, Tensor& out) {
  const Tensor sig = with_dense_rows(any);
  const int64_t stride = row_stride(sig);
  const auto* from = static_cast<const uint64_t*>(sig.const_data_ptr());
  auto* counts = static_cast<int64_t*>(out.mutable_data_ptr());
  std::memset(counts, 0, static_cast<size_t>(8 * rows.F));
  const FrequencyLoops loops = frequency_loops();
  // Sums of whole numbers: neither the runs nor the order in which they end can change them.
  const int64_t blocks = ceil_div(rows.words, kBlockWords);
  const int64_t wanted = ceil_div(4 * thread_count(), blocks);
  const int64_t most = ceil_div(rows.N * std::min(rows.words, kBlockWords), kLeastTask);
  const int64_t runs = thread_count() == 1 ? 1 : std::max<int64_t>(1, std::min(wanted, most));
  const int64_t run_rows = ceil_div(ceil_div(rows.N, runs), 128) * 128;
  std::mutex adding;
  parallel_tasks(rows.N > 0 ? blocks * runs : 0, [&](int64_t task) {
    const int64_t word = task / runs * kBlockWords, row = task % runs * run_rows;
    const int64_t words = std::min(kBlockWords, rows.words - word);
    if (row >= rows.N) return;
    static thread_local Arena memory;
    auto* own = static_cast<int64_t*>(memory.get(8 * 64 * kBlockWords));
    std::memset(own, 0, static_cast<size_t>(8 * 64 * words));
    count_rows(loops, from + row * stride + word, stride, std::min(run_rows, rows.N - row), words, own);
    const int64_t bits = std::min(64 * words, rows.F - 64 * word);
    const std::lock_guard<std::mutex> lock(adding);
    for (int64_t j = 0; j < bits; ++j) counts[64 * word + j] += own[j];
  });
  ZB_NAP_NOTE("nap_frequency");
}

const Registration registration("CPU", {ZB_NAP_FREQUENCY(frequency)});

}  // namespace
}  // namespace zb::nap
