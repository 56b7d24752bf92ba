// Threads, over torch's own pool (so torch.set_num_threads holds, and no second pool competes for the cores).
#pragma once

#include <torch/csrc/stable/ops.h>

#if defined(__unix__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>
#if defined(ZB_OWN_THREADS)
#include <thread>
#include <vector>
#endif

namespace zb {

#if defined(ZB_OWN_THREADS)
// For ThreadSanitizer, which does not see the barriers of torch's pool: that one is not instrumented.
inline int64_t thread_count() { return 3; }

template <class Body>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const Body& body) {
  thread_local bool within = false;
  const int64_t most = (end - begin + std::max<int64_t>(grain, 1) - 1) / std::max<int64_t>(grain, 1);
  const int64_t parts = within ? 1 : std::min(thread_count(), most);
  if (parts == 1) body(begin, end);
  if (parts <= 1) return;
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < parts; ++i) {
    const int64_t from = begin + (end - begin) * i / parts, to = begin + (end - begin) * (i + 1) / parts;
    threads.emplace_back([&body, from, to] {
      within = true;
      body(from, to);
    });
  }
  for (std::thread& t : threads) t.join();
}
#else
// body(begin, end) over parts of [begin, end) of at least `grain`; parts run at the same time.
template <class Body>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const Body& body) {
  if (begin < end) torch::stable::parallel_for(begin, end, grain, body);
}

inline int64_t thread_count() { return std::max<int64_t>(1, torch::stable::get_num_threads()); }
#endif

// body(task) for every task of [0, tasks). Tasks are handed out one at a time, so that a core which something
// else is using holds nobody up; no result may depend on which thread runs a task.
template <class Body>
void parallel_tasks(int64_t tasks, const Body& body) {
  std::atomic<int64_t> next{0};
  parallel_for(0, std::min(tasks, thread_count()), 1, [&](int64_t, int64_t) {
    for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) body(task);
  });
}

// Memory that a thread keeps from call to call (fresh pages cost more than many a kernel), aligned to a page.
// What is larger than kKept is given back by release(). It comes from the system and not from the C library's
// heap: there a buffer that grows between a network's activations leaves holes that nothing else fits.
class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() { give_back(); }

  void* get(int64_t bytes) {
    if (bytes > size_) {
      give_back();
      const size_t whole = (static_cast<size_t>(bytes) + 4095) / 4096 * 4096;
#if defined(__unix__)
      void* fresh = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      data_ = fresh == MAP_FAILED ? nullptr : fresh;
#else
      data_ = std::aligned_alloc(4096, whole);
#endif
      if (!data_) throw std::bad_alloc();
      size_ = static_cast<int64_t>(whole);
    }
    return data_;
  }

  void release() {
    if (size_ > kKept) give_back();
  }

 private:
  void give_back() {
    if (!data_) return;
#if defined(__unix__)
    munmap(data_, static_cast<size_t>(size_));
#else
    std::free(data_);
#endif
    data_ = nullptr, size_ = 0;
  }

  static constexpr int64_t kKept = int64_t{64} << 20;
  void* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace zb
