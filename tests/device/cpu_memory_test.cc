#include "device/cpu_memory.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>
#include <vector>

#include "roundpipe/error.h"
#include "tests/common/present_pages.h"

namespace rp {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

TEST(CpuMemory, GivesNoPageOfATensorBackSoThatTheSameSizesAgainCauseNoPageFaults) {
  CpuMemory memory;
  const std::vector<std::uint64_t> sizes = {3 * kMiB, 40 * kMiB, 64 << 10, 17 * kMiB, 5000};
  for (int round = 0; round < 3; ++round) {
    std::vector<std::byte*> tensors;
    for (const std::uint64_t bytes : sizes) {
      tensors.push_back(memory.allocate_tensor(bytes));
      EXPECT_EQ(num_present_pages(tensors.back(), bytes), (bytes + kTestPage - 1) / kTestPage) << "in round " << round;
    }
    for (std::byte* const tensor : tensors) memory.free_tensor(tensor);
  }
  EXPECT_EQ(memory.peaks().peak_bytes, 3 * kMiB + 40 * kMiB + (64 << 10) + 17 * kMiB + 8192)
      << "each round in the places of the first";
}

TEST(CpuMemory, GivesBuffersWithTheirPagesAndTakesThemBackWhole) {
  CpuMemory memory;
  std::byte* const buffer = memory.allocate_buffer(5 * kMiB, MemoryUse::kWeights);
  EXPECT_EQ(num_present_pages(buffer, 5 * kMiB), 5 * kMiB / kTestPage);
  memory.free_buffer(buffer, 5 * kMiB, MemoryUse::kWeights);
  EXPECT_EQ(num_present_pages(buffer, 5 * kMiB), 0U);
}

TEST(CpuMemory, GivesAPreparedBufferToWhoAsksForItsSizeAndUse) {
  CpuMemory memory;
  memory.prepare_buffer(5 * kMiB, MemoryUse::kAccumulators);
  EXPECT_EQ(memory.peaks().peak_bytes, 5 * kMiB);
  std::byte* const other = memory.allocate_buffer(5 * kMiB, MemoryUse::kWeights);
  std::byte* const prepared = memory.allocate_buffer(5 * kMiB, MemoryUse::kAccumulators);
  EXPECT_EQ(memory.peaks().peak_bytes, 10 * kMiB) << "counted once";
  EXPECT_EQ(num_present_pages(prepared, 5 * kMiB), 5 * kMiB / kTestPage);
  std::byte* const next = memory.allocate_buffer(5 * kMiB, MemoryUse::kAccumulators);
  EXPECT_NE(next, prepared) << "given once";
  for (std::byte* const buffer : {prepared, next}) memory.free_buffer(buffer, 5 * kMiB, MemoryUse::kAccumulators);
  memory.free_buffer(other, 5 * kMiB, MemoryUse::kWeights);
}

TEST(CpuMemory, CountsWhatIsInUseByPurposeAndThePeakOfEach) {
  CpuMemory memory;
  std::byte* const weights = memory.allocate_buffer(8 * kMiB, MemoryUse::kWeights);
  std::byte* const tensor = memory.allocate_tensor(2 * kMiB);
  EXPECT_EQ(memory.take_tensor_level().bytes, 2 * kMiB);
  memory.count_tensor_as(tensor, MemoryUse::kOutputs);
  EXPECT_EQ(memory.take_tensor_level().bytes, 0U);
  memory.free_buffer(weights, 8 * kMiB, MemoryUse::kWeights);
  memory.free_tensor(tensor);
  const DeviceMemoryPeaks peaks = memory.peaks();
  EXPECT_EQ(peaks.limit_bytes, 0U);
  EXPECT_EQ(peaks.peak_bytes, 10 * kMiB);
  EXPECT_EQ(peaks.peak_by_use[MemoryUse::kWeights], 8 * kMiB);
  EXPECT_EQ(peaks.peak_by_use[MemoryUse::kOutputs], 2 * kMiB);
}

TEST(CpuMemory, KnowsItsOwnMemory) {
  CpuMemory memory;
  const std::byte elsewhere{};
  std::byte* const data = memory.allocate_tensor(1);
  EXPECT_TRUE(memory.is_tensor(data));
  EXPECT_FALSE(memory.is_tensor(&elsewhere));
  memory.count_tensor_as(&elsewhere, MemoryUse::kOutputs);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 4096, 0U);
  memory.free_tensor(data);
}

TEST(CpuMemory, ServesSeveralThreadsThatGrowItAtOnce) {
  CpuMemory memory;
  const auto work = [&memory](unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::pair<unsigned char*, std::size_t>> parts;
    for (int i = 0; i < 200; ++i) {
      const std::size_t bytes = 1 + random() % (4 * kMiB);
      auto* const data = reinterpret_cast<unsigned char*>(memory.allocate_tensor(bytes));
      data[0] = data[bytes - 1] = static_cast<unsigned char>(seed);
      parts.emplace_back(data, bytes);
      if (parts.size() < 8) continue;
      const auto [first, length] = parts[random() % parts.size()];
      EXPECT_EQ(first[0], seed);
      EXPECT_EQ(first[length - 1], seed);
      std::erase(parts, std::pair(first, length));
      memory.free_tensor(reinterpret_cast<std::byte*>(first));
    }
    for (const auto& [data, bytes] : parts) memory.free_tensor(reinterpret_cast<std::byte*>(data));
  };
  std::vector<std::thread> threads;
  for (unsigned i = 1; i <= 4; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(memory.take_tensor_level().bytes, 0U);
}

TEST(CpuMemory, RefusesMoreThanTheMachineHasWithWhatTheWorkerHas) {
  CpuMemory memory;
  std::byte* const weights = memory.allocate_buffer(3 * kMiB, MemoryUse::kWeights);
  try {
    (void)memory.allocate_tensor(std::uint64_t{1} << 50);
    FAIL() << "the machine has no such memory";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kNoResource);
    const std::string text = error.what();
    EXPECT_NE(text.find("saved activations and workspace"), std::string::npos) << text;
    EXPECT_NE(text.find("weights 3.00 MiB"), std::string::npos) << text;
    EXPECT_NE(text.find("--num-microbatches"), std::string::npos) << text;
  }
  memory.free_buffer(weights, 3 * kMiB, MemoryUse::kWeights);
}

}  // namespace
}  // namespace rp
