// The activation patterns that were met, each once, in the order of first appearance, and what is known of
// each. nap_index.cpp inserts and looks up, nap_index_merge.cpp merges, nap_index_query.cpp answers
// questions, nap_index_file.cpp saves and loads (the format is described there), nap_index_python.cpp is
// Python's side.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "host/nap_labels.h"
#include "host/nap_table.h"
#include "host/pages.h"
#include "host/team.h"

namespace zb {

class NapIndex {
 public:
  struct Options {
    int64_t words;             // of a signature
    int64_t classes = 0;       // labels are 0 ... classes - 1; 0: examples have none
    bool predictions = false;  // examples have predicted labels too
    bool example_ids = false;  // keep the ids of all examples, not only of the first
    int64_t start = 0;         // id of the first example, where none are given

    // Of what two indexes must share to be merged.
    bool operator==(const Options& other) const {
      return words == other.words && classes == other.classes && predictions == other.predictions &&
             example_ids == other.example_ids;
    }
  };
  struct Batch {
    const uint64_t* rows;  // [n, words]
    int64_t n;
    const int64_t* labels = nullptr;       // [n], if there are classes
    const int64_t* predictions = nullptr;  // [n], if they are kept
    const int64_t* ids = nullptr;          // [n]; null: start + number of examples before
  };

  static constexpr int64_t kMostPatterns = 0xfffffffe;
  static constexpr int64_t kMostWords = int64_t{1} << 25;  // 2^31 bits, as for the ops
  static constexpr int64_t kEndOfIds = int64_t{1} << 48;

  explicit NapIndex(const Options& options);

  const Options& options() const { return options_; }
  int64_t size() const;
  int64_t examples() const;

  // Bad values raise std::invalid_argument before anything changes. found (if not null): each row's pattern.
  void insert(const Batch& batch, int threads, int64_t* found);
  // Each row's pattern, -1 where it is not in the index.
  void find(const uint64_t* rows, int64_t n, int threads, int64_t* found) const;
  // As if the other's examples had been inserted now, in the other's order.
  void merge(const NapIndex& other, int threads);

  // Of `n` patterns, or of the first n where `which` is null.
  void signatures(const int64_t* which, int64_t n, uint64_t* out) const;  // [n, words]
  void counts(const int64_t* which, int64_t n, int64_t* out) const;
  void first_ids(const int64_t* which, int64_t n, int64_t* out) const;
  enum class Kind { kLabels, kPredictions };
  // The label of most examples, of equals the lowest; and how many examples have it.
  void majority(Kind kind, const int64_t* which, int64_t n, int64_t* label, int64_t* shared) const;
  void class_counts(Kind kind, const int64_t* which, int64_t n, int64_t* out) const;  // [n, classes]
  std::vector<int64_t> example_ids(int64_t pattern) const;                            // as they came
  std::vector<int64_t> top(int64_t k) const;  // by count, largest first; of equals the earlier pattern
  // Runs of signatures that lie dense in memory, in order. They stay while the index lives.
  std::vector<std::pair<uint64_t*, int64_t>> blocks() const;
  int64_t bytes() const;  // of memory in use, a mapped file's included

  // Writes a file's bytes: write(data, bytes, offset), the header last.
  using Write = std::function<void(const void*, int64_t, int64_t)>;
  void save(const Write& write) const;
  int64_t file_bytes() const;  // what save() would write now
  // Takes over a file's bytes. Without `verify` the checksums of its sections are left to verify().
  // function and name are for the messages of std::invalid_argument.
  static std::unique_ptr<NapIndex> load(Pages file, int64_t bytes, bool verify, const std::string& function,
                                        const std::string& name);
  // Throws std::invalid_argument if a section of the file does not match its checksum; looks once.
  void verify() const;

 private:
  // Rows are taken in parts of this many: what a part needs besides stays in the caches.
  static constexpr int64_t kPart = 1 << 16;

  // A change to what threads may not change side by side.
  struct Note {
    enum What : uint8_t { kCarry, kLabel, kPrediction };
    uint32_t pattern;
    uint16_t label;
    What what;
    bool all_before;  // `count` are all of the pattern's examples so far, modulo 2^32
    uint32_t count;
  };
  // What is known of a part's rows while it is being inserted.
  struct Placement {
    struct Share {                 // of a thread
      std::vector<uint32_t> rows;  // whose hashes are in its parts of the table, in order
      std::vector<uint32_t> seen;  // a hash table of those of them that are new
      std::vector<Note> notes;
    };
    int64_t known;                 // patterns before
    std::vector<uint64_t> hash;    // [n]
    std::vector<int64_t> pattern;  // [n]; ~r: row r of this part, the first with a new pattern
    std::vector<uint32_t> fresh;   // the rows with new patterns, in order
    std::array<Share, NapTable::kParts> shares;
    int threads = 1;
  };

  void check(const Batch& batch) const;
  void check_whole() const;
  void check_sums(const std::string& function) const;
  void check_patterns(const char* function, const int64_t* which, int64_t n) const;
  int64_t count_of(int64_t pattern) const;
  int64_t first_id_of(int64_t pattern) const;
  void set_first_id(int64_t pattern, int64_t id);
  bool same_words(const uint64_t* a, const uint64_t* b) const;
  void look_up(const uint64_t* const* rows, const uint64_t* hashes, int m, int64_t* found) const;

  void place(Team& team, const uint64_t* rows, int64_t n, Placement& placement);
  void look_up_rows(const uint64_t* rows, Placement& placement, Placement::Share& share) const;
  void make_room(Team& team, const std::array<int64_t, NapTable::kParts>& more);
  void count_rows(const Batch& batch, int64_t at, const Placement& placement, Placement::Share& share);
  void apply(const std::vector<Note>& notes);
  void add_count(int64_t pattern, uint64_t count);
  const LabelColumn& column_of(Kind kind) const { return kind == Kind::kLabels ? labels_ : predictions_; }

  Options options_;
  int shift_;  // a chunk has 2^shift rows
  int64_t size_ = 0;
  int64_t examples_ = 0;
  bool broken_ = false;  // memory ran out in the middle of a change

  Pages file_;  // where columns lie that were loaded
  std::string file_name_;
  mutable std::atomic<bool> verified_{true};

  NapTable table_;
  Column<uint64_t> words_;
  Column<uint32_t> counts_;               // modulo 2^32
  std::map<uint32_t, uint32_t> carries_;  // pattern -> how often 2^32 besides
  Column<uint32_t> first_low_;            // ids have 48 bits; the high ones take memory once there are any
  Column<uint16_t> first_high_;
  LabelColumn labels_, predictions_;
  // All ids, if kept: each example's and, from 1, the place of the one before it in its pattern (0: none);
  // and the place of each pattern's last.
  Column<int64_t> ids_, previous_, last_;

  mutable std::shared_mutex mutex_;
};

}  // namespace zb
