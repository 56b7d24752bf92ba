// The sparse backward pass: its plan, its threads, and the packing of weights and their gradients.
#include "conv_relu_pool/cpu/backward_sparse.h"

#include "common/aten.h"
#include "common/cpu_capability.h"
#include "common/parallel.h"
#include "conv_relu_pool/cpu/backward.h"

namespace zb::conv_relu_pool::cpu {
namespace {

constexpr int64_t kFirstLevel = 32 << 10;  // bytes of a 48 KiB cache for the rows of x that a slab reads
constexpr int64_t kLists = 16 << 10;       // entries of a slab, at most (unless one row has more)
constexpr int64_t kPatchBytes = int64_t{1} << 20;  // of an image's patches, at most
constexpr int64_t kSumBytes = int64_t{20} << 20;   // of all chunks' gradients of the weight, at most
constexpr int64_t kMostChunks = 32;
constexpr int64_t kLeastSlice = 64;  // output channels: fewer, and reading x for each slice would show

int64_t round_up(int64_t a, int64_t to) { return ceil_div(a, to) * to; }

SparsePlan make_plan(const Problem& p, bool need_x, bool need_weight) {
  SparsePlan s{};
  s.N = p.N, s.C = p.C, s.H = p.H, s.W = p.W, s.K = p.K, s.Cg = p.Cg, s.Kg = p.Kg, s.groups = p.groups;
  s.R = p.R, s.S = p.S, s.H1 = p.H1, s.W1 = p.W1, s.P = p.P, s.Q = p.Q;
  for (int i = 0; i < 2; ++i) {
    s.stride[i] = p.stride[i], s.padding[i] = p.padding[i], s.dilation[i] = p.dilation[i];
    s.pool_kernel[i] = p.pool_kernel[i], s.pool_stride[i] = p.pool_stride[i];
    s.pool_padding[i] = p.pool_padding[i];
  }
  s.slope = static_cast<float>(p.slope);
  s.max_pool = p.pool == Pool::kMax;
  s.need_x = need_x, s.need_weight = need_weight;
  s.Hp = p.H + 2 * p.padding[0], s.Wp = p.W + 2 * p.padding[1];

  // Blocks of 32 channels: the rows of x that a slab needs stay in the first-level cache, and a 3 x 3 patch
  // is 18 vectors, which fit the registers at once.
  s.blocks = ceil_div(p.Cg, 32);
  s.Cb = ceil_div(p.Cg, s.blocks);
  const bool dense = p.dilation[1] == 1;
  s.run = dense ? p.S * s.Cb : s.Cb;
  s.runs = dense ? 1 : p.S;
  const int64_t whole = p.R * p.S * s.Cb;
  const int64_t as_rows = s.runs * p.R * round_up(s.run, kLane), as_patch = round_up(whole, kLane);
  s.patches = as_patch * 4 <= as_rows * 3 && p.H1 * p.W1 * as_patch * 4 <= kPatchBytes;
  s.padded_floats = s.Hp * s.Wp * s.Cb;
  if (s.patches) {
    s.run = whole, s.runs = 1, s.rows = 1, s.row_step = 0, s.run_step = 0;
    s.pixel_step[0] = p.W1 * as_patch, s.pixel_step[1] = as_patch;
    s.image_floats = p.H1 * p.W1 * as_patch + kTail;
  } else {
    s.rows = p.R, s.row_step = p.dilation[0] * s.Wp * s.Cb, s.run_step = p.dilation[1] * s.Cb;
    s.pixel_step[0] = p.stride[0] * s.Wp * s.Cb, s.pixel_step[1] = p.stride[1] * s.Cb;
    s.image_floats = s.padded_floats;
  }
  s.row_pitch = round_up(s.run, kLane);
  s.patch = s.runs * s.rows * s.row_pitch;

  // Pooled rows of a slab: as many as their rows of x fit in the cache.
  const int64_t map_rows = kFirstLevel / (4 * s.pixel_step[0]);
  const int64_t below = s.patches ? 0 : (p.dilation[0] * (p.R - 1)) / p.stride[0];
  s.slab = std::max<int64_t>(1, (map_rows - below) / p.pool_stride[0]);
  s.slab = std::min(s.slab, std::max<int64_t>(1, kLists / (p.K * p.Q)));
  s.slab = std::min(s.slab, p.P);

  // The chunks must not depend on the number of threads, or the sum would.
  s.images = ceil_div(p.N, kMostChunks);
  if (need_weight) s.images = std::max(s.images, ceil_div(p.N * s.packed() * 4, kSumBytes));
  s.chunks = ceil_div(p.N, s.images);
  // Few chunks: each is shared by several tasks, by output channels. A gradient of x is one sum over all of
  // them.
  s.slice = p.Kg;
  if (!need_x && p.groups == 1) {
    const int64_t slices =
        std::min(ceil_div(kMostChunks, s.chunks), std::max<int64_t>(1, p.Kg / kLeastSlice));
    s.slice = ceil_div(p.Kg, slices);
  }
  s.slices = ceil_div(p.Kg, s.slice);
  return s;
}

// f(packed offset, k, c, r, s) for every weight.
template <class F>
void for_each_weight(const SparsePlan& s, int64_t k_begin, int64_t k_end, const F& f) {
  const bool dense = s.runs == 1;
  for (int64_t k = k_begin; k < k_end; ++k) {
    const int64_t group = k / s.Kg;
    for (int64_t c = 0; c < s.Cg; ++c) {
      const int64_t block = c / s.Cb, in_block = c % s.Cb;
      const int64_t patch = ((group * s.blocks + block) * s.Kg + k % s.Kg) * s.patch;
      for (int64_t r = 0; r < s.R; ++r) {
        for (int64_t t = 0; t < s.S; ++t) {
          int64_t at = 0;
          if (s.patches) {
            at = (r * s.S + t) * s.Cb + in_block;
          } else if (dense) {
            at = r * s.row_pitch + t * s.Cb + in_block;
          } else {
            at = (t * s.R + r) * s.row_pitch + in_block;
          }
          f(patch + at, k, c, r, t);
        }
      }
    }
  }
}

struct Loops {
  decltype(&portable::sparse_scratch) scratch;
  decltype(&portable::sparse_chunk) chunk;
  const char* name;
};

Loops loops() {
#if defined(__x86_64__)
  if (cpu_capability() >= Capability::kAvx512) {
    return {avx512::sparse_scratch, avx512::sparse_chunk, "backward sparse avx512"};
  }
  if (cpu_capability() == Capability::kAvx2) {
    return {avx2::sparse_scratch, avx2::sparse_chunk, "backward sparse avx2"};
  }
#endif
  return {portable::sparse_scratch, portable::sparse_chunk, "backward sparse portable"};
}

void copy_strides(const Tensor& t, int64_t (&strides)[4]) {
  for (int i = 0; i < 4; ++i) strides[i] = t.stride(i);
}

Tensor packed_weight(const SparsePlan& s, const Tensor& weight) {
  const Tensor packed = empty_on(weight, {s.packed()}, ScalarType::Float);
  auto* to = static_cast<float*>(packed.mutable_data_ptr());
  const auto* from = static_cast<const float*>(weight.const_data_ptr());
  int64_t strides[4];
  copy_strides(weight, strides);
  if (s.packed() != s.K * s.Cg * s.R * s.S)
    std::memset(to, 0, static_cast<size_t>(s.packed()) * sizeof(float));
  parallel_for(0, s.K, 8, [&](int64_t begin, int64_t end) {
    for_each_weight(s, begin, end, [&](int64_t at, int64_t k, int64_t c, int64_t r, int64_t t) {
      to[at] = from[k * strides[0] + c * strides[1] + r * strides[2] + t * strides[3]];
    });
  });
  return packed;
}

// The chunks' sums, added in the order of the chunks.
void unpack_grad_weight(const SparsePlan& s, float* sums, const Tensor& grad_weight) {
  const int64_t size = s.packed();
  parallel_for(0, size, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = 1; chunk < s.chunks; ++chunk) {
      const float* more = sums + chunk * size;
      for (int64_t i = begin; i < end; ++i) sums[i] += more[i];
    }
  });
  auto* to = static_cast<float*>(grad_weight.mutable_data_ptr());
  int64_t strides[4];
  copy_strides(grad_weight, strides);
  parallel_for(0, s.K, 8, [&](int64_t begin, int64_t end) {
    for_each_weight(s, begin, end, [&](int64_t at, int64_t k, int64_t c, int64_t r, int64_t t) {
      to[k * strides[0] + c * strides[1] + r * strides[2] + t * strides[3]] = sums[at];
    });
  });
}

}  // namespace

