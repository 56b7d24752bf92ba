// Signature -> pattern number: a hash table of five bytes a slot that is filled up to 15/16.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "host/pages.h"

namespace zb {

// The same on every machine and in every process: it is part of the file format, and shards merge by it.
// Equal hashes prove nothing here, words are always compared; made-up collisions cost time only.
// Not inlined: in its callers' loops GCC 12 passes the products through memory.
__attribute__((noinline)) inline uint64_t hash_words(const uint64_t* words, int64_t count) {
  __extension__ typedef unsigned __int128 Wide;
  uint64_t h = 0x9e3779b97f4a7c15u;
  for (int64_t i = 0; i < count; ++i) {
    const Wide product = static_cast<Wide>(h ^ words[i]) * 0xd6e8feb86659fd93u;
    h = static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
  h = (h ^ h >> 32) * 0xff51afd7ed558ccdu;
  return h ^ h >> 29;
}

// The top bits of a hash choose one of 64 parts of the table; a part belongs to one thread at a time, and
// what it holds depends on no other. Within it come groups of eight slots, probed one after another. A tag,
// one byte of the hash, spares all but one in 255 looks at the words of another pattern.
class NapTable {
 public:
  static constexpr int kParts = 64;
  struct Group {
    uint8_t tag[8];  // 0: empty
    uint32_t pattern[8];
  };
  static_assert(sizeof(Group) == 40, "the file format has groups of 40 bytes");

  NapTable() { clear(1); }

  // A table that lies in memory which lives longer than this.
  NapTable(Group* groups, int64_t per_part, const std::array<int64_t, kParts>& filled)
      : groups_(groups), per_part_(per_part), filled_(filled) {}

  static int part_of(uint64_t hash) { return static_cast<int>(hash >> 58); }
  static int64_t bytes(int64_t per_part) { return kParts * per_part * static_cast<int64_t>(sizeof(Group)); }

  // Groups a part for the fullest part to hold `patterns`: a fixed row of sizes, so that the same patterns
  // give the same table however they came. Steps of a quarter hold the least load, just after one, at 0.75.
  static int64_t groups_for(int64_t patterns) {
    int64_t groups = 1;
    while (patterns > groups * 15 / 2) groups += std::max<int64_t>(1, groups < 64 ? groups : groups / 4);
    return groups;
  }

  int64_t per_part() const { return per_part_; }
  const Group* groups() const { return groups_; }
  const std::array<int64_t, kParts>& filled() const { return filled_; }

  void prefetch(uint64_t hash) const { __builtin_prefetch(home(hash)); }

  // The first pattern whose tag fits, or -1: what find() will most probably look at.
  int64_t guess(uint64_t hash) const {
    const Group* group = home(hash);
    const uint64_t hit = zero_bytes(tags(*group) ^ repeated(tag_of(hash)));
    return hit ? int64_t{group->pattern[__builtin_ctzll(hit) / 8]} : -1;
  }

  // The pattern for which equal(pattern) holds, else -1.
  template <class Equal>
  int64_t find(uint64_t hash, const Equal& equal) const {
    const uint64_t tag = repeated(tag_of(hash));
    const Group* const first = part(hash);
    const Group* group = home(hash);
    for (int64_t probes = 0; probes < per_part_; ++probes) {
      const uint64_t found = tags(*group);
      for (uint64_t hit = zero_bytes(found ^ tag); hit; hit &= hit - 1) {
        const uint32_t pattern = group->pattern[__builtin_ctzll(hit) / 8];
        if (equal(pattern)) return pattern;
      }
      if (zero_bytes(found)) return -1;
      if (++group == first + per_part_) group = first;
    }
    return -1;
  }

  // Enters a pattern that is not there; its part must have room.
  void add(uint64_t hash, uint32_t pattern) {
    Group* const first = part(hash);
    Group* group = home(hash);
    uint64_t empty;
    while (!(empty = zero_bytes(tags(*group))))
      if (++group == first + per_part_) group = first;
    const int slot = __builtin_ctzll(empty) / 8;
    group->tag[slot] = tag_of(hash);
    group->pattern[slot] = pattern;
    ++filled_[static_cast<size_t>(part_of(hash))];
  }

  // Empties the table and gives it another size. The new memory is only asked for before the old one is given
  // back, not written, so the two are never resident together.
  void clear(int64_t per_part) {
    Pages pages = Pages::zeros(bytes(per_part), bytes(per_part) >= kLarge);
    pages_.swap(pages);
    groups_ = static_cast<Group*>(pages_.data());
    per_part_ = per_part;
    filled_ = {};
  }

 private:
  static constexpr int64_t kLarge = int64_t{8} << 20;

  static uint8_t tag_of(uint64_t hash) {
    const auto tag = static_cast<uint8_t>(hash);
    return tag ? tag : 255;
  }
  static uint64_t repeated(uint8_t byte) { return byte * 0x0101010101010101u; }
  static uint64_t tags(const Group& group) {
    uint64_t all;
    std::memcpy(&all, group.tag, 8);
    return all;
  }
  // The top bit of each byte that is 0. The lowest one set is right; a byte of 1 above it may be set too,
  // which costs a comparison and no more.
  static uint64_t zero_bytes(uint64_t x) { return (x - 0x0101010101010101u) & ~x & 0x8080808080808080u; }

  Group* part(uint64_t hash) const { return groups_ + part_of(hash) * per_part_; }
  Group* home(uint64_t hash) const {
    const uint64_t place = (hash >> 26) & 0xffffffffu;
    return part(hash) + static_cast<int64_t>(place * static_cast<uint64_t>(per_part_) >> 32);
  }

  Pages pages_;
  Group* groups_ = nullptr;
  int64_t per_part_ = 0;
  std::array<int64_t, kParts> filled_{};
};

}  // namespace zb
