// One forward call as plain data: what the files of each instruction set get to see. They include no header
// of torch (see common/vec.h), so forward.cpp copies what they need out of Problem and the tensors.
#pragma once

#include <cstdint>

namespace zb::conv_relu_pool::cpu {

enum class Element { kFloat, kDouble, kHalf, kBFloat };
enum class Pooling { kNone, kMax, kAvg };
enum class UnitKind { kNone, kRelu, kOutput, kWinner };
enum class CodeKind { kNone, kByte, kInt, kBits };
enum class Algorithm { kDirect, kDirectPairs, kDirectPixels, kDepthwise, kWinograd, kFewPixels };

// A range of one axis, cut into equal blocks.
struct Cut {
  int64_t whole, block, count;
};

// Says that a call's input is the gradient of an un-pooled map [N, C, in], given as that of the pooled one
// (in x) and the code that the forward pass wrote.
struct Unpool {
  Pooling pool;
  CodeKind code_kind;
  const void* code;
  int64_t code_strides[4];  // of max pooling's code, in elements
  int64_t size[2], kernel[2], stride[2], padding[2];
  bool count_include_pad;
  float slope;
};

struct Call {
  // sizes, as in Problem; index 0 is the row direction, 1 the column direction
  int64_t N, C, K, Cg, Kg, groups;
  int64_t in[2], kernel[2], stride[2], padding[2], dilation[2], map[2], out[2];
  int64_t pool_kernel[2], pool_stride[2], pool_padding[2];
  Pooling pool;
  bool count_include_pad;
  double slope;
  bool highest;  // direct sums only

  Element element;
  const void* x;
  const Unpool* unpool;  // null in a forward call
  const void* weight;
  const void* residual;                // null where there is none
  const Call* summed;                  // of whose sum this is the convolution (residual.h); else null
  int64_t x_strides[4], w_strides[4];  // N C H W and K C R S, in elements
  int64_t r_strides[4];                // of the residual, N K H1 W1
  void* y;
  int64_t y_strides[4];  // N K P Q, in elements; `code` of max pooling has the same
  void* code;
  CodeKind code_kind;
  uint64_t* sig;  // zeros at first
  UnitKind units;
  int64_t unit_bits, sig_words;
  int64_t threads;  // shapes the cut into tasks; no value depends on it

  // --- filled by Kernels::plan --------------------------------------------------------------------------
  Algorithm algorithm;
  bool all_map;           // every row and column of the map is wanted, not just what the windows cover
  int64_t channel_block;  // output channels of one block (the last of a group may be smaller)
  int64_t blocks;         // number of them
  Cut images, rows, columns, block_cut;  // a task is one block of each; rows and columns are those of y
  int64_t map_rows, map_columns;         // most of them that one task computes at a time, per image
  int64_t chunk_rows;                    // of these, direct: computed before they are pooled
  bool dense_rows, by_phase;             // how the input is laid out in the slab, see direct.h
  int64_t planes, chain_offsets;         // direct: of a row of the slab; addresses that a chain reads
  int64_t fold, filter, shift[2];        // Winograd: see Folding in plan.h
  bool few;                              // Winograd of so few channels that winograd_few.h takes them
  int64_t points;                        // of one dimension of a tile, see winograd_transforms.h
  bool channels_innermost;               // of the weight; few pixels only
  int64_t weight_units, weight_bytes;    // packed weights: units of work, and size
  int64_t scratch_bytes;                 // of one thread
  bool adds_planes;                      // the residual, when all tasks are done: see residual.h
  void* packed_weight;
};

struct Kernels {
  const char* direct_name;
  const char* pairs_name;  // null where no kernel of the set is that
  const char* pixels_name;
  const char* depthwise_name;
  const char* winograd_name;
  const char* few_pixels_name;
  const char* winograd_backward_name;
  void (*plan)(Call&);
  void (*pack)(const Call&, int64_t begin, int64_t end);  // of [0, weight_units)
  void (*run)(const Call&, int64_t task, void* scratch);
  void (*add_planes)(const Call&, int64_t begin, int64_t end);  // of [0, N K), where adds_planes
};

inline int64_t task_count(const Call& c) {
  return c.images.count * c.rows.count * c.columns.count * c.block_cut.count;
}

extern const Kernels kPortableKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels, kAvx512Kernels;
#if defined(ZB_AVX512_BF16)
extern const Kernels kAvx512Bf16Kernels;
#endif
#endif

}  // namespace zb::conv_relu_pool::cpu
