// The sparse backward pass: what its planner (backward_sparse.cpp) tells its loops (one copy per instruction
// set). Only plain numbers and pointers here: the loops are compiled without torch.
//
// A *patch* is what one unit of the un-pooled map sees of x: for each live gradient g at unit (k, pixel),
//     grad_weight[k] += g * patch(pixel)        and        grad_x's patch(pixel) += g * weight[k].
// Both are sums over lists, and both run through one loop that keeps a piece of the sum in registers
// ("tile"): the first over the pixels that are live for a k, the second over the k that are live for a pixel.
#pragma once

#include <cstdint>

namespace zb::conv_relu_pool::cpu {

constexpr int64_t kLane = 16;    // floats to which a row of a patch is padded, for every instruction set
constexpr int64_t kKBlock = 64;  // channels whose gradients are sorted by pixel at a time, for grad_x
constexpr int64_t kTail = 64;    // floats that may be read past the end of an image buffer

// A block of channels of an image lies in memory so that a patch is `rows` rows of `run` floats, row_step
// apart:
//   rows    x padded, [Hp, Wp, Cb]; a row holds S*Cb floats (or, dilated, each of S runs holds Cb)
//   patches each pixel's patch copied out, [H1*W1, pitch]: one row. For kernels so small that rows would
//   leave
//           most lanes of a vector empty
struct SparsePlan {
  // the problem
  int64_t N, C, H, W, K, Cg, Kg, groups, R, S, H1, W1, P, Q;
  int64_t stride[2], padding[2], dilation[2], pool_kernel[2], pool_stride[2], pool_padding[2];
  float slope;
  bool max_pool;  // else none
  bool need_x, need_weight;

  // channel blocks: each group's Cg channels in `blocks` blocks of at most Cb
  int64_t Cb, blocks;
  bool patches;
  int64_t Hp, Wp;         // padded image
  int64_t pixel_step[2];  // floats from a unit to the one below / to the right
  int64_t padded_floats;  // of one block [Hp, Wp, Cb]
  int64_t image_floats;   // of one block of an image as the tiles read it, tail included
  int64_t rows, row_step, runs, run_step,
      run;            // of a patch in an image: `runs` times `rows` rows of `run` floats
  int64_t row_pitch;  // floats of a row in a packed patch
  int64_t patch;      // floats of a packed patch: runs * rows * row_pitch
  int64_t slab;       // pooled rows taken at a time

  int64_t images;  // a chunk's images; each chunk has its own sum of grad_weight
  int64_t chunks;
  int64_t slice, slices;  // output channels of one task on a chunk, and how many such tasks (of groups: one)

  int64_t packed() const {
    return groups * blocks * Kg * patch;
  }  // floats of packed weight, [group, block, Kg, patch]
};

struct SparseData {
  const float* x;
  const float* grad;
  const void* code;     // uint8 for max pooling, else words of bits
  const float* weight;  // packed
  float* grad_x;
  float* grad_weight;  // packed, one for each chunk
  int64_t x_strides[4], grad_strides[4], code_strides[4], grad_x_strides[4];
};

// sparse_scratch, sparse_chunk: bytes of scratch memory one thread needs, and the work on one slice of one
// chunk of images. mask_plane (for the dense way): plane[u] stays where bit u is set and is multiplied by
// slope elsewhere; at slope 0 it becomes 0, also where it is NaN, as in torch's threshold_backward.
#define ZB_SPARSE_LOOPS                                                                           \
  int64_t sparse_scratch(const SparsePlan& plan);                                                 \
  void sparse_chunk(const SparsePlan& plan, const SparseData& data, int64_t chunk, int64_t slice, \
                    void* scratch);                                                               \
  void mask_plane(float* plane, const uint64_t* bits, int64_t count, float slope);

namespace portable {
ZB_SPARSE_LOOPS
}
namespace avx2 {
ZB_SPARSE_LOOPS
}
namespace avx512 {
ZB_SPARSE_LOOPS
}
#undef ZB_SPARSE_LOOPS

}  // namespace zb::conv_relu_pool::cpu
