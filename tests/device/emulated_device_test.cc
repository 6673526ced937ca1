#include "device/emulated_device.h"

#include <gtest/gtest.h>

#include "common/system/clock.h"
#include "tests/common/expect_refusal.h"
#include "tests/common/wait_limits.h"

namespace rp {
namespace {

TEST(EmulatedDevice, TakesAtLeastTheEmulatedTimeOfItsCopies) {
  EmulatedDevice device({.upload_bytes_per_ns = 1});
  Stream& stream = device.stream(StreamKind::kUploadParameters);
  const DeviceMemory memory = device.allocate(1 << 20, MemoryUse::kInputs);
  SequenceWord word{};
  const std::int64_t start = now_ns();
  for (int i = 0; i < 4; ++i) stream.copy(memory.data(), nullptr, 1 << 20);
  stream.signal(word, 1);
  EXPECT_LT(now_ns() - start, 4 << 20) << "who enqueues does not wait";
  EXPECT_EQ(word.observe(), 0U);
  ASSERT_EQ(word.wait_at_least(1, kLong), WaitResult::kReached);
  EXPECT_GE(now_ns() - start, 4 << 20);
  const CopyTimes last = device.last_copy(memory.data(), memory.bytes());
  EXPECT_LE(last.end_ns, now_ns());
  EXPECT_GE(last.end_ns, start + (4 << 20));
}

TEST(EmulatedDevice, HasTheMemoryOfItsModel) {
  EmulatedDevice device({.name = "small", .memory_bytes = 10'000});
  DeviceMemory first = device.allocate(6'000, MemoryUse::kInputs);
  expect_error(ExitCode::kNoResource, {"small has", "are taken", "use smaller stages"},
               [&] { (void)device.allocate(5'000, MemoryUse::kInputs); });
  first = DeviceMemory();
  EXPECT_EQ(device.allocate(10'000, MemoryUse::kInputs).bytes(), 10'000U);
}

TEST(EmulatedDevice, GivesMemoryThatTakesNone) {
  EmulatedDevice device({});
  const std::uint64_t large = std::uint64_t{256} << 30;
  const DeviceMemory memory = device.allocate(large, MemoryUse::kInputs);
  EXPECT_EQ(memory.bytes(), large);
  EXPECT_DEATH((void)*reinterpret_cast<volatile std::byte*>(memory.data()), "");
}

}  // namespace
}  // namespace rp
