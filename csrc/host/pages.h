// Memory straight from the system, and columns of it that grow without being copied.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

namespace zb {

// Pages that read as zeros (and take no memory before they are written), or a file's, private to this
// process: writing to those leaves the file as it is.
class Pages {
 public:
  Pages() = default;
  Pages(Pages&& other) noexcept { swap(other); }
  Pages& operator=(Pages&& other) noexcept {
    Pages(std::move(other)).swap(*this);
    return *this;
  }
  ~Pages() {
    if (data_) munmap(data_, bytes_);
  }

  // `large` asks for huge pages: for random access to more than the translations of small ones reach.
  static Pages zeros(int64_t bytes, bool large) {
    Pages pages(bytes, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
#ifdef MADV_HUGEPAGE
    if (large) madvise(pages.data_, pages.bytes_, MADV_HUGEPAGE);
#else
    (void)large;
#endif
    return pages;
  }
  static Pages of_file(int descriptor, int64_t bytes) { return Pages(bytes, MAP_PRIVATE, descriptor); }

  void* data() const { return data_; }
  void swap(Pages& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

 private:
  Pages(int64_t bytes, int flags, int descriptor) : bytes_(static_cast<size_t>(bytes)) {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, flags, descriptor, 0);
    if (data_ == MAP_FAILED) {
      data_ = nullptr;
      throw std::bad_alloc();
    }
  }

  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Rows of `width` values in chunks of 2^shift rows. A row never moves, so growing needs no second copy of
// what is there, and fresh rows are zeros.
template <class T>
class Column {
 public:
  explicit Column(int64_t width = 1, int shift = 16) : width_(width), shift_(shift) {}

  T* operator[](int64_t row) const {
    return chunks_[static_cast<size_t>(row >> shift_)] + (row & ((int64_t{1} << shift_) - 1)) * width_;
  }

  // Makes room for `rows` rows in all.
  void reserve(int64_t rows) {
    if (rows > adopted_ && adopted_ > 0) {
      // The last chunk of adopted memory ends with its rows: a whole one takes its place.
      const int64_t left = adopted_ & ((int64_t{1} << shift_) - 1);
      if (left > 0) {
        const T* old = chunks_.back();
        add_chunk();
        std::memcpy(chunks_.back(), old, static_cast<size_t>(left * width_) * sizeof(T));
        chunks_.erase(chunks_.end() - 2);
      }
      adopted_ = 0;
    }
    while (static_cast<int64_t>(chunks_.size()) << shift_ < rows) add_chunk();
  }

  // Takes over `rows` rows that lie in memory which lives longer than this.
  void adopt(T* data, int64_t rows) {
    for (int64_t row = 0; row < rows; row += int64_t{1} << shift_) chunks_.push_back(data + row * width_);
    adopted_ = rows;
  }

  // piece(data, rows) for each run of the first `rows` rows that lies dense in memory; but for the last, a
  // run's size in bytes is a multiple of 64.
  template <class Piece>
  void pieces(int64_t rows, const Piece& piece) const {
    const int64_t step = int64_t{1} << shift_;
    for (int64_t row = 0; row < rows;) {
      const T* data = (*this)[row];
      int64_t end = row + step;
      while (end < rows && (*this)[end] == data + (end - row) * width_) end += step;
      end = end < rows ? end : rows;
      piece(data, end - row);
      row = end;
    }
  }

 private:
  static constexpr int64_t kLarge = int64_t{2} << 20;

  void add_chunk() {
    owned_.reserve(owned_.size() + 1);
    chunks_.reserve(chunks_.size() + 1);
    const int64_t bytes = (width_ << shift_) * static_cast<int64_t>(sizeof(T));
    owned_.push_back(Pages::zeros(bytes, !chunks_.empty() && bytes >= kLarge));
    chunks_.push_back(static_cast<T*>(owned_.back().data()));
  }

  int64_t width_;
  int shift_;
  std::vector<T*> chunks_;
  std::vector<Pages> owned_;
  int64_t adopted_ = 0;
};

}  // namespace zb
