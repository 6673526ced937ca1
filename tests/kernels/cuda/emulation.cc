#include "tests/kernels/cuda/emulation.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <ucontext.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <vector>

namespace rp::emulation {

namespace {

constexpr std::size_t kStackBytes = 128 << 10;
constexpr unsigned kLanes = 32;

// A barrier that is released when all threads have arrived. A thread that continues early waits at
// the next barrier.
struct Barrier {
  unsigned size = 0;
  unsigned arrived = 0;
  std::uint64_t generation = 0;
};

struct Copy {
  void* to = nullptr;
  const void* from = nullptr;
};

// A fiber is entered through `context` and later resumed at `resume`, because a jump avoids the two
// system calls of swapcontext().
struct Fiber {
  ucontext_t context = {};
  jmp_buf resume = {};
  std::unique_ptr<char[]> stack = std::make_unique<char[]>(kStackBytes);
  bool is_started = false;
  bool is_done = false;
  unsigned num_exchanges = 0;
  std::vector<Copy> copies;                   // of the group that has not ended
  std::deque<std::vector<Copy>> copy_groups;  // groups that have not been waited for
};

struct Warp {
  Barrier barrier;
  std::uint64_t bits[2][kLanes] = {};  // for even and odd exchanges, so that one barrier each is enough
};

jmp_buf scheduler;
std::vector<std::unique_ptr<Fiber>> fibers;
std::vector<Warp> warps;
Barrier block_barrier;
const std::function<void()>* block_body = nullptr;
bool made_progress = false;

Fiber& current() { return *fibers[thread_index.x]; }

// The C library's _longjmp(). AddressSanitizer replaces it by one that makes all of the stack accessible again, with a
// system call: this took most of the time of its tests.
void (*const jump)(jmp_buf, int) = reinterpret_cast<void (*)(jmp_buf, int)>(dlsym(RTLD_NEXT, "_longjmp"));

void yield() {
  if (_setjmp(current().resume) == 0) jump(scheduler, 1);
}

// Runs the current thread until it yields.
void resume() {
  if (_setjmp(scheduler) != 0) return;
  if (current().is_started) jump(current().resume, 1);
  current().is_started = true;
  setcontext(&current().context);
}

void check_copies() {
  const Fiber& fiber = current();
  bool is_empty = fiber.copies.empty();
  for (const auto& group : fiber.copy_groups) is_empty = is_empty && group.empty();
  if (!is_empty) fail("a thread ends without waiting for its copies");
}

// A fiber runs one thread of each block, so that starting a block needs no system calls.
void run_fiber() {
  for (;;) {
    (*block_body)();
    check_copies();
    current().is_done = true;
    made_progress = true;
    yield();
  }
}

void wait_at(Barrier& barrier) {
  const std::uint64_t generation = barrier.generation;
  if (++barrier.arrived == barrier.size) {
    barrier.arrived = 0;
    ++barrier.generation;
    made_progress = true;
    return;
  }
  while (barrier.generation == generation) yield();
}

void start(Fiber& fiber) {
  fiber.is_done = false;
  fiber.num_exchanges = 0;
  fiber.copy_groups.clear();
  if (fiber.is_started) return;  // it is waiting for the next block
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, run_fiber, 0);
}

void run_warp(unsigned warp) {
  for (unsigned i = warp * kLanes; i < (warp + 1) * kLanes; ++i) {
    thread_index = {i, 0};
    if (!fibers[i]->is_done) resume();
  }
}

bool is_warp_done(unsigned warp) {
  return std::all_of(fibers.begin() + warp * kLanes, fibers.begin() + (warp + 1) * kLanes,
                     [](const auto& fiber) { return fiber->is_done; });
}

// Passes `bits` to the other lanes of the warp and returns the bits that each lane passed.
std::array<std::uint64_t, kLanes> gather(std::uint64_t bits) {
  Warp& warp = warps[thread_index.x / kLanes];
  std::uint64_t* values = warp.bits[current().num_exchanges++ % 2];
  values[thread_index.x % kLanes] = bits;
  wait_at(warp.barrier);
  std::array<std::uint64_t, kLanes> all = {};
  std::copy_n(values, kLanes, all.begin());
  return all;
}

// Returns the low or the high half of a register.
std::uint16_t half_of(std::uint64_t word, unsigned i) { return static_cast<std::uint16_t>(word >> (16 * i)); }

std::uint64_t both(std::uint32_t low, std::uint32_t high) { return low | std::uint64_t{high} << 32; }

}  // namespace

