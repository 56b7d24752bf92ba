// Saving an index and loading it.
//
// Format 1, little-endian. Header, 960 bytes:
//     0  8 bytes      "ZBNAPIDX"
//     8  u64          version of the format: 1
//    16  u64          length of the file in bytes
//    24  u64          words of a signature
//    32  u64          classes, 0: no labels
//    40  u64          bit 0: predictions are kept, bit 1: the ids of all examples
//    48  u64          patterns P
//    56  u64          examples E
//    64  u64          id of the first example, where ids are counted
//    72  u64          groups in each of the 64 parts of the hash table, G
//    80  u64[64]      patterns in each part
//   592  {u64 offset, u64 bytes, u64 checksum}[14]   the sections below, in this order
//   928  u64[3]       0
//   952  u64          checksum of the 952 bytes before
// Sections follow one another, each from a multiple of 64 bytes on and filled with zeros to the next; its
// checksum is of the filled section, so that every byte of the file is under one. What an index does not keep
// is a section of no bytes.
//     words        u64 [P, words]       signatures, in the order of first appearance
//     counts       u32 [P]              examples of each, modulo 2^32
//     first ids    u32 [P], u16 [P]     lower and upper bits
//     labels       u16 [P]              0: none; 1 + label; 65535: several, counted below
//     predictions  u16 [P]              the same
//     table        Group [64, G]        nap_table.h: 8 tags and 8 patterns each; hash_words is part of the
//     format carries      {u64 pattern, u64 times 2^32}              of counts from 2^32 on, ascending label
//     counts, prediction counts   {u64 pattern << 16 | label, u64 count}, ascending ids          i64 [E] of
//     all examples, as they came previous     i64 [E]              1 + place in ids of the pattern's example
//     before, 0: none last         i64 [P]              1 + place in ids of the pattern's last example
// The same patterns inserted in the same order give the same file, byte for byte, whatever the batches, the
// number of threads and the merges (indexes of successive parts merged in their order) that made them.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <type_traits>

#include "host/nap_index.h"

namespace zb {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the file's columns are used in place");

namespace {

constexpr int64_t kAlign = 64;
constexpr uint64_t kVersion = 1;
constexpr char kMagic[9] = "ZBNAPIDX";
constexpr size_t kSections = 14;

enum Place : size_t {
  kWords,
  kCounts,
  kFirstLow,
  kFirstHigh,
  kLabels,
  kPredictions,
  kTable,
  kCarries,
  kLabelCounts,
  kPredictionCounts,
  kIds,
  kPrevious,
  kLast,
  kUnused,
};
constexpr const char* kNames[kSections] = {
    "words", "counts",  "first ids",    "first ids, upper bits", "labels", "predictions",
    "table", "carries", "label counts", "prediction counts",     "ids",    "previous",
    "last",  "unused"};

struct Extent {
  uint64_t offset, bytes, checksum;
};

struct Header {
  char magic[8];
  uint64_t version, file_bytes, words, classes, flags, patterns, examples, start, groups;
  uint64_t filled[NapTable::kParts];
  Extent sections[kSections];
  uint64_t zeros[3];
  uint64_t checksum;
};
static_assert(sizeof(Header) == 960 && sizeof(Header) % kAlign == 0, "as documented");

int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// Four sums side by side. Each step is a bijection of the sum and of the word, so that a change within any
// eight bytes always changes the result.
class Checksum {
 public:
  // What is no multiple of 64 bytes counts as if zeros followed.
  void add(const void* data, int64_t bytes) {
    const char* p = static_cast<const char*>(data);
    for (; bytes >= kAlign; p += kAlign, bytes -= kAlign) block(p);
    if (bytes > 0) {
      char filled[kAlign] = {};
      std::memcpy(filled, p, static_cast<size_t>(bytes));
      block(filled);
    }
  }
  uint64_t value() const {
    uint64_t all = 0;
    for (const uint64_t sum : sums_) all = step(all, sum);
    return all;
  }

