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
  for (unsigned num_done = 0; num_done < threads;) {
    made_progress = false;
    num_done = 0;
    for (unsigned i = 0; i < threads; ++i) {
      thread_index = {i, 0};
      if (!fibers[i]->is_done) resume();
      num_done += fibers[i]->is_done ? 1 : 0;
    }
    if (!made_progress) fail("not all threads reach a barrier");
  }
}

}  // namespace rp::emulation
