#include "host/nap_labels.h"

#include <algorithm>

namespace zb {

namespace {

uint64_t scattered(uint64_t key) {
  key = (key ^ key >> 32) * 0xd6e8feb86659fd93u;
  return key ^ key >> 32;
}

}  // namespace

const MixedCounts::Entry* MixedCounts::look_up(uint64_t key) const {
  const size_t mask = slots_.size() - 1;
  if (slots_.empty()) return nullptr;
  for (size_t i = scattered(key) & mask;; i = (i + 1) & mask) {
    if (slots_[i].key == key) return &slots_[i];
    if (slots_[i].key == kEmpty) return nullptr;
  }
}

uint64_t& MixedCounts::value(uint64_t key) {
  if (const Entry* entry = look_up(key)) return const_cast<Entry*>(entry)->count;
  if (4 * (used_ + 1) > 3 * static_cast<int64_t>(slots_.size())) {
    std::vector<Entry> larger(std::max<size_t>(64, 2 * slots_.size()), Entry{kEmpty, 0});
    slots_.swap(larger);
    used_ = 0;
    for (const Entry& entry : larger)
      if (entry.key != kEmpty) value(entry.key) = entry.count;
  }
  const size_t mask = slots_.size() - 1;
  size_t i = scattered(key) & mask;
  while (slots_[i].key != kEmpty) i = (i + 1) & mask;
  slots_[i] = {key, 0};
  ++used_;
  return slots_[i].count;
}

void MixedCounts::add(uint32_t pattern, uint16_t label, uint64_t count) {
  const uint64_t now = value(key_of(pattern, label)) += count;
  const Entry* known = look_up(key_of(pattern, kMajority));
  if (known) {
    const auto best = static_cast<uint16_t>(known->count);
    const uint64_t most = this->count(pattern, best);
    if (now < most || (now == most && label >= best)) return;
  }
  value(key_of(pattern, kMajority)) = label;
}

uint64_t MixedCounts::count(uint32_t pattern, uint16_t label) const {
  const Entry* entry = look_up(key_of(pattern, label));
  return entry ? entry->count : 0;
}

int64_t MixedCounts::majority(uint32_t pattern) const {
  const Entry* entry = look_up(key_of(pattern, kMajority));
  return entry ? static_cast<int64_t>(entry->count) : -1;
}

std::vector<MixedCounts::Entry> MixedCounts::sorted() const {
  std::vector<Entry> entries;
  for (const Entry& entry : slots_)
    if (entry.key != kEmpty && static_cast<uint16_t>(entry.key) != kMajority) entries.push_back(entry);
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.key < b.key; });
  return entries;
}

void LabelColumn::add(uint32_t pattern, uint16_t label, uint64_t count, uint64_t before) {
  uint16_t& held = *state[pattern];
  const auto one = static_cast<uint16_t>(label + 1);
  if (held == 0) held = one;
  if (held == one) return;
  if (held != kMixed) {
    mixed.add(pattern, static_cast<uint16_t>(held - 1), before);
    held = kMixed;
  }
  mixed.add(pattern, label, count);
}

uint64_t LabelColumn::count(uint32_t pattern, uint16_t label, uint64_t examples) const {
  const uint16_t held = *state[pattern];
  if (held == kMixed) return mixed.count(pattern, label);
  return held == label + 1 ? examples : 0;
}

int64_t LabelColumn::majority(uint32_t pattern) const {
  const uint16_t held = *state[pattern];
  return held == kMixed ? mixed.majority(pattern) : int64_t{held} - 1;
}

}  // namespace zb