 private:
  static uint64_t step(uint64_t sum, uint64_t word) {
    sum = (sum ^ word) * 0xd6e8feb86659fd93u;
    return sum ^ sum >> 32;
  }
  void block(const char* p) {
    uint64_t word[8];
    std::memcpy(word, p, sizeof word);
    for (int i = 0; i < 8; ++i) sums_[i & 3] = step(sums_[i & 3], word[i]);
  }
  uint64_t sums_[4] = {1, 2, 3, 4};
};

uint64_t checksum(const void* data, int64_t bytes) {
  Checksum sum;
  sum.add(data, bytes);
  return sum.value();
}

int64_t bytes_of(const std::vector<MixedCounts::Entry>& entries) {
  return 16 * static_cast<int64_t>(entries.size());
}

[[noreturn]] void refuse(const std::string& text) { throw std::invalid_argument(text); }

// The lengths that sections must have, -1 where any number of entries of 16 bytes will do.
std::array<int64_t, kSections> lengths(const Header& h) {
  const auto patterns = static_cast<int64_t>(h.patterns), examples = static_cast<int64_t>(h.examples);
  const bool labels = h.classes > 0, predictions = h.flags & 1, ids = h.flags & 2;
  return {static_cast<int64_t>(h.words) * 8 * patterns,
          4 * patterns,
          4 * patterns,
          2 * patterns,
          labels ? 2 * patterns : 0,
          predictions ? 2 * patterns : 0,
          NapTable::bytes(static_cast<int64_t>(h.groups)),
          -1,
          labels ? -1 : 0,
          predictions ? -1 : 0,
          ids ? 8 * examples : 0,
          ids ? 8 * examples : 0,
          ids ? 8 * patterns : 0,
          0};
}

void check_header(const std::string& before, const char* file, int64_t bytes) {
  if (bytes < 16 || std::memcmp(file, kMagic, 8) != 0) refuse(before + "this is no file of a NapIndex");
  Header h;
  std::memcpy(&h.version, file + 8, 8);
  if (h.version != kVersion) {
    refuse(before + "expected format version " + std::to_string(kVersion) + ", got " +
           std::to_string(h.version));
  }
  if (bytes < static_cast<int64_t>(sizeof h)) {
    refuse(before + "the file is cut off within its header, after " + std::to_string(bytes) + " bytes");
  }
  std::memcpy(&h, file, sizeof h);
  if (h.checksum != checksum(&h, offsetof(Header, checksum))) {
    refuse(before + "the header does not match its checksum: the file is damaged");
  }
  if (h.file_bytes != static_cast<uint64_t>(bytes)) {
    refuse(before + "expected " + std::to_string(h.file_bytes) + " bytes, got " + std::to_string(bytes) +
           (h.file_bytes > static_cast<uint64_t>(bytes) ? ": the file is cut off"
                                                        : ": something was added to it"));
  }
  // A header that was made up must not lead out of the file either.
  const auto most = static_cast<uint64_t>(bytes);
  uint64_t patterns = 0;
  bool sound = h.words >= 1 && h.words <= uint64_t{NapIndex::kMostWords} &&
               h.classes <= uint64_t{LabelColumn::kMostClasses} && h.flags <= 3 &&
               !(h.classes == 0 && (h.flags & 1)) && h.patterns <= most / (8 * h.words) &&
               h.examples <= uint64_t{NapIndex::kEndOfIds} && h.start < uint64_t{NapIndex::kEndOfIds} &&
               h.groups >= 1 && h.groups <= most / NapTable::bytes(1);
  for (const uint64_t filled : h.filled) {
    sound = sound && filled <= h.groups * 15 / 2;
    patterns += filled;
  }
  sound = sound && patterns == h.patterns;
  uint64_t offset = sizeof h;
  const auto wanted = sound ? lengths(h) : std::array<int64_t, kSections>{};
  for (size_t i = 0; sound && i < kSections; ++i) {
    const Extent& e = h.sections[i];
    sound = e.offset == offset && e.bytes <= most - offset &&
            (wanted[i] < 0 ? e.bytes % 16 == 0 : e.bytes == static_cast<uint64_t>(wanted[i]));
    offset += static_cast<uint64_t>(aligned(static_cast<int64_t>(e.bytes)));
    sound = sound && offset <= most;
  }
  if (!sound || offset != most) refuse(before + "the header contradicts itself: the file is damaged");
}

}  // namespace

void NapIndex::save(const Write& write) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  check_whole();
  check_sums("NapIndex.save");
  Header h{};
  std::memcpy(h.magic, kMagic, 8);
  h.version = kVersion;
  h.words = static_cast<uint64_t>(options_.words);
  h.classes = static_cast<uint64_t>(options_.classes);
  h.flags = uint64_t{options_.predictions} | uint64_t{options_.example_ids} << 1;
  h.patterns = static_cast<uint64_t>(size_);
  h.examples = static_cast<uint64_t>(examples_);
  h.start = static_cast<uint64_t>(options_.start);
  h.groups = static_cast<uint64_t>(table_.per_part());
  std::copy(table_.filled().begin(), table_.filled().end(), h.filled);