bool sparse_can_run(const Problem& p) {
  constexpr int64_t kLimit = int64_t{1} << 29;  // offsets inside an image are 32-bit
  if (p.dtype != ScalarType::Float || p.pool == Pool::kAvg) return false;
  if (p.pool == Pool::kMax && p.code_dtype != ScalarType::Byte) return false;
  const int64_t Hp = p.H + 2 * p.padding[0], Wp = p.W + 2 * p.padding[1];
  return Hp < kLimit && Wp < kLimit && Hp * Wp < kLimit / 32 && p.H1 * p.W1 < kLimit && p.K * p.Q < kLimit &&
         p.K * p.R * p.S * 48 < kLimit && p.pool_stride[0] < kLimit && p.pool_stride[1] < kLimit;
}

// A multiplication costs more this way than in oneDNN's dense convolution: about twice as much for
// grad_x, 1.3 times for grad_weight (measured, see backward_sparse.inc). ReLU alone leaves half of the units
// live, where the dense way is as good or better, but for grad_weight alone and for first layers. Depthwise
// there is nothing to keep in registers.
bool sparse_is_faster(const Problem& p, bool need_x) {
  if (p.Kg == 1 && p.groups > 1) return false;
  if (p.pool == Pool::kMax) return 3 * p.P * p.Q <= p.H1 * p.W1;
  return p.slope == 0 && ((!need_x && p.R * p.S > 1) || p.Cg * p.R * p.S <= 32);
}

