// Inserting and looking up.
//
// An insert takes rows in parts of 65,536. For each part
//   1. all rows are hashed;
//   2. each thread looks up the rows whose hashes lie in its parts of the table, in order, and finds which of
//      the unknown ones are the same;
//   3. the new patterns are numbered in the order of their first rows, by one thread, which also makes room;
//   4. each thread enters its new patterns and counts its rows.
// The table is divided by the hash alone, so which thread did what never shows in the result.
//
// A pattern of w words takes 8 w bytes, 4 for its count, 4 for its first id (6 from 2^32 on), 2 for its label
// if there are classes, and 5.3 to 6.7 of the table: 1.24 to 1.3 times a signature of 512 bits. Labels are
// exact without a count for each class: where all examples of a pattern have one label, its count is the
// pattern's; the counts of other patterns, and only theirs, are in a table beside, in slots of 16 bytes (one
// a label and one for the majority) that is three eighths to three quarters full.
// Nothing is copied when the index grows, but the table, which is made anew in a size a quarter larger once
// the old one is given back. So the peak is what stands at the end and what an insert works in, about 5 MiB
// on two threads.
//
// Tried and left (one thread, 4 million distinct rows of 512 bits, a busy Zen 4): taking a part's rows, or a
// new table's patterns, piece by piece of the table, so that a cache holds it, was 0.7 to 0.8 times as fast.
#include "host/nap_index.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <stdexcept>

