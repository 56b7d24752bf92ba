// The fibres, the barriers and the warps of the emulation. Compiled without sanitizer instrumentation in
// every build: what the scheduler itself touches must not look like a kernel's access.
#include "common/cuda_emulation/emulation.h"

#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#ifdef ZB_EMULATION_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef ZB_EMULATION_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace zb::cuda::emulation {

const Indices* here = nullptr;

namespace {

#ifdef ZB_EMULATION_ASAN
constexpr size_t kStack = 256 * 1024;
#else
constexpr size_t kStack = 32 * 1024;
#endif
constexpr uint64_t kCanary = 0x7a65726f62696173;
constexpr size_t kMostShared = 99 * 1024;  // of one block, static and dynamic, on sm_86 and sm_89: the least
constexpr size_t kWithoutAsking = 48 * 1024;

// --- switching stacks: 20 ns by hand, 500 ns by ucontext, which saves signal masks --------------------

#if defined(__x86_64__)
using Context = void*;  // the stack pointer, below which the callee-saved registers lie
extern "C" void zb_emulation_switch(void** save, void* load);
asm(R"(
.text
.globl zb_emulation_switch
.hidden zb_emulation_switch
.type zb_emulation_switch, @function
zb_emulation_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size zb_emulation_switch, .-zb_emulation_switch
)");
void swap(Context& from, Context& to) { zb_emulation_switch(&from, to); }
void prepare(Context& context, unsigned char* stack, void (*entry)()) {
  auto* top = reinterpret_cast<void**>(stack + kStack - 64);  // aligned to 16
  *--top = nullptr;                                           // a return address for entry: never used
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  context = top;
}
#else
using Context = ucontext_t;
void swap(Context& from, Context& to) { swapcontext(&from, &to); }
void prepare(Context& context, unsigned char* stack, void (*entry)()) {
  getcontext(&context);
  context.uc_stack.ss_sp = stack;
  context.uc_stack.ss_size = kStack;
  context.uc_link = nullptr;
  makecontext(&context, entry, 0);
}
#endif

// --- what runs ----------------------------------------------------------------------------------------

struct Meeting {  // of lanes at one collective instruction
  Lanes lanes;
  unsigned mask = 0, arrived = 0;
  int readers = 0;  // lanes that may still look at `lanes`; 0: free
  const char* instruction = "";
  Site site{};
  bool open() const { return readers > 0 && arrived != mask; }
};

enum class State { kReady, kAtBlockBarrier, kAtWarp, kDone };

struct Warp;
struct Fiber {
  Indices indices;
  State state = State::kReady;
  Site site{};  // where it waits
  const char* waits_for = "";
  Warp* warp = nullptr;
  int lane = 0;
  Meeting* meeting = nullptr;
  std::vector<Copy> copies;
  int groups = 0;
  Context context{};
  unsigned char* stack = nullptr;
  void* sanitizer = nullptr;  // TSan's fibre, or ASan's fake stack
};

struct Warp {
  Fiber* lanes[32] = {};
  std::vector<std::unique_ptr<Meeting>> meetings;
  char order = 0;  // a token for __syncwarp
};

struct Shared {
  Site site;
  unsigned char* data;
  size_t bytes;
};

struct Block {
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<Shared> shared;  // the first is the dynamic one
  char order[2] = {};          // tokens for __syncthreads, in turns
  int phase = 0;
};

struct Launch {
  const std::function<void()>* body;
  std::vector<std::unique_ptr<Block>> blocks;  // kept to the end too: a token is not another block's
  std::vector<unsigned char*> memory;  // all blocks' shared memory: kept to the end, so that no block's
                                       // memory is another's and freeing it is no access
  std::string failure;
  char started = 0,
       finished = 0;  // tokens: the launch's start comes before every thread, their ends before its
};

std::mutex one_launch;
Launch* launch = nullptr;
Block* block = nullptr;
Fiber* current = nullptr;
Context scheduler;
#ifdef ZB_EMULATION_TSAN
void* scheduler_sanitizer = nullptr;
#elif defined(ZB_EMULATION_ASAN)
const void* scheduler_stack = nullptr;
size_t scheduler_stack_size = 0;
#endif

struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void happens_before(char* token) {
#ifdef ZB_EMULATION_TSAN
  __tsan_release(token);
#else
  (void)token;
#endif
}
void happens_after(char* token) {
#ifdef ZB_EMULATION_TSAN
  __tsan_acquire(token);
#else
  (void)token;
#endif
}

void to_scheduler(bool for_good) {
  Fiber& self = *current;
#ifdef ZB_EMULATION_ASAN
  __sanitizer_start_switch_fiber(for_good ? nullptr : &self.sanitizer, scheduler_stack, scheduler_stack_size);
#elif defined(ZB_EMULATION_TSAN)
  __tsan_switch_to_fiber(scheduler_sanitizer, __tsan_switch_to_fiber_no_sync);
#endif
  (void)for_good;
  swap(self.context, scheduler);
#ifdef ZB_EMULATION_ASAN
  __sanitizer_finish_switch_fiber(self.sanitizer, &scheduler_stack, &scheduler_stack_size);
#endif
}

void to_fiber(Fiber& fiber) {
  current = &fiber;
  here = &fiber.indices;
#ifdef ZB_EMULATION_ASAN
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, fiber.stack, kStack);
#elif defined(ZB_EMULATION_TSAN)
  __tsan_switch_to_fiber(fiber.sanitizer, __tsan_switch_to_fiber_no_sync);
#endif
  swap(scheduler, fiber.context);
#ifdef ZB_EMULATION_ASAN
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
  current = nullptr;
}

