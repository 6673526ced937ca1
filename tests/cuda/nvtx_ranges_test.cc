// Tests NVTX with our own profiler library (tests/cuda/nvtx_injection.cc), which
// NVTX_INJECTION64_PATH names as a profiler does.
#include "cuda/nvtx_ranges.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <sstream>
#include <thread>

#include "worker/observers/task_ranges.h"

namespace rp {
namespace {

using testing::Contains;
using testing::ElementsAre;

std::vector<std::string> lines() {
  void* const library = dlopen(std::getenv("NVTX_INJECTION64_PATH"), RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return {"NVTX did not load the library"};
  const auto text = reinterpret_cast<const char* (*)()>(dlsym(library, "nvtx_lines"));
  std::vector<std::string> result;
  std::istringstream stream(text());
  for (std::string line; std::getline(stream, line);) result.push_back(line);
  return result;
}

TEST(NvtxRanges, ReachTheProfilerWithTheNamesOfStreamsAndThreads) {
  std::mutex mutex;
  std::condition_variable changed;
  int state = 0;
  std::thread other([&] {
    pthread_setname_np(pthread_self(), "rp-weights");
    std::unique_lock lock(mutex);
    state = 1;
    changed.notify_all();
    changed.wait(lock, [&] { return state == 2; });
  });
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return state == 1; });
  }
  const auto ranges =
      make_nvtx_ranges({{.stream = nullptr, .name = "upload weights"}, {.stream = nullptr, .name = "compute"}});
  ASSERT_NE(ranges, nullptr);
  EXPECT_THAT(lines(), ElementsAre("stream upload weights", "stream compute"));
  {
    TaskRanges task_ranges(ranges.get());
    const Command command{.phase = Phase::kBackward, .round = 7, .step = 4, .first_layer = 2, .end_layer = 4};
    const auto task = task_ranges.task(command);
    const auto microbatch = task_ranges.microbatch(1, true);
    task_ranges.layer(3);
  }
  {
    std::unique_lock lock(mutex);
    state = 2;
    changed.notify_all();
  }
  other.join();
  std::vector<std::string> said = lines();
  EXPECT_THAT(said, Contains("thread rp-weights"));
  std::erase_if(said, [](const std::string& line) { return !line.starts_with("p"); });
  EXPECT_THAT(said, ElementsAre("push backward of layers 2-3, pipeline 0, round 7, step 4",
                                "push recompute of microbatch 1", "push layer 3", "pop", "pop", "pop"));
}

TEST(NvtxRanges, AreNoneWithoutAProfiler) {
  const std::string path = std::getenv("NVTX_INJECTION64_PATH");
  unsetenv("NVTX_INJECTION64_PATH");
  EXPECT_EQ(make_nvtx_ranges({}), nullptr);
  setenv("NVTX_INJECTION64_PATH", path.c_str(), 1);
}

}  // namespace
}  // namespace rp