void fail(const std::string& why) {
  std::fprintf(stderr, "emulated kernel: %s (block %u, %u, thread %u)\n", why.c_str(), block_index.x, block_index.y,
               thread_index.x);
  std::abort();
}

void wait_for_block() { wait_at(block_barrier); }

std::uint64_t exchange(std::uint64_t bits, unsigned step) { return gather(bits)[thread_index.x % kLanes ^ step]; }

void begin_copy(void* to, const void* from) { current().copies.push_back({to, from}); }

void end_copy_group() {
  Fiber& fiber = current();
  fiber.copy_groups.push_back(std::move(fiber.copies));
  fiber.copies.clear();
}

void wait_for_copies(std::size_t num_left) {
  std::deque<std::vector<Copy>>& groups = current().copy_groups;
  for (; groups.size() > num_left; groups.pop_front()) {
    for (const auto& [to, from] : groups.front()) from == nullptr ? std::memset(to, 0, 16) : std::memcpy(to, from, 16);
  }
}

void load_matrices(std::uint32_t (&to)[4], const void* row, bool is_transposed) {
  if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0) fail("a row of a matrix that is not aligned");
  const auto rows = gather(reinterpret_cast<std::uintptr_t>(row));
  const unsigned lane = thread_index.x % kLanes;
  for (unsigned i = 0; i < 4; ++i) {
    const auto element = [&](unsigned r, unsigned c) {
      return std::uint32_t{reinterpret_cast<const std::uint16_t*>(static_cast<std::uintptr_t>(rows[8 * i + r]))[c]};
    };
    const unsigned line = lane / 4, first = lane % 4 * 2;
    to[i] = is_transposed ? element(first, line) | element(first + 1, line) << 16
                          : element(line, first) | element(line, first + 1) << 16;
  }
}

void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t* b, float (*widen)(std::uint16_t)) {
  const auto a01 = gather(both(a[0], a[1])), a23 = gather(both(a[2], a[3])), b01 = gather(both(b[0], b[1]));
  const unsigned lane = thread_index.x % kLanes;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    double sum = 0;
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned of_k = k % 8 / 2;
      const auto& a_words = k < 8 ? a01 : a23;
      const auto a_bits = half_of(a_words[row % 8 * 4 + of_k] >> (32 * (row / 8)), k % 2);
      const auto b_bits = half_of(b01[column * 4 + of_k] >> (32 * (k / 8)), k % 2);
      sum += static_cast<double>(widen(a_bits)) * static_cast<double>(widen(b_bits));
    }
    c[i] = static_cast<float>(static_cast<double>(c[i]) + sum);
  }
}

void run_block(unsigned threads, const std::function<void()>& body) {
  block_body = &body;
  block_barrier = {.size = threads};
  warps.assign(threads / kLanes, Warp{.barrier = {.size = kLanes}});
  while (fibers.size() < threads) fibers.push_back(std::make_unique<Fiber>());
  for (unsigned i = 0; i < threads; ++i) start(*fibers[i]);
  // Each warp runs until it must wait before the next one runs, starting from the first or from the
  // last warp. So if a barrier is missing, some warp gets far ahead of another.
  const auto num_warps = static_cast<unsigned>(warps.size());
  for (bool is_done = false; !is_done;) {
    is_done = true;
    bool any_progress = false;
    for (unsigned i = 0; i < num_warps; ++i) {
      const unsigned warp = (block_index.x + block_index.y) % 2 == 0 ? i : num_warps - 1 - i;
      do {
        made_progress = false;
        run_warp(warp);
        any_progress = any_progress || made_progress;
      } while (made_progress);
      is_done = is_done && is_warp_done(warp);
    }
    if (!any_progress && !is_done) fail("not all threads reach a barrier");
  }
}

}  // namespace rp::emulation
