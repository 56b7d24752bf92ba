#include "conv_relu_pool/cpu/packed_weights.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <list>
#include <mutex>

#include "common/parallel.h"

namespace zb::conv_relu_pool::cpu {
namespace {

constexpr int64_t kLeastBytes = 1 << 10;  // of a weight: a smaller one is packed in no time
constexpr int64_t kDefaultMegabytes = 256;

// All that the layout and the values of packed weights depend on, beside the weight's bytes.
using Key = std::array<int64_t, 18>;

Key key_of(const Kernels& kernels, const Call& c) {
  return {static_cast<int64_t>(reinterpret_cast<intptr_t>(&kernels)),
          static_cast<int64_t>(c.algorithm),
          static_cast<int64_t>(c.element),
          c.K,
          c.Cg,
          c.groups,
          c.kernel[0],
          c.kernel[1],
          c.w_strides[0],
          c.w_strides[1],
          c.w_strides[2],
          c.w_strides[3],
          c.fold,
          c.filter,
          c.points,
          c.shift[0],
          c.shift[1],
          c.weight_bytes};
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, Free>;

Memory allocate(int64_t bytes) {
  return Memory(std::aligned_alloc(64, (static_cast<size_t>(bytes) + 63) / 64 * 64));
}

struct Entry {
  Key key;
  const void* address;  // where the weight was last seen: looked at first, and replaced when it changes
  int64_t bytes;        // of the weight
  Memory weight, packed;
  int64_t size() const { return bytes + key.back(); }
};

// Most recently used first.
struct Cache {
  std::mutex mutex;
  std::list<std::shared_ptr<Entry>> entries;
  int64_t size = 0;
  const int64_t limit = [] {
    const char* text = std::getenv("ZBKERNELS_WEIGHT_CACHE_MB");
    char* end = nullptr;
    const int64_t megabytes = text ? std::strtoll(text, &end, 10) : kDefaultMegabytes;
    const bool number = end && end != text && *end == '\0' && megabytes >= 0;
    return std::min(number ? megabytes : kDefaultMegabytes, int64_t{1} << 40) << 20;
  }();
  std::atomic<int64_t> hits{0}, misses{0};
};

// Never destroyed: threads may still run while the process ends.
Cache& cache() {
  static Cache* const one = new Cache;
  return *one;
}

bool same_bytes(const void* a, const void* b, int64_t bytes) {
  constexpr int64_t kPiece = 128 << 10;
  if (bytes <= kPiece || std::memcmp(a, b, 4096) != 0)
    return std::memcmp(a, b, static_cast<size_t>(bytes)) == 0;
  std::atomic<bool> same{true};
  parallel_for(0, bytes, kPiece, [&](int64_t begin, int64_t end) {
    const auto *p = static_cast<const char*>(a), *q = static_cast<const char*>(b);
    if (std::memcmp(p + begin, q + begin, static_cast<size_t>(end - begin)) != 0) same = false;
  });
  return same;
}

int64_t weight_count(const Call& c) { return c.K * c.Cg * c.kernel[0] * c.kernel[1]; }

// Whether the elements fill their stretch of memory, in any order of the dimensions.
bool is_dense(const Call& c) {
  const int64_t sizes[4] = {c.K, c.Cg, c.kernel[0], c.kernel[1]};
  int64_t span = 1;
  for (int d = 0; d < 4; ++d) span += (sizes[d] - 1) * c.w_strides[d];
  return span == weight_count(c);
}

int64_t bytes_of(Element element) {
  return element == Element::kDouble ? 8 : element == Element::kFloat ? 4 : 2;
}

PackedWeights in_use(const std::shared_ptr<Entry>& entry, Call& call) {
  call.packed_weight = entry->packed.get();
  return entry;
}

}  // namespace

void pack_weights(const Kernels& kernels, const Call& call) {
  parallel_for(0, call.weight_units, 16, [&](int64_t begin, int64_t end) { kernels.pack(call, begin, end); });
}

PackedWeights find_packed_weights(const Kernels& kernels, Call& call) {
  Cache& all = cache();
  const int64_t bytes = weight_count(call) * bytes_of(call.element);
  if (bytes < kLeastBytes || bytes + call.weight_bytes > all.limit / 2 || !is_dense(call)) return nullptr;
  const Key key = key_of(kernels, call);
  const void* address = call.weight;

  // Only ever tried: a thread that would have to wait packs for itself, and so does the child of a fork whose
  // parent was in here. Comparing reads entries that nobody changes, so it needs no lock.
  std::list<std::shared_ptr<Entry>> candidates;
  {
    const std::unique_lock<std::mutex> lock(all.mutex, std::try_to_lock);
    if (!lock) return nullptr;
    for (const auto& entry : all.entries) {
      if (entry->key != key) continue;
      entry->address == address ? candidates.push_front(entry) : candidates.push_back(entry);
    }
  }
  std::shared_ptr<Entry> found;
  for (const auto& entry : candidates) {
    if (same_bytes(entry->weight.get(), address, bytes)) {
      found = entry;
      break;
    }
  }
  if (found) {
    all.hits.fetch_add(1, std::memory_order_relaxed);
    const std::unique_lock<std::mutex> lock(all.mutex, std::try_to_lock);
    if (lock) {
      const auto at = std::find(all.entries.begin(), all.entries.end(), found);
      if (at != all.entries.end()) all.entries.splice(all.entries.begin(), all.entries, at);
    }
    return in_use(found, call);
  }

  all.misses.fetch_add(1, std::memory_order_relaxed);
  const auto entry =
      std::make_shared<Entry>(Entry{key, address, bytes, allocate(bytes), allocate(call.weight_bytes)});
  if (!entry->weight || !entry->packed) return nullptr;
  // From the copy: should somebody write to the weight meanwhile, the entry still holds together.
  std::memcpy(entry->weight.get(), address, static_cast<size_t>(bytes));
  Call from_copy = call;
  from_copy.weight = entry->weight.get(), from_copy.packed_weight = entry->packed.get();
  pack_weights(kernels, from_copy);

  const std::unique_lock<std::mutex> lock(all.mutex, std::try_to_lock);
  if (!lock) return in_use(entry, call);
  if (!candidates.empty() && candidates.front()->address == address) {  // the weight has changed
    const auto old = candidates.front();
    all.entries.remove_if([&](const auto& e) { return e == old && (all.size -= e->size(), true); });
  }
  all.entries.push_front(entry);
  all.size += entry->size();
  while (all.size > all.limit) {
    all.size -= all.entries.back()->size();
    all.entries.pop_back();
  }
  return in_use(entry, call);
}

}  // namespace zb::conv_relu_pool::cpu

#define ZB_EXPORT extern "C" __attribute__((visibility("default")))

// What the cache of packed weights has done: hits, misses, entries and bytes held.
ZB_EXPORT void zb_cpu_weight_cache(int64_t* counts) {
  auto& all = zb::conv_relu_pool::cpu::cache();
  const std::lock_guard<std::mutex> lock(all.mutex);
  counts[0] = all.hits, counts[1] = all.misses;
  counts[2] = static_cast<int64_t>(all.entries.size()), counts[3] = all.size;
}

ZB_EXPORT void zb_cpu_clear_weight_cache() {
  auto& all = zb::conv_relu_pool::cpu::cache();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.entries.clear();
  all.size = all.hits = all.misses = 0;
}