std::tuple<Tensor, Tensor> backward_sparse(const BackwardArgs& a) {
  const Problem& p = a.p;
  const SparsePlan s = make_plan(p, a.need_x, a.need_weight);
  Tensor grad_x, grad_weight, sums, weight;
  const Tensor code = p.pool == Pool::kMax ? a.code : torch::stable::contiguous(a.code);
  SparseData d{};
  d.x = static_cast<const float*>(a.x.const_data_ptr());
  d.grad = static_cast<const float*>(a.grad.const_data_ptr());
  d.code = code.const_data_ptr();
  copy_strides(a.x, d.x_strides);
  copy_strides(a.grad, d.grad_strides);
  if (p.pool == Pool::kMax) {
    copy_strides(code, d.code_strides);
  } else {
    d.code_strides[0] = p.K * p.map_words();
  }
  if (a.need_x) {
    weight = packed_weight(s, a.weight);
    d.weight = static_cast<const float*>(weight.const_data_ptr());
    grad_x = empty_on(a.x, {p.N, p.C, p.H, p.W}, p.dtype, p.x_channels_last);
    d.grad_x = static_cast<float*>(grad_x.mutable_data_ptr());
    copy_strides(grad_x, d.grad_x_strides);
  }
  if (a.need_weight) {
    sums = empty_on(a.x, {s.chunks, s.packed()}, ScalarType::Float);
    d.grad_weight = static_cast<float*>(sums.mutable_data_ptr());
    grad_weight = empty_on(a.x, {p.K, p.Cg, p.R, p.S}, p.dtype, p.w_channels_last);
  }
  const Loops run = loops();
  const int64_t bytes = run.scratch(s);
  parallel_tasks(s.chunks * s.slices, [&](int64_t task) {
    static thread_local Arena arena;
    run.chunk(s, d, task / s.slices, task % s.slices, arena.get(bytes));
    arena.release();
  });
  if (a.need_weight) unpack_grad_weight(s, d.grad_weight, grad_weight);
  note_kernel(run.name);
  return {grad_x, grad_weight};
}

}  // namespace zb::conv_relu_pool::cpu
