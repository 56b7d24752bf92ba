// Threads for the length of one call. None outlives it, so a process may fork between calls.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace zb {

class Team {
 public:
  explicit Team(int threads) : wanted_(std::max(1, threads)) {}
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  ~Team() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      body_ = nullptr;
      ++generation_;
    }
    start_.notify_all();
    for (std::thread& t : threads_) t.join();
  }

  // body(thread, threads) on every thread at once; returns when all have returned. It must not throw. Threads
  // start at the first work that is worth them; runs over the same number of items have the same threads.
  template <class Body>
  void run(int64_t items, const Body& body) {
    if (items < kWorthThreads || wanted_ == 1) {
      body(0, 1);
      return;
    }
    start();
    const int threads = static_cast<int>(threads_.size()) + 1;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      body_ = [&body, threads](int thread) { body(thread, threads); };
      busy_ = threads - 1;
      ++generation_;
    }
    start_.notify_all();
    body(0, threads);
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return busy_ == 0; });
  }

 private:
  static constexpr int64_t kWorthThreads = 4096;

  void start() {
    if (!threads_.empty()) return;
    threads_.reserve(static_cast<size_t>(wanted_ - 1));
    try {
      while (static_cast<int>(threads_.size()) < wanted_ - 1) {
        const int thread = static_cast<int>(threads_.size()) + 1;
        threads_.emplace_back([this, thread] { serve(thread); });
      }
    } catch (const std::system_error&) {
      wanted_ = static_cast<int>(threads_.size()) + 1;  // the system gives no more: fewer do the same work
    }
  }

  void serve(int thread) {
    for (int64_t seen = 0;;) {
      std::function<void(int)> body;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        start_.wait(lock, [&] { return generation_ != seen; });
        seen = generation_;
        body = body_;
      }
      if (!body) return;
      body(thread);
      std::lock_guard<std::mutex> lock(mutex_);
      if (--busy_ == 0) done_.notify_one();
    }
  }

  int wanted_;
  int busy_ = 0;
  int64_t generation_ = 0;
  std::function<void(int)> body_;
  std::mutex mutex_;
  std::condition_variable start_, done_;
  std::vector<std::thread> threads_;
};

// [first, second): the share of `thread` in [0, items).
inline std::pair<int64_t, int64_t> share(int64_t items, int thread, int threads) {
  return {items * thread / threads, items * (thread + 1) / threads};
}

}  // namespace zb
