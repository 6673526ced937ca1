#include "device/cpu_arena.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "roundpipe/error.h"

namespace rp {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// Of this thread.
long page_faults() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
}

TEST(CpuArena, GivesNoPageBackSoThatTheSameSizesAgainCauseNoPageFaults) {
  CpuArena arena;
  const std::vector<std::uint64_t> sizes = {3 * kMiB, 40 * kMiB, 64 << 10, 17 * kMiB, 5000};
  const auto round = [&] {
    std::vector<std::byte*> parts;
    for (const std::uint64_t bytes : sizes) {
      parts.push_back(arena.allocate(bytes, MemoryUse::kTensors));
      std::memset(parts.back(), 1, bytes);
    }
    for (std::byte* const part : parts) arena.free(part);
  };
  round();
  const long before = page_faults();
  for (int i = 0; i < 20; ++i) round();
  EXPECT_LT(page_faults() - before, 1000) << "20 rounds of 15,000 pages; a sanitizer has some of its own";
}

TEST(CpuArena, CountsWhatIsInUseByPurposeAndThePeakOfEach) {
  CpuArena arena;
  std::byte* const weights = arena.allocate(8 * kMiB, MemoryUse::kWeights);
  std::byte* const tensor = arena.allocate(2 * kMiB, MemoryUse::kTensors);
  EXPECT_EQ(arena.take_tensor_level().bytes, 2 * kMiB);
  arena.count_as(tensor, MemoryUse::kOutputs);
  EXPECT_EQ(arena.take_tensor_level().bytes, 0U);
  arena.free(weights);
  arena.free(tensor);
  const DeviceMemoryPeaks peaks = arena.peaks();
  EXPECT_EQ(peaks.limit_bytes, 0U);
  EXPECT_EQ(peaks.most_bytes, 10 * kMiB);
  EXPECT_EQ(peaks.most_by_use[static_cast<std::size_t>(MemoryUse::kWeights)], 8 * kMiB);
  EXPECT_EQ(peaks.most_by_use[static_cast<std::size_t>(MemoryUse::kOutputs)], 2 * kMiB);
}

TEST(CpuArena, KnowsItsOwnMemory) {
  CpuArena arena;
  const std::byte elsewhere{};
  std::byte* const data = arena.allocate(1, MemoryUse::kInputs);
  EXPECT_TRUE(arena.holds(data));
  EXPECT_FALSE(arena.holds(&elsewhere));
  arena.count_as(&elsewhere, MemoryUse::kOutputs);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 4096, 0U);
  arena.free(data);
}

TEST(CpuArena, ServesSeveralThreadsThatGrowItAtOnce) {
  CpuArena arena;
  const auto work = [&arena](unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::pair<unsigned char*, std::size_t>> parts;
    for (int i = 0; i < 200; ++i) {
      const std::size_t bytes = 1 + random() % (4 * kMiB);
      auto* const data = reinterpret_cast<unsigned char*>(arena.allocate(bytes, MemoryUse::kTensors));
      data[0] = data[bytes - 1] = static_cast<unsigned char>(seed);
      parts.emplace_back(data, bytes);
      if (parts.size() < 8) continue;
      const auto [first, length] = parts[random() % parts.size()];
      EXPECT_EQ(first[0], seed);
      EXPECT_EQ(first[length - 1], seed);
      std::erase(parts, std::pair(first, length));
      arena.free(reinterpret_cast<std::byte*>(first));
    }
    for (const auto& [data, bytes] : parts) arena.free(reinterpret_cast<std::byte*>(data));
  };
  std::vector<std::thread> threads;
  for (unsigned i = 1; i <= 4; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(arena.take_tensor_level().bytes, 0U);
}

TEST(CpuArena, RefusesMoreThanTheMachineHasWithWhatTheWorkerHas) {
  CpuArena arena;
  std::byte* const weights = arena.allocate(3 * kMiB, MemoryUse::kWeights);
  try {
    (void)arena.allocate(std::uint64_t{1} << 50, MemoryUse::kTensors);
    FAIL() << "the machine has no such memory";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kNoResource);
    const std::string text = error.what();
    EXPECT_NE(text.find("saved activations and workspace"), std::string::npos) << text;
    EXPECT_NE(text.find("weights 3.00 MiB"), std::string::npos) << text;
    EXPECT_NE(text.find("--num-microbatches"), std::string::npos) << text;
  }
  arena.free(weights);
}

}  // namespace
}  // namespace rp
