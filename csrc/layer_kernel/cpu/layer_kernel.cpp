// layer_kernel on the CPU: threads over pairs, or over runs of units where there are few pairs; sums.inc has
// the loop. A pair's runs are summed apart and added in their order, whichever way they were shared out.
#include <cstring>

#include "common/cpu_capability.h"
#include "common/parallel.h"
#include "common/register.h"
#include "common/vec.h"
#include "layer_kernel/cpu/kernels.h"
#include "layer_kernel/layer_kernel.h"
#include "nap/cpu/pieces.h"

namespace zb::layer_kernel::cpu {
namespace {

constexpr int64_t kRun = 1 << 14;        // units; a multiple of every block
constexpr int64_t kLeastTask = 1 << 15;  // units times angles that pay for a task
constexpr int64_t kTasksOfThread = 4;

struct Loop {
  decltype(&portable::add_sums) add_sums;
  const char* name;
};

Loop loop() {
#if defined(__x86_64__)
  if (cpu_capability() >= Capability::kAvx512) return {avx512::add_sums, "layer_kernel avx512"};
  if (cpu_capability() == Capability::kAvx2) return {avx2::add_sums, "layer_kernel avx2"};
#endif
  return {portable::add_sums, "layer_kernel portable"};
}

template <class T>
Turn<T> turn_of(double angle) {
  const double cos = std::cos(angle), sin = std::sin(angle);
  const bool by_u = std::abs(cos) >= std::abs(sin);
  const double large = by_u ? cos : sin, scale = std::abs(large);
  const Side side = by_u ? (large < 0 ? kMinusU : kU) : (large < 0 ? kMinusV : kV);
  return {static_cast<T>(cos), static_cast<T>(sin), static_cast<T>((by_u ? sin : cos) / scale), side, scale};
}

template <class T>
void turn_table(const double* angles, int64_t count, Turn<T>* turns) {
  parallel_for(0, count, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) turns[i] = turn_of<T>(angles[i]);
  });
}

struct Call {
  Problem p;
  Inputs in;
  Element element;
  const char* turns;
  int64_t turn_bytes;  // of an angle
  Loop loop;
  void* out;

  int64_t runs() const { return ceil_div(p.n, kRun); }
  int64_t sums() const { return 1 + 2 * p.A; }

  // The sums of one run of a pair.
  void run(int64_t pair, int64_t index, double* sums_of_run) const {
    static thread_local Arena scratch;
    const int64_t size = nap::bytes_of(element), first = index * kRun;
    const auto units_of = [&](const Tensor& t, int64_t step) {
      return static_cast<const char*>(t.const_data_ptr()) + (pair * step + first) * size;
    };
    const auto* bias = static_cast<const char*>(in.bias_data());
    std::memset(sums_of_run, 0, static_cast<size_t>(sums()) * sizeof(double));
    loop.add_sums(element, units_of(in.u, in.u_step), units_of(in.v, in.v_step),
                  bias ? bias + first * size : nullptr, std::min(kRun, p.n - first),
                  turns + (p.own_angles ? pair * p.A * turn_bytes : 0), p.A, sums_of_run,
                  scratch.get(kScratchBytes));
  }

  void add(const double* sums_of_run, double* total) const {
    for (int64_t i = 0; i < sums(); ++i) total[i] += sums_of_run[i];
  }

  void store(int64_t pair, const double* total) const {
    for (int64_t i = 0; i < p.A; ++i) {
      const double value = value_of_sums(total[0], total[1 + 2 * i], total[2 + 2 * i], p.n, p.normalized);
      put_at(pair * p.A + i, value);
    }
  }

 private:
  void put_at(int64_t i, double value) const {
    switch (element) {
      case Element::kFloat64:
        return put(static_cast<double*>(out) + i, value);
      case Element::kFloat16:
        return put(static_cast<Half*>(out) + i, static_cast<float>(value));
      case Element::kBFloat16:
        return put(static_cast<BFloat*>(out) + i, static_cast<float>(value));
      default:
        return put(static_cast<float*>(out) + i, static_cast<float>(value));
    }
  }
};

// Some pairs a task, each with all its runs.
void over_pairs(const Call& call) {
  const int64_t work = std::max<int64_t>(1, call.p.n * call.p.A);
  const int64_t pairs = std::max<int64_t>(1, kLeastTask / work);
  parallel_tasks(ceil_div(call.p.P, pairs), [&](int64_t task) {
    static thread_local Arena memory;
    auto* own = static_cast<double*>(memory.get(2 * call.sums() * static_cast<int64_t>(sizeof(double))));
    double* total = own + call.sums();
    for (int64_t pair = task * pairs; pair < std::min(call.p.P, (task + 1) * pairs); ++pair) {
      std::memset(total, 0, static_cast<size_t>(call.sums()) * sizeof(double));
      for (int64_t run = 0; run < call.runs(); ++run) {
        call.run(pair, run, own);
        call.add(own, total);
      }
      call.store(pair, total);
    }
    memory.release();
  });
}

// A run of a pair a task.
void over_runs(const Call& call) {
  const int64_t runs = call.runs(), sums = call.sums();
  static thread_local Arena memory;
  auto* all =
      static_cast<double*>(memory.get((call.p.P * runs + 1) * sums * static_cast<int64_t>(sizeof(double))));
  double* total = all + call.p.P * runs * sums;
  parallel_tasks(call.p.P * runs,
                 [&](int64_t task) { call.run(task / runs, task % runs, all + task * sums); });
  for (int64_t pair = 0; pair < call.p.P; ++pair) {
    std::memset(total, 0, static_cast<size_t>(sums) * sizeof(double));
    for (int64_t run = 0; run < runs; ++run) call.add(all + (pair * runs + run) * sums, total);
    call.store(pair, total);
  }
  memory.release();
}

void forward(const Problem& p, const Inputs& in, Tensor& out) {
  static thread_local Arena memory;
  const bool wide = p.dtype == ScalarType::Double;
  const int64_t angles = in.angles.numel();
  const int64_t bytes = static_cast<int64_t>(wide ? sizeof(Turn<double>) : sizeof(Turn<float>));
  void* turns = memory.get(angles * bytes);
  const auto* from = static_cast<const double*>(in.angles.const_data_ptr());
  wide ? turn_table(from, angles, static_cast<Turn<double>*>(turns))
       : turn_table(from, angles, static_cast<Turn<float>*>(turns));
  const Call call{p,     in,     nap::element_of(p.dtype), static_cast<const char*>(turns),
                  bytes, loop(), out.mutable_data_ptr()};
  const bool few = p.P < kTasksOfThread * thread_count() && call.runs() > 1 && thread_count() > 1;
  few ? over_runs(call) : over_pairs(call);
  memory.release();
  note_kernel(call.loop.name);
}

const Registration registration("CPU", {ZB_LAYER_KERNEL(forward)});

}  // namespace
}  // namespace zb::layer_kernel::cpu
