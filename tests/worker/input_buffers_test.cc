#include "worker/input_buffers.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/worker/worker_harness.h"

namespace rp {
namespace {

using test::kLong;

std::vector<std::byte> block_of(const std::vector<TensorView>& tensors) {
  BlockHeader header;
  std::vector<std::byte> block(lay_out_block(tensors, header));
  std::memcpy(block.data(), &header, sizeof(header));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].data != nullptr) std::memcpy(block.data() + header.tensors[i].offset, tensors[i].data, tensors[i].desc.bytes());
  }
  return block;
}

float first_value(const TensorView& view) { return *reinterpret_cast<const float*>(view.data); }

TEST(InputBuffers, GiveTheTensorsOfEachKindWithTheirPlaces) {
  CpuDevice device;
  InputBuffers inputs(device);
  Stream& stream = device.stream(StreamKind::kUploadActivations);
  const std::vector<float> one = {1, 1, 1}, two = {2, 2}, three = {3};
  const auto activation = block_of({test::float_tensor(one), TensorView{}, test::float_tensor(two)});
  const auto arguments = block_of({test::float_tensor(three)});
  inputs.upload(0, BlockKind::kActivation, activation.data(), activation.size(), stream);
  inputs.upload(0, BlockKind::kArguments, arguments.data(), arguments.size(), stream);
  inputs.publish_uploaded(0, stream);
  ASSERT_EQ(inputs.wait_uploaded(0, kLong), WaitResult::kReached);
  const MicrobatchInputs& got = inputs.inputs(0);
  ASSERT_EQ(got.activation.size(), 3U);
  EXPECT_EQ(first_value(got.activation[0]), 1);
  EXPECT_EQ(got.activation[0].desc.shape[0], 3);
  EXPECT_TRUE(got.activation[1].desc.is_absent());
  EXPECT_EQ(got.activation[1].data, nullptr);
  EXPECT_EQ(first_value(got.activation[2]), 2);
  ASSERT_EQ(got.arguments.size(), 1U);
  EXPECT_EQ(first_value(got.arguments[0]), 3);
  EXPECT_TRUE(got.gradient.empty());
}

TEST(InputBuffers, HoldTwoMicrobatchesAndNoThirdBeforeOneIsComputed) {
  CpuDevice device;
  InputBuffers inputs(device);
  const WaitLimits at_once{&test::kNeverStop, 0};
  EXPECT_EQ(inputs.wait_free(0, at_once), WaitResult::kReached);
  EXPECT_EQ(inputs.wait_free(1, at_once), WaitResult::kReached);
  EXPECT_EQ(inputs.wait_free(2, at_once), WaitResult::kTimedOut);
  EXPECT_EQ(inputs.wait_uploaded(0, at_once), WaitResult::kTimedOut);
  inputs.publish_computed(0);
  EXPECT_EQ(inputs.wait_free(2, at_once), WaitResult::kReached);
  EXPECT_EQ(inputs.wait_free(3, at_once), WaitResult::kTimedOut);
}

TEST(InputBuffers, CarryManyMicrobatchesFromTheFetcherToTheRunner) {
  CpuDevice device;
  InputBuffers inputs(device);
  constexpr std::uint64_t kNum = 500;
  std::thread fetcher([&] {
    Stream& stream = device.stream(StreamKind::kUploadActivations);
    for (std::uint64_t n = 0; n < kNum; ++n) {
      const std::vector<float> values(1 + n % 7, static_cast<float>(n));  // sizes change: the memory grows on the way
      const auto block = block_of({test::float_tensor(values)});
      ASSERT_EQ(inputs.wait_free(n, kLong), WaitResult::kReached);
      inputs.clear(n);
      inputs.upload(n, BlockKind::kActivation, block.data(), block.size(), stream);
      inputs.publish_uploaded(n, stream);
    }
  });
  for (std::uint64_t n = 0; n < kNum; ++n) {
    ASSERT_EQ(inputs.wait_uploaded(n, kLong), WaitResult::kReached);
    ASSERT_EQ(inputs.inputs(n).activation.size(), 1U);
    EXPECT_EQ(inputs.inputs(n).activation[0].desc.shape[0], static_cast<std::int64_t>(1 + n % 7));
    EXPECT_EQ(first_value(inputs.inputs(n).activation[0]), static_cast<float>(n));
    inputs.publish_computed(n);
  }
  fetcher.join();
}

}  // namespace
}  // namespace rp