  int64_t offset = sizeof h;
  Checksum sum;
  const auto put = [&](Place place, const void* data, int64_t bytes) {
    if (bytes == 0) return;
    h.sections[place].bytes += static_cast<uint64_t>(bytes);
    sum.add(data, bytes);
    write(data, bytes, offset);
    offset += bytes;
  };
  const auto section = [&](Place place, const auto& fill) {
    sum = Checksum();
    h.sections[place].offset = static_cast<uint64_t>(offset);
    fill(place);
    const char zeros[kAlign] = {};
    if (const int64_t left = aligned(offset) - offset) write(zeros, left, offset), offset += left;
    h.sections[place].checksum = sum.value();
  };
  const auto column = [&](const auto& values, int64_t width, int64_t rows) {
    return [&values, &put, width, rows](Place place) {
      values.pieces(rows, [&](const auto* data, int64_t n) {
        put(place, data, n * width * static_cast<int64_t>(sizeof *data));
      });
    };
  };
  const auto entries = [&](const std::vector<MixedCounts::Entry>& values) {
    return [&values, &put](Place place) { put(place, values.data(), bytes_of(values)); };
  };
  std::vector<MixedCounts::Entry> carries;
  for (const auto& [pattern, times] : carries_) carries.push_back({pattern, times});
  const auto labels = labels_.mixed.sorted(), predictions = predictions_.mixed.sorted();
  const int64_t ids = options_.example_ids ? examples_ : 0;
  section(kWords, column(words_, options_.words, size_));
  section(kCounts, column(counts_, 1, size_));
  section(kFirstLow, column(first_low_, 1, size_));
  section(kFirstHigh, column(first_high_, 1, size_));
  section(kLabels, column(labels_.state, 1, options_.classes ? size_ : 0));
  section(kPredictions, column(predictions_.state, 1, options_.predictions ? size_ : 0));
  section(kTable, [&](Place place) { put(place, table_.groups(), NapTable::bytes(table_.per_part())); });
  section(kCarries, entries(carries));
  section(kLabelCounts, entries(labels));
  section(kPredictionCounts, entries(predictions));
  section(kIds, column(ids_, 1, ids));
  section(kPrevious, column(previous_, 1, ids));
  section(kLast, column(last_, 1, options_.example_ids ? size_ : 0));
  section(kUnused, [](Place) {});
  h.file_bytes = static_cast<uint64_t>(offset);
  h.checksum = checksum(&h, offsetof(Header, checksum));
  write(&h, sizeof h, 0);  // last: without it there is no index
}

int64_t NapIndex::file_bytes() const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  Header h{};
  h.words = static_cast<uint64_t>(options_.words);
  h.classes = static_cast<uint64_t>(options_.classes);
  h.flags = uint64_t{options_.predictions} | uint64_t{options_.example_ids} << 1;
  h.patterns = static_cast<uint64_t>(size_);
  h.examples = static_cast<uint64_t>(examples_);
  h.groups = static_cast<uint64_t>(table_.per_part());
  int64_t total = sizeof h;
  for (const int64_t bytes : lengths(h)) total += aligned(std::max<int64_t>(0, bytes));
  return total + aligned(16 * static_cast<int64_t>(carries_.size())) +
         aligned(bytes_of(labels_.mixed.sorted())) + aligned(bytes_of(predictions_.mixed.sorted()));
}