namespace zb {

namespace {

constexpr int kTogether = 32;  // look-ups that wait for memory at the same time

[[noreturn]] void refuse(const std::string& text) { throw std::invalid_argument(text); }

// Chunks of signatures of about 4 MiB.
int shift_for(int64_t words) {
  int shift = 16;
  while (shift > 6 && (8 * words) << shift > int64_t{4} << 20) --shift;
  return shift;
}

void check_labels(const char* name, const int64_t* labels, const NapIndex::Batch& batch, bool kept,
                  int64_t classes) {
  if (!kept) {
    if (labels) {
      refuse(std::string("NapIndex.insert: got ") + name + ", but this index was made without them");
    }
    return;
  }
  if (!labels) refuse(std::string("NapIndex.insert: this index needs ") + name + ", got none");
  for (int64_t i = 0; i < batch.n; ++i)
    if (labels[i] < 0 || labels[i] >= classes) {
      refuse(std::string("NapIndex.insert: expected ") + name + " from 0 to " + std::to_string(classes - 1) +
             ", got " + std::to_string(labels[i]) + " in row " + std::to_string(i));
    }
}

}  // namespace

NapIndex::NapIndex(const Options& options)
    : options_(options), shift_(shift_for(options.words)), words_(options.words, shift_) {
  if (options.words < 1 || options.words > kMostWords) {
    refuse("NapIndex: expected 1 to " + std::to_string(kMostWords) + " words a signature, got " +
           std::to_string(options.words));
  }
  if (options.classes < 0 || options.classes > LabelColumn::kMostClasses) {
    refuse("NapIndex: expected 0 to " + std::to_string(LabelColumn::kMostClasses) + " classes, got " +
           std::to_string(options.classes));
  }
  if (options.predictions && options.classes == 0)
    refuse("NapIndex: predictions need classes, got 0 of them");
  if (options.start < 0 || options.start >= kEndOfIds) {
    refuse("NapIndex: expected a start from 0 to 2^48 - 1, got " + std::to_string(options.start));
  }
}

int64_t NapIndex::size() const {
  std::shared_lock<std::shared_mutex> lock(mutex_);
  return size_;
}

int64_t NapIndex::examples() const {
  std::shared_lock<std::shared_mutex> lock(mutex_);
  return examples_;
}

void NapIndex::check_whole() const {
  if (broken_)
    throw std::runtime_error("NapIndex: memory ran out within an earlier change, this index is lost");
}

void NapIndex::check(const Batch& batch) const {
  check_labels("labels", batch.labels, batch, options_.classes > 0, options_.classes);
  check_labels("predictions", batch.predictions, batch, options_.predictions, options_.classes);
  if (!batch.ids && batch.n > kEndOfIds - options_.start - examples_) {
    refuse("NapIndex.insert: ids end at 2^48 - 1");
  }
  for (int64_t i = 0; batch.ids && i < batch.n; ++i)
    if (batch.ids[i] < 0 || batch.ids[i] >= kEndOfIds) {
      refuse("NapIndex.insert: expected ids from 0 to 2^48 - 1, got " + std::to_string(batch.ids[i]) +
             " in row " + std::to_string(i));
    }
}

int64_t NapIndex::count_of(int64_t pattern) const {
  const int64_t low = *counts_[pattern];
  if (carries_.empty()) return low;
  const auto carry = carries_.find(static_cast<uint32_t>(pattern));
  return carry == carries_.end() ? low : low + (int64_t{carry->second} << 32);
}

void NapIndex::add_count(int64_t pattern, uint64_t count) {
  const uint64_t now = static_cast<uint64_t>(count_of(pattern)) + count;
  *counts_[pattern] = static_cast<uint32_t>(now);
  if (now >> 32) carries_[static_cast<uint32_t>(pattern)] = static_cast<uint32_t>(now >> 32);
}

int64_t NapIndex::first_id_of(int64_t pattern) const {
  return *first_low_[pattern] | int64_t{*first_high_[pattern]} << 32;
}

void NapIndex::set_first_id(int64_t pattern, int64_t id) {
  *first_low_[pattern] = static_cast<uint32_t>(id);
  if (id >> 32) *first_high_[pattern] = static_cast<uint16_t>(id >> 32);
}

bool NapIndex::same_words(const uint64_t* a, const uint64_t* b) const {
  return std::memcmp(a, b, static_cast<size_t>(options_.words) * 8) == 0;
}

// found[i] = the pattern of rows[i], or -1. The memory of all rows is asked for before any of it is used.
void NapIndex::look_up(const uint64_t* const* rows, const uint64_t* hashes, int m, int64_t* found) const {
  for (int i = 0; i < m; ++i) table_.prefetch(hashes[i]);
  for (int i = 0; i < m; ++i) {
    const int64_t guess = table_.guess(hashes[i]);
    if (guess >= 0 && guess < size_) __builtin_prefetch(words_[guess]);
  }
  // A pattern beyond the end can only come of a damaged file that was not verified.
  for (int i = 0; i < m; ++i)
    found[i] = table_.find(
        hashes[i], [&](uint32_t pattern) { return pattern < size_ && same_words(words_[pattern], rows[i]); });
}

void NapIndex::find(const uint64_t* rows, int64_t n, int threads, int64_t* found) const {
  std::shared_lock<std::shared_mutex> lock(mutex_);
  check_whole();
  Team team(threads);
  team.run(n, [&](int thread, int of) {
    const auto [begin, end] = share(n, thread, of);
    const uint64_t* row[kTogether];
    uint64_t hash[kTogether];
    for (int64_t at = begin; at < end; at += kTogether) {
      const int m = static_cast<int>(std::min<int64_t>(kTogether, end - at));
      for (int i = 0; i < m; ++i) {
        row[i] = rows + (at + i) * options_.words;
        hash[i] = hash_words(row[i], options_.words);
      }
      look_up(row, hash, m, found + at);
    }
  });
}

// Step 2: the known patterns of the rows of a share, and ~r for a new one that row r is the first to have.
void NapIndex::look_up_rows(const uint64_t* rows, Placement& p, Placement::Share& share) const {
  const auto row_of = [&](uint32_t r) { return rows + r * options_.words; };
  const uint64_t* row[kTogether];
  uint64_t hash[kTogether];
  int64_t found[kTogether];
  uint32_t* const mine = share.rows.data();
  const auto count = static_cast<int64_t>(share.rows.size());
  int64_t unknown = 0;
  for (int64_t at = 0; at < count; at += kTogether) {
    const int m = static_cast<int>(std::min<int64_t>(kTogether, count - at));
    for (int i = 0; i < m; ++i) row[i] = row_of(mine[at + i]), hash[i] = p.hash[mine[at + i]];
    look_up(row, hash, m, found);
    for (int i = 0; i < m; ++i) p.pattern[mine[at + i]] = found[i], unknown += found[i] < 0;
  }
  size_t slots = 64;
  while (static_cast<int64_t>(slots) < 2 * unknown) slots *= 2;
  std::fill_n(share.seen.begin(), slots, uint32_t{0});  // else a row + 1
  for (const uint32_t r : share.rows) {
    if (p.pattern[r] >= 0) continue;
    size_t i = p.hash[r] >> 16 & (slots - 1);
    const auto other = [&] { return share.seen[i] - 1; };
    while (share.seen[i] && !(p.hash[other()] == p.hash[r] && same_words(row_of(other()), row_of(r))))
      i = (i + 1) & (slots - 1);
    if (!share.seen[i]) share.seen[i] = r + 1;
    p.pattern[r] = ~int64_t{other()};
  }
}

// Room for `more` patterns in each part of the table, and for their columns.
void NapIndex::make_room(Team& team, const std::array<int64_t, NapTable::kParts>& more) {
  int64_t fullest = 0, total = size_;
  for (size_t i = 0; i < more.size(); ++i) {
    fullest = std::max(fullest, table_.filled()[i] + more[i]);
    total += more[i];
  }
  if (total > kMostPatterns) refuse("NapIndex.insert: an index holds at most 2^32 - 2 patterns");
  words_.reserve(total), counts_.reserve(total), first_low_.reserve(total), first_high_.reserve(total);
  if (options_.classes) labels_.state.reserve(total);
  if (options_.predictions) predictions_.state.reserve(total);
  if (options_.example_ids) last_.reserve(total);

  const int64_t groups = std::max(table_.per_part(), NapTable::groups_for(fullest));
  if (groups == table_.per_part()) return;
  std::vector<uint64_t> hash(static_cast<size_t>(std::min(size_, kPart)));
  table_.clear(groups);
  for (int64_t at = 0; at < size_; at += kPart) {
    const int64_t n = std::min(kPart, size_ - at);
    team.run(n, [&](int thread, int of) {
      const auto [begin, end] = share(n, thread, of);
      for (int64_t i = begin; i < end; ++i)
        hash[static_cast<size_t>(i)] = hash_words(words_[at + i], options_.words);
    });
    team.run(n, [&](int thread, int of) {
      const auto [begin, end] = share(NapTable::kParts, thread, of);
      uint32_t mine[kTogether];
      int m = 0;
      const auto enter = [&] {
        for (int i = 0; i < m; ++i) table_.add(hash[mine[i]], static_cast<uint32_t>(at + mine[i]));
        m = 0;
      };
      for (int64_t i = 0; i < n; ++i) {
        const uint64_t h = hash[static_cast<size_t>(i)];
        if (NapTable::part_of(h) < begin || NapTable::part_of(h) >= end) continue;
        table_.prefetch(h);
        mine[m++] = static_cast<uint32_t>(i);
        if (m == kTogether) enter();
      }
      enter();
    });
  }
}

// Finds or makes the pattern of each row: p.pattern, all >= 0. New patterns have their words and no more.
void NapIndex::place(Team& team, const uint64_t* rows, int64_t n, Placement& p) {
  const auto count = static_cast<size_t>(n);
  p.known = size_;
  p.hash.resize(count), p.pattern.resize(count), p.fresh.clear();
  team.run(n, [&](int thread, int of) {
    const auto [begin, end] = share(n, thread, of);
    for (int64_t r = begin; r < end; ++r)
      p.hash[static_cast<size_t>(r)] = hash_words(rows + r * options_.words, options_.words);
    if (thread == 0) p.threads = of;
  });
  size_t slots = 64;
  while (slots < 2 * count) slots *= 2;
  for (int thread = 0; thread < p.threads; ++thread) {
    Placement::Share& share = p.shares[static_cast<size_t>(thread)];
    share.rows.resize(count);
    if (share.seen.size() < slots) share.seen.resize(slots);
  }
  team.run(n, [&](int thread, int of) {
    const auto [begin, end] = share(NapTable::kParts, thread, of);
    Placement::Share& share = p.shares[static_cast<size_t>(thread)];
    size_t m = 0;
    for (size_t r = 0; r < count; ++r) {  // without a branch, which would be taken at random
      const int part = NapTable::part_of(p.hash[r]);
      share.rows[m] = static_cast<uint32_t>(r);
      m += part >= begin && part < end;
    }
    share.rows.resize(m);
    look_up_rows(rows, p, share);
  });

  const size_t notes = 1 + 2 * (options_.classes > 0) + 2 * options_.predictions;  // a row's, at most
  for (int thread = 0; thread < p.threads; ++thread) {
    Placement::Share& share = p.shares[static_cast<size_t>(thread)];
    share.notes.clear();
    share.notes.reserve(notes * share.rows.size());  // threads must not run out of memory
  }
  std::array<int64_t, NapTable::kParts> more{};
  for (size_t r = 0; r < count; ++r) {
    int64_t& pattern = p.pattern[r];
    if (pattern >= 0) continue;
    const auto first = static_cast<size_t>(~pattern);
    if (first == r) {
      pattern = p.known + static_cast<int64_t>(p.fresh.size());
      p.fresh.push_back(static_cast<uint32_t>(r));
      ++more[static_cast<size_t>(NapTable::part_of(p.hash[r]))];
    } else {
      pattern = p.pattern[first];
    }
  }
  if (!p.fresh.empty()) make_room(team, more);
  broken_ = true;  // until the rows are counted
  if (p.fresh.empty()) return;
  team.run(n, [&](int thread, int) {
    const std::vector<uint32_t>& mine = p.shares[static_cast<size_t>(thread)].rows;
    for (size_t i = 0; i < mine.size(); ++i) {
      if (i + 8 < mine.size()) table_.prefetch(p.hash[mine[i + 8]]);
      const int64_t pattern = p.pattern[mine[i]];
      if (pattern < p.known || p.fresh[static_cast<size_t>(pattern - p.known)] != mine[i]) continue;
      table_.add(p.hash[mine[i]], static_cast<uint32_t>(pattern));
      std::memcpy(words_[pattern], rows + mine[i] * options_.words, static_cast<size_t>(options_.words) * 8);
    }
  });
  size_ += static_cast<int64_t>(p.fresh.size());
}

// Counts the rows of a share. What more than one thread would write is noted.
void NapIndex::count_rows(const Batch& batch, int64_t at, const Placement& p, Placement::Share& share) {
  const auto note = [&](LabelColumn& column, uint32_t pattern, int64_t label, uint32_t before,
                        Note::What what) {
    uint16_t& held = *column.state[pattern];
    const auto one = static_cast<uint16_t>(label + 1);
    if (held == 0) held = one;
    if (held == one) return;
    if (held != LabelColumn::kMixed) {
      share.notes.push_back({pattern, static_cast<uint16_t>(held - 1), what, true, before});
      held = LabelColumn::kMixed;
    }
    share.notes.push_back({pattern, static_cast<uint16_t>(label), what, false, 1});
  };
  for (const uint32_t r : share.rows) {
    const auto pattern = static_cast<uint32_t>(p.pattern[r]);
    const int64_t example = examples_ + r;
    const int64_t id = batch.ids ? batch.ids[at + r] : options_.start + example;
    uint32_t& count = *counts_[pattern];
    if (pattern >= p.known && p.fresh[static_cast<size_t>(pattern - p.known)] == r) set_first_id(pattern, id);
    if (batch.labels) note(labels_, pattern, batch.labels[at + r], count, Note::kLabel);
    if (batch.predictions) note(predictions_, pattern, batch.predictions[at + r], count, Note::kPrediction);
    if (++count == 0) share.notes.push_back({pattern, 0, Note::kCarry, false, 0});
    if (options_.example_ids) {
      *ids_[example] = id;
      *previous_[example] = *last_[pattern];
      *last_[pattern] = example + 1;
    }
  }
}

void NapIndex::apply(const std::vector<Note>& notes) {
  for (const Note& note : notes) {
    if (note.what == Note::kCarry) {
      ++carries_[note.pattern];
      continue;
    }
    uint64_t count = note.count;
    if (note.all_before) {
      const auto carry = carries_.find(note.pattern);
      if (carry != carries_.end()) count += uint64_t{carry->second} << 32;
    }
    (note.what == Note::kLabel ? labels_ : predictions_).mixed.add(note.pattern, note.label, count);
  }
}

void NapIndex::insert(const Batch& batch, int threads, int64_t* found) {
  std::unique_lock<std::shared_mutex> lock(mutex_);
  check_whole();
  check(batch);
  check_sums("NapIndex.insert");
  Team team(std::min(threads, NapTable::kParts));
  Placement p;
  for (int64_t at = 0; at < batch.n; at += kPart) {
    const int64_t n = std::min(kPart, batch.n - at);
    if (options_.example_ids) ids_.reserve(examples_ + n), previous_.reserve(examples_ + n);
    place(team, batch.rows + at * options_.words, n, p);
    team.run(n, [&](int thread, int) { count_rows(batch, at, p, p.shares[static_cast<size_t>(thread)]); });
    for (int thread = 0; thread < p.threads; ++thread) apply(p.shares[static_cast<size_t>(thread)].notes);
    if (found) std::copy(p.pattern.begin(), p.pattern.end(), found + at);
    examples_ += n;
    broken_ = false;
  }
}

}  // namespace zb
