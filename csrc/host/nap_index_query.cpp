// What an index knows of its patterns.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <queue>
#include <stdexcept>

#include "host/nap_index.h"

namespace zb {

namespace {

using Reading = std::shared_lock<std::shared_mutex>;

int64_t at(const int64_t* which, int64_t i) { return which ? which[i] : i; }

}  // namespace

void NapIndex::check_patterns(const char* function, const int64_t* which, int64_t n) const {
  check_whole();
  for (int64_t i = 0; i < n; ++i)
    if (at(which, i) < 0 || at(which, i) >= size_) {
      throw std::out_of_range(std::string("NapIndex.") + function + ": expected patterns from 0 to " +
                              std::to_string(size_ - 1) + ", got " + std::to_string(at(which, i)));
    }
}

void NapIndex::signatures(const int64_t* which, int64_t n, uint64_t* out) const {
  const Reading lock(mutex_);
  check_patterns("signatures", which, n);
  for (int64_t i = 0; i < n; ++i)
    std::memcpy(out + i * options_.words, words_[at(which, i)], static_cast<size_t>(options_.words) * 8);
}

void NapIndex::counts(const int64_t* which, int64_t n, int64_t* out) const {
  const Reading lock(mutex_);
  check_patterns("counts", which, n);
  for (int64_t i = 0; i < n; ++i) out[i] = count_of(at(which, i));
}

void NapIndex::first_ids(const int64_t* which, int64_t n, int64_t* out) const {
  const Reading lock(mutex_);
  check_patterns("first_ids", which, n);
  for (int64_t i = 0; i < n; ++i) out[i] = first_id_of(at(which, i));
}

void NapIndex::majority(Kind kind, const int64_t* which, int64_t n, int64_t* label, int64_t* shared) const {
  const Reading lock(mutex_);
  check_patterns(kind == Kind::kLabels ? "labels" : "predictions", which, n);
  const LabelColumn& column = column_of(kind);
  for (int64_t i = 0; i < n; ++i) {
    const auto pattern = static_cast<uint32_t>(at(which, i));
    label[i] = column.majority(pattern);
    const auto all = static_cast<uint64_t>(count_of(pattern));
    shared[i] = static_cast<int64_t>(column.count(pattern, static_cast<uint16_t>(label[i]), all));
  }
}

void NapIndex::class_counts(Kind kind, const int64_t* which, int64_t n, int64_t* out) const {
  const Reading lock(mutex_);
  check_patterns(kind == Kind::kLabels ? "class_counts" : "prediction_counts", which, n);
  const LabelColumn& column = column_of(kind);
  for (int64_t i = 0; i < n; ++i) {
    const auto pattern = static_cast<uint32_t>(at(which, i));
    const auto all = static_cast<uint64_t>(count_of(pattern));
    for (int64_t label = 0; label < options_.classes; ++label)
      *out++ = static_cast<int64_t>(column.count(pattern, static_cast<uint16_t>(label), all));
  }
}

std::vector<int64_t> NapIndex::example_ids(int64_t pattern) const {
  const Reading lock(mutex_);
  check_patterns("example_ids", &pattern, 1);
  std::vector<int64_t> found;
  // In a damaged file that was not verified the chain may lead anywhere: no further than back.
  for (int64_t place = *last_[pattern], end = examples_ + 1; place > 0 && place < end;) {
    found.push_back(*ids_[place - 1]);
    end = place;
    place = *previous_[place - 1];
  }
  std::reverse(found.begin(), found.end());
  return found;
}

std::vector<int64_t> NapIndex::top(int64_t k) const {
  const Reading lock(mutex_);
  check_whole();
  using Entry = std::pair<int64_t, int64_t>;  // count, ~pattern: larger is better
  std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> best;
  for (int64_t i = 0; i < size_ && k > 0; ++i) {
    const Entry entry{count_of(i), ~i};
    if (static_cast<int64_t>(best.size()) == k) {
      if (entry < best.top()) continue;
      best.pop();
    }
    best.push(entry);
  }
  std::vector<int64_t> patterns;
  for (; !best.empty(); best.pop()) patterns.push_back(~best.top().second);
  std::reverse(patterns.begin(), patterns.end());
  return patterns;
}

std::vector<std::pair<uint64_t*, int64_t>> NapIndex::blocks() const {
  const Reading lock(mutex_);
  check_whole();
  std::vector<std::pair<uint64_t*, int64_t>> found;
  words_.pieces(size_, [&](const uint64_t* data, int64_t rows) {
    found.emplace_back(const_cast<uint64_t*>(data), rows);
  });
  return found;
}

int64_t NapIndex::bytes() const {
  const Reading lock(mutex_);
  int64_t row = 8 * options_.words + 4 + 4 + 2;  // ids: as if all had their high part
  row += 2 * (options_.classes > 0) + 2 * options_.predictions + 8 * options_.example_ids;
  return size_ * row + NapTable::bytes(table_.per_part()) + labels_.mixed.bytes() +
         predictions_.mixed.bytes() + (options_.example_ids ? 16 * examples_ : 0);
}

}  // namespace zb