std::string at(Site site) {
  const char* name = std::strrchr(site.file, '/');
  return std::string(name ? name + 1 : site.file) + ":" + std::to_string(site.line);
}

std::string who(const Fiber& f) {
  return "block " + std::to_string(f.indices.block.x) + ", thread " + std::to_string(f.indices.thread.x);
}

void entry() {
#ifdef ZB_EMULATION_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_size);
#endif
  happens_after(&launch->started);
  try {
    (*launch->body)();
    if (!current->copies.empty())
      fault("returned without waiting for its asynchronous copies", {"end of kernel", 0});
  } catch (const Fault& f) {
    launch->failure = f.what();
  } catch (const std::exception& e) {
    launch->failure = who(*current) + ": " + e.what();
  }
  current->state = State::kDone;
  happens_before(&launch->finished);
  to_scheduler(true);
}

// Nobody can go on by itself: either all who live stand at one __syncthreads, or the kernel is wrong.
void release_barrier() {
  const Fiber* first = nullptr;
  for (const Fiber& f : block->fibers) {
    if (f.state == State::kDone) continue;
    if (f.state == State::kAtWarp) {
      throw Fault(who(f) + ": waits at " + at(f.site) + " (" + f.waits_for +
                  ") for lanes of its mask that have returned or wait elsewhere");
    }
    if (first == nullptr) first = &f;
    if (f.site.line != first->site.line || std::strcmp(f.site.file, first->site.file) != 0) {
      throw Fault("divergent barrier: " + who(*first) + " is at " + at(first->site) + ", " + who(f) + " at " +
                  at(f.site));
    }
  }
  block->phase ^= 1;
  for (Fiber& f : block->fibers) {
    if (f.state == State::kAtBlockBarrier) f.state = State::kReady;
  }
}

unsigned char* allocate_shared(size_t bytes) {
  auto* const data = static_cast<unsigned char*>(::operator new(std::max<size_t>(bytes, 1)));
  for (size_t i = 0; i < bytes; ++i) data[i] = 0xff;
  launch->memory.push_back(data);
  return data;
}

// A block's stacks, mapped anew for each launch in no build but TSan's, which keeps stacks and fibres for
// ever: making one of its fibres takes 0.2 ms.
class Stacks {
 public:
  explicit Stacks(size_t count) : bytes_(count * kStack) {
    void* const all =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) throw std::runtime_error("no memory for the stacks of a block");
    data_ = static_cast<unsigned char*>(all);
  }
  ~Stacks() {
#ifdef ZB_EMULATION_ASAN
    __asan_unpoison_memory_region(data_, bytes_);
#endif
    munmap(data_, bytes_);
  }
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;
  unsigned char* operator[](size_t i) const { return data_ + i * kStack; }

 private:
  size_t bytes_;
  unsigned char* data_;
};

#ifdef ZB_EMULATION_TSAN
// Each block of a launch has fibres of its own, so that nothing orders two blocks.
struct TsanThread {
  void* fiber = nullptr;
  std::unique_ptr<Stacks> stack;
};
TsanThread tsan_threads[kMostBlocks][1024];

