// How often each class occurred in each pattern, exactly, at two bytes for a pattern that has one class.
#pragma once

#include <cstdint>
#include <vector>

#include "host/pages.h"

namespace zb {

// (pattern, label) -> count for the patterns that have more than one label, and the label of most of their
// examples. Counts only grow, so after each addition that label is the old one or the one that was added to.
class MixedCounts {
 public:
  struct Entry {
    uint64_t key;  // pattern << 16 | label
    uint64_t count;
  };

  void add(uint32_t pattern, uint16_t label, uint64_t count);
  uint64_t count(uint32_t pattern, uint16_t label) const;
  int64_t majority(uint32_t pattern) const;  // of equal counts the lowest label; -1: the pattern is not here
  std::vector<Entry> sorted() const;         // by pattern, then label
  int64_t size() const { return used_; }
  int64_t bytes() const { return static_cast<int64_t>(slots_.capacity() * sizeof(Entry)); }

 private:
  static constexpr uint16_t kMajority = 0xffff;  // in place of a label: `count` is the majority's label
  static constexpr uint64_t kEmpty = ~uint64_t{0};

  static uint64_t key_of(uint32_t pattern, uint16_t label) { return uint64_t{pattern} << 16 | label; }
  const Entry* look_up(uint64_t key) const;
  uint64_t& value(uint64_t key);

  std::vector<Entry> slots_;
  int64_t used_ = 0;
};

// One label of every example of every pattern: a pattern whose examples agree keeps the label alone (their
// number is the pattern's own count), others go to MixedCounts.
class LabelColumn {
 public:
  static constexpr int64_t kMostClasses = 0xfffe;
  static constexpr uint16_t kMixed = 0xffff;

  // What a pattern holds: 0 nothing yet, label + 1, or kMixed.
  Column<uint16_t> state;
  MixedCounts mixed;

  // Adds `count` examples with `label` to a pattern that had `before` examples.
  void add(uint32_t pattern, uint16_t label, uint64_t count, uint64_t before);
  uint64_t count(uint32_t pattern, uint16_t label, uint64_t examples) const;
  int64_t majority(uint32_t pattern) const;
};

}  // namespace zb
