// Merging.
#include <algorithm>
#include <mutex>
#include <stdexcept>

#include "host/nap_index.h"

namespace zb {

void NapIndex::merge(const NapIndex& other, int threads) {
  if (this == &other)
    throw std::invalid_argument("NapIndex.merge: an index cannot be merged into itself: merge a copy");
  std::unique_lock<std::shared_mutex> lock(mutex_, std::defer_lock);
  std::shared_lock<std::shared_mutex> other_lock(other.mutex_, std::defer_lock);
  std::lock(lock, other_lock);
  check_whole();
  other.check_whole();
  if (!(options_ == other.options_)) {
    const auto text = [](const Options& o) {
      return std::to_string(o.words) + " words, " + std::to_string(o.classes) + " classes, " +
             (o.predictions ? "predictions" : "no predictions") + ", " +
             (o.example_ids ? "all ids" : "first ids");
    };
    throw std::invalid_argument("NapIndex.merge: expected an index of " + text(options_) + ", got one of " +
                                text(other.options_));
  }
  check_sums("NapIndex.merge");
  other.check_sums("NapIndex.merge");

  Team team(std::min(threads, NapTable::kParts));
  Placement p;
  std::vector<int64_t> mine;  // the pattern here of each of the other's
  if (options_.example_ids) {
    ids_.reserve(examples_ + other.examples_), previous_.reserve(examples_ + other.examples_);
    mine.reserve(static_cast<size_t>(other.size_));
  }
  const auto labels = other.labels_.mixed.sorted(), predictions = other.predictions_.mixed.sorted();
  size_t next_label = 0, next_prediction = 0;
  broken_ = other.size_ > 0;
  const auto add = [](LabelColumn& to, const LabelColumn& from, const std::vector<MixedCounts::Entry>& mixed,
                      size_t& next, int64_t theirs, uint32_t pattern, uint64_t count, uint64_t before) {
    const uint16_t held = *from.state[theirs];
    if (held != LabelColumn::kMixed) return to.add(pattern, static_cast<uint16_t>(held - 1), count, before);
    for (; next < mixed.size() && static_cast<int64_t>(mixed[next].key >> 16) == theirs; ++next) {
      to.add(pattern, static_cast<uint16_t>(mixed[next].key), mixed[next].count, before);
      before += mixed[next].count;
    }
  };
  for (int64_t at = 0; at < other.size_; at += int64_t{1} << other.shift_) {
    const int64_t n = std::min(int64_t{1} << other.shift_, other.size_ - at);
    place(team, other.words_[at], n, p);
    for (int64_t r = 0; r < n; ++r) {
      const int64_t pattern = p.pattern[static_cast<size_t>(r)], theirs = at + r;
      const auto count = static_cast<uint64_t>(other.count_of(theirs));
      const auto before = static_cast<uint64_t>(count_of(pattern));
      const auto number = static_cast<uint32_t>(pattern);
      if (pattern >= p.known) set_first_id(pattern, other.first_id_of(theirs));
      if (options_.classes) {
        add(labels_, other.labels_, labels, next_label, theirs, number, count, before);
      }
      if (options_.predictions) {
        add(predictions_, other.predictions_, predictions, next_prediction, theirs, number, count, before);
      }
      add_count(pattern, count);
      if (options_.example_ids) mine.push_back(pattern);
    }
  }
  if (options_.example_ids) {
    // A pattern's examples follow those it had here. The other's patterns are numbered by their first
    // examples, which are those that none of their pattern comes before.
    auto next = mine.begin();
    for (int64_t e = 0; e < other.examples_; ++e) {
      const int64_t before = *other.previous_[e];
      *ids_[examples_ + e] = *other.ids_[e];
      *previous_[examples_ + e] = before ? examples_ + before : *last_[*next++];
    }
    for (int64_t i = 0; i < other.size_; ++i)
      *last_[mine[static_cast<size_t>(i)]] = examples_ + *other.last_[i];
  }
  examples_ += other.examples_;
  broken_ = false;
}

}  // namespace zb
