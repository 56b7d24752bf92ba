// How fast this processor counts bits: the ceiling that benches hold nap_topk and nap_hamming to.
#include "common/parallel.h"
#include "nap/cpu/loops.h"

// Counts the bits of 2048 words in the first cache, `repeats` times on each of torch's threads; returns
// how many words were counted.
extern "C" __attribute__((visibility("default"))) int64_t zb_cpu_count_bits(int64_t repeats) {
  const auto count_bits = zb::nap::distance_loops().count_bits;
  std::atomic<int64_t> words{0};
  zb::parallel_tasks(zb::thread_count(), [&](int64_t) {
    alignas(64) uint64_t buffer[2048] = {};
    for (int64_t i = 0; i < repeats; ++i) {
      buffer[0] = static_cast<uint64_t>(i);  // so that no count can be left out as done before
      if (count_bits(buffer, 2048) >= 0) words += 2048;
    }
  });
  return words;
}