TsanThread& tsan_thread(int64_t block_index, int thread) {
  TsanThread& t = tsan_threads[block_index][thread];
  if (t.fiber == nullptr) t = {__tsan_create_fiber(0), std::make_unique<Stacks>(1)};
  return t;
}
#endif

void run_block(int64_t index, int64_t blocks, int threads, size_t shared) {
#ifndef ZB_EMULATION_TSAN
  const Stacks stacks(threads);
#endif
  launch->blocks.push_back(std::make_unique<Block>());
  Block& state = *launch->blocks.back();
  state.fibers.resize(threads);
  state.warps.resize((threads + 31) / 32);
  block = &state;
  state.shared.push_back({{"dynamic shared memory", 0}, allocate_shared(shared), shared});
  for (int t = 0; t < threads; ++t) {
    Fiber& f = state.fibers[t];
    f.indices = {dim3(t), dim3(static_cast<unsigned>(index)), dim3(threads),
                 dim3(static_cast<unsigned>(blocks))};
    f.warp = &state.warps[t / 32];
    f.lane = t % 32;
    f.warp->lanes[f.lane] = &f;
#ifdef ZB_EMULATION_TSAN
    f.sanitizer = tsan_thread(index, t).fiber;
    f.stack = (*tsan_thread(index, t).stack)[0];
#else
    f.stack = stacks[t];
#endif
    *reinterpret_cast<uint64_t*>(f.stack) = kCanary;
    prepare(f.context, f.stack, entry);
  }
  const auto ended = [&](Fiber& f) {
    if (*reinterpret_cast<uint64_t*>(f.stack) != kCanary)
      throw Fault(who(f) + ": its stack ran over in the emulation");
    return !launch->failure.empty();
  };
  try {
    for (int live = threads; live > 0;) {
      bool ran = false;
      for (Fiber& f : state.fibers) {
        if (f.state != State::kReady) continue;
        ran = true;
        to_fiber(f);
        if (ended(f)) throw Fault(launch->failure);
        live -= f.state == State::kDone;
      }
      if (!ran) release_barrier();
    }
  } catch (const Fault& f) {
    launch->failure = f.what();
  }
#ifdef ZB_EMULATION_TSAN
  for (int i = 0; i < threads; ++i) {
    Fiber& f = state.fibers[i];
    if (f.state == State::kDone) continue;
    // Abandoned after a fault: it comes before the end of the launch as well, and is not used again.
    __tsan_switch_to_fiber(f.sanitizer, __tsan_switch_to_fiber_no_sync);
    happens_before(&launch->finished);
    __tsan_switch_to_fiber(scheduler_sanitizer, __tsan_switch_to_fiber_no_sync);
    __tsan_destroy_fiber(std::exchange(tsan_thread(index, i), {}).fiber);
  }
#endif
  block = nullptr;
  here = nullptr;
}

}  // namespace

void run(const char* op, const char* kernel, int64_t items, int threads, size_t shared,
         const std::function<void()>& body) {
  const std::string title = std::string(op) + ": " + kernel;
  if (threads < 1 || threads > 1024) throw std::runtime_error(title + ": a block has 1 to 1024 threads");
  if (shared > kMostShared) throw std::runtime_error(title + ": more shared memory than a block can have");
  const std::lock_guard<std::mutex> alone(one_launch);
  Launch state{};
  state.body = &body;
  launch = &state;
#ifdef ZB_EMULATION_TSAN
  scheduler_sanitizer = __tsan_get_current_fiber();
#endif
  happens_before(&state.started);
  const int64_t blocks = std::min(items, kMostBlocks);
  for (int64_t b = 0; b < blocks && state.failure.empty(); ++b) run_block(b, blocks, threads, shared);
  happens_after(&state.finished);
  for (unsigned char* memory : state.memory) ::operator delete(memory);
  launch = nullptr;
  if (!state.failure.empty()) throw std::runtime_error(title + ": " + state.failure);
}

void fault(const std::string& text, Site site) {
  throw Fault((current ? who(*current) + ": " : "") + text + " (" + at(site) + ")");
}

void* dynamic_shared() { return block->shared[0].data; }

