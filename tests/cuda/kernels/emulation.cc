#include "tests/cuda/kernels/emulation.h"

#include <setjmp.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

namespace rp::emulation {

namespace {

constexpr std::size_t kStackBytes = 128 << 10;
constexpr unsigned kLanes = 32;

// Released when all have come; a thread that goes on early waits at the next one.
struct Barrier {
  unsigned size = 0;
  unsigned arrived = 0;
  std::uint64_t generation = 0;
};

// Entered through `context`, later resumed at `resume`: a jump saves the two system calls of swapcontext().
struct Fiber {
  ucontext_t context = {};
  jmp_buf resume = {};
  std::unique_ptr<char[]> stack = std::make_unique<char[]>(kStackBytes);
  bool is_started = false;
  bool is_done = false;
  unsigned num_exchanges = 0;
};

struct Warp {
  Barrier barrier;
  std::uint64_t bits[2][kLanes] = {};  // of even and odd exchanges: one barrier each is enough
};

jmp_buf scheduler;
std::vector<std::unique_ptr<Fiber>> fibers;
std::vector<Warp> warps;
Barrier block_barrier;
const std::function<void()>* block_body = nullptr;
bool made_progress = false;

Fiber& current() { return *fibers[thread_index.x]; }

void yield() {
  if (_setjmp(current().resume) == 0) _longjmp(scheduler, 1);
}

// Runs the current thread until it yields.
void resume() {
  if (_setjmp(scheduler) != 0) return;
  if (current().is_started) _longjmp(current().resume, 1);
  current().is_started = true;
  setcontext(&current().context);
}

void run_fiber() {
  (*block_body)();
  current().is_done = true;
  made_progress = true;
  _longjmp(scheduler, 1);
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
  fiber.is_started = false;
  fiber.is_done = false;
  fiber.num_exchanges = 0;
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

}  // namespace

void fail(const std::string& why) {
  std::fprintf(stderr, "emulated kernel: %s (block %u, %u, thread %u)\n", why.c_str(), block_index.x, block_index.y,
               thread_index.x);
  std::abort();
}

void wait_for_block() { wait_at(block_barrier); }

std::uint64_t exchange(std::uint64_t bits, unsigned step) {
  Warp& warp = warps[thread_index.x / kLanes];
  const unsigned lane = thread_index.x % kLanes;
  std::uint64_t* values = warp.bits[current().num_exchanges++ % 2];
  values[lane] = bits;
  wait_at(warp.barrier);
  return values[lane ^ step];
}

void run_block(unsigned threads, const std::function<void()>& body) {
  block_body = &body;
  block_barrier = {.size = threads};
  warps.assign(threads / kLanes, Warp{.barrier = {.size = kLanes}});
  while (fibers.size() < threads) fibers.push_back(std::make_unique<Fiber>());
  for (unsigned i = 0; i < threads; ++i) start(*fibers[i]);
  // Each warp runs as far as it can before the next one does, from the first or from the last one on: where a barrier is
  // missing, some warp is far ahead of another.
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
