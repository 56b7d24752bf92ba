// What every op needs of a tensor, on LibTorch's stable ABI only.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "common/huge_pages.h"

// Calls a function of torch's C shim and raises where it fails. (The headers of torch 2.11 and of later
// releases each have such a macro, but by different names.)
#define ZB_TORCH_CALL(call) STD_TORCH_CHECK((call) == AOTI_TORCH_SUCCESS, "torch: " #call " failed")

namespace zb {

using torch::headeronly::MemoryFormat;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Ints = std::vector<int64_t>;
using Pair = std::array<int64_t, 2>;

// A `str` argument of a schema. Reading it as std::string leaks about 48 bytes a call with the headers of
// torch 2.11 to 2.13, so the words that our schemas take (all short) are copied into place here.
template <size_t size>
struct Text {
  char text[size] = {};
  bool operator==(const char* other) const { return std::strcmp(text, other) == 0; }
};
using Word = Text<24>;

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t words_for(int64_t bits) { return ceil_div(bits, 64); }

inline Pair pair(const char* op, const char* name, const Ints& values) {
  STD_TORCH_CHECK(values.size() == 2, op, ": expected ", name, " of two ints, got ", values.size());
  return {values[0], values[1]};
}

inline std::string shape_text(const Tensor& t) {
  std::string text = "[";
  for (int64_t i = 0; i < t.dim(); ++i) text += (i ? ", " : "") + std::to_string(t.size(i));
  return text + "]";
}

inline bool is_floating(ScalarType t) {
  return t == ScalarType::Float || t == ScalarType::Double || t == ScalarType::Half ||
         t == ScalarType::BFloat16;
}

inline void check_floating(const char* op, const char* name, const Tensor& t) {
  STD_TORCH_CHECK(is_floating(t.scalar_type()), op, ": expected ", name,
                  " of dtype float32, float64, float16 or bfloat16");
}

inline void check_same(const char* op, const char* a_name, const Tensor& a, const char* b_name,
                       const Tensor& b) {
  STD_TORCH_CHECK(a.scalar_type() == b.scalar_type(), op, ": expected ", a_name, " and ", b_name,
                  " of one dtype");
  STD_TORCH_CHECK(a.device() == b.device(), op, ": expected ", a_name, " and ", b_name, " on one device");
}

// A tensor may have sizes and no memory (storage().resize_(0), as sharded training does between uses).
inline void check_allocated(const char* op, const char* name, const Tensor& t) {
  STD_TORCH_CHECK(t.numel() == 0 || t.data_ptr() != nullptr, op, ": expected ", name,
                  " with memory, but its storage was freed");
}

// channels_last is taken up only where the strides say so without doubt: a tensor that is also contiguous
// (one channel, or one pixel) counts as contiguous. The fake kernels decide by the same rule.
inline bool is_channels_last(const Tensor& t) {
  if (t.dim() != 4 || t.numel() == 0 || t.is_contiguous()) return false;
  const int64_t order[4] = {1, 3, 2, 0};
  int64_t expected = 1;
  for (int64_t d : order) {
    if (t.size(d) != 1) {
      if (t.stride(d) != expected) return false;
      expected *= t.size(d);
    }
  }
  return true;
}

inline Tensor empty_on(const Tensor& like, const Ints& sizes, ScalarType dtype, bool channels_last = false) {
  try {
    Tensor t = torch::stable::empty(sizes, dtype, torch::headeronly::Layout::Strided, like.device(), false,
                                    channels_last ? MemoryFormat::ChannelsLast : MemoryFormat::Contiguous);
    if (like.is_cpu())
      prefer_huge_pages(t.mutable_data_ptr(), t.numel() * static_cast<int64_t>(t.element_size()));
    return t;
  } catch (const std::exception&) {  // torch's own text does not come through the stable ABI
    std::string shape;
    for (int64_t size : sizes) shape += (shape.empty() ? "" : ", ") + std::to_string(size);
    STD_TORCH_CHECK(false, "zbkernels: out of memory: no tensor of shape [", shape, "] could be allocated");
  }
}

}  // namespace zb

HIDDEN_NAMESPACE_BEGIN(torch, stable, detail)
template <size_t size>
struct ToImpl<zb::Text<size>> {
  static zb::Text<size> call(StableIValue value, [[maybe_unused]] uint64_t version,
                             [[maybe_unused]] bool is_internal) {
    auto handle = torch::stable::detail::to<StringHandle>(value);
    size_t length = 0;
    const char* data = nullptr;
    zb::Text<size> word;
    ZB_TORCH_CALL(torch_string_length(handle, &length));
    ZB_TORCH_CALL(torch_string_c_str(handle, &data));
    // A word that does not fit, or with a zero inside, is none of ours: kept as one that no name is equal to.
    const bool ours = length < sizeof(word.text) && std::memchr(data, 0, length) == nullptr;
    std::memcpy(word.text, ours ? data : "?", ours ? length : 1);
    ZB_TORCH_CALL(torch_delete_string(handle));
    return word;
  }
};
HIDDEN_NAMESPACE_END(torch, stable, detail)