std::unique_ptr<NapIndex> NapIndex::load(Pages file, int64_t bytes, bool verify, const std::string& function,
                                         const std::string& name) {
  char* const data = static_cast<char*>(file.data());
  check_header(function + ": " + name + ": ", data, bytes);
  Header h;
  std::memcpy(&h, data, sizeof h);
  Options options{static_cast<int64_t>(h.words)};
  options.classes = static_cast<int64_t>(h.classes);
  options.predictions = h.flags & 1;
  options.example_ids = h.flags & 2;
  options.start = static_cast<int64_t>(h.start);
  auto index = std::make_unique<NapIndex>(options);
  index->file_ = std::move(file);
  index->file_name_ = name;
  index->verified_ = false;
  if (verify) index->check_sums(function);
  index->size_ = static_cast<int64_t>(h.patterns);
  index->examples_ = static_cast<int64_t>(h.examples);

  const auto at = [&](Place place) { return data + h.sections[place].offset; };
  const auto adopt = [&](auto& column, Place place, int64_t rows) {
    using T = std::remove_pointer_t<decltype(column[0])>;
    column.adopt(reinterpret_cast<T*>(at(place)), h.sections[place].bytes ? rows : 0);
  };
  const auto entries = [&](Place place, const auto& each) {
    for (uint64_t i = 0; i < h.sections[place].bytes; i += 16) {
      MixedCounts::Entry entry;
      std::memcpy(&entry, at(place) + i, sizeof entry);
      each(entry);
    }
  };
  const int64_t patterns = index->size_, examples = index->examples_;
  adopt(index->words_, kWords, patterns);
  adopt(index->counts_, kCounts, patterns);
  adopt(index->first_low_, kFirstLow, patterns);
  adopt(index->first_high_, kFirstHigh, patterns);
  adopt(index->labels_.state, kLabels, patterns);
  adopt(index->predictions_.state, kPredictions, patterns);
  adopt(index->ids_, kIds, examples);
  adopt(index->previous_, kPrevious, examples);
  adopt(index->last_, kLast, patterns);
  std::array<int64_t, NapTable::kParts> filled;
  std::copy(std::begin(h.filled), std::end(h.filled), filled.begin());
  index->table_ =
      NapTable(reinterpret_cast<NapTable::Group*>(at(kTable)), static_cast<int64_t>(h.groups), filled);
  entries(kCarries, [&](const MixedCounts::Entry& e) {
    index->carries_[static_cast<uint32_t>(e.key)] = static_cast<uint32_t>(e.count);
  });
  const auto mixed = [&](LabelColumn& column, Place place) {
    entries(place, [&](const MixedCounts::Entry& e) {
      column.mixed.add(static_cast<uint32_t>(e.key >> 16), static_cast<uint16_t>(e.key), e.count);
    });
  };
  mixed(index->labels_, kLabelCounts);
  mixed(index->predictions_, kPredictionCounts);
  return index;
}

void NapIndex::verify() const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  check_sums("NapIndex.verify");
}

// Before the first change, that is: pages of the file that were changed in memory would no longer match.
void NapIndex::check_sums(const std::string& function) const {
  if (verified_) return;
  const char* const data = static_cast<const char*>(file_.data());
  Header h;
  std::memcpy(&h, data, sizeof h);
  for (size_t i = 0; i < kSections; ++i) {
    const Extent& e = h.sections[i];
    if (checksum(data + e.offset, aligned(static_cast<int64_t>(e.bytes))) != e.checksum) {
      refuse(function + ": " + file_name_ + ": section \"" + kNames[i] +
             "\" does not match its checksum: the file is damaged");
    }
  }
  verified_ = true;
}

}  // namespace zb