void* static_shared(size_t bytes, Site site) {
  for (const Shared& s : block->shared) {
    if (s.site.line == site.line && std::strcmp(s.site.file, site.file) == 0) return s.data;
  }
  size_t all = bytes;
  for (const Shared& s : block->shared) all += s.bytes;
  const bool asked = block->shared[0].bytes > kSharedWithoutAsking;  // as launch() does
  if (all > (asked ? kMostShared : kWithoutAsking)) fault("more shared memory than a block can have", site);
  block->shared.push_back({site, allocate_shared(bytes), bytes});
  return block->shared.back().data;
}

void block_barrier(Site site) {
  Fiber& self = *current;
  char* const token = &block->order[block->phase];
  self.state = State::kAtBlockBarrier;
  self.site = site;
  happens_before(token);
  to_scheduler(false);
  happens_after(token);
}

int lane() { return current->lane; }

const Lanes& meet(unsigned mask, const void* mine, size_t bytes, const char* instruction, Site site,
                  bool one_site) {
  Fiber& self = *current;
  if (!(mask >> self.lane & 1))
    fault(std::string(instruction) + ": the mask leaves out the lane that calls", site);
  if (self.meeting != nullptr) --self.meeting->readers;
  Meeting* meeting = nullptr;
  for (const auto& m : self.warp->meetings) {
    if (m->open() && (m->mask & mask) != 0) meeting = m.get();
  }
  if (meeting == nullptr) {
    for (const auto& m : self.warp->meetings) {
      if (m->readers == 0) meeting = m.get();
    }
    if (meeting == nullptr) {
      self.warp->meetings.push_back(std::make_unique<Meeting>());
      meeting = self.warp->meetings.back().get();
    }
    meeting->mask = mask;
    meeting->arrived = 0;
    meeting->instruction = instruction;
    meeting->site = site;
  } else if (meeting->mask != mask || std::strcmp(meeting->instruction, instruction) != 0 ||
             (one_site &&
              (meeting->site.line != site.line || std::strcmp(meeting->site.file, site.file) != 0))) {
    fault(std::string("divergent warp: this lane is at ") + instruction + ", others of its mask at " +
              meeting->instruction + " (" + at(meeting->site) + ")",
          site);
  }
  auto* const to = meeting->lanes.of[self.lane].bytes;
  for (size_t i = 0; i < bytes; ++i) to[i] = static_cast<const unsigned char*>(mine)[i];
  meeting->arrived |= 1u << self.lane;
  ++meeting->readers;
  self.meeting = meeting;
  if (meeting->arrived == mask) {
    for (Fiber* f : self.warp->lanes) {
      if (f != nullptr && f != &self && f->state == State::kAtWarp && f->meeting == meeting)
        f->state = State::kReady;
    }
  } else {
    self.state = State::kAtWarp;
    self.site = site;
    self.waits_for = instruction;
    to_scheduler(false);
  }
  return meeting->lanes;
}

void warp_barrier(unsigned mask, Site site) {
  happens_before(&current->warp->order);
  meet(mask, nullptr, 0, "syncwarp", site);
  happens_after(&current->warp->order);
}

void check_source(unsigned mask, int from, const char* instruction, Site site) {
  if (from < 0 || from > 31 || !(mask >> from & 1)) {
    fault(std::string(instruction) + ": reads lane " + std::to_string(from) + ", which the mask leaves out",
          site);
  }
}

void check_aligned(const void* at_, size_t bytes, Site site) {
  if (reinterpret_cast<uintptr_t>(at_) % bytes != 0) {
    fault("misaligned access of " + std::to_string(bytes) + " bytes", site);
  }
}

void check_shared(const void* at_, size_t bytes, Site site) {
  const auto* const p = static_cast<const unsigned char*>(at_);
  for (const Shared& s : block->shared) {
    if (p >= s.data && p + bytes <= s.data + s.bytes) return;
  }
  fault("outside the block's shared memory", site);
}

void note_copy(const Copy& copy, Site) {
  current->copies.push_back(copy);
  current->copies.back().group = current->groups;
}

bool take_copy(int newest_group, Copy& copy) {
  auto& copies = current->copies;
  const auto found =
      std::find_if(copies.begin(), copies.end(), [&](const Copy& c) { return c.group <= newest_group; });
  if (found == copies.end()) return false;
  copy = *found;
  copies.erase(found);
  return true;
}

int commit_group() { return ++current->groups; }
int closed_groups() { return current->groups; }

}  // namespace zb::cuda::emulation
