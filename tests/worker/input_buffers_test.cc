#include "worker/input_buffers.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/worker/worker_harness.h"

namespace rp {
namespace {

// Aligned like the blocks of an arena.
struct Block {
  std::vector<std::uint64_t> memory;
  std::uint64_t bytes = 0;
  [[nodiscard]] const std::byte* data() const { return reinterpret_cast<const std::byte*>(memory.data()); }
};

Block block_of(const std::vector<TensorView>& tensors, const std::vector<std::byte>& structure = {}) {
  const BlockLayout layout = lay_out_block(tensors, structure.size());
  Block block{std::vector<std::uint64_t>(layout.bytes / 8), layout.bytes};
  auto* data = reinterpret_cast<std::byte*>(block.memory.data());
  write_block_head(data, layout, structure);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].data != nullptr)
      std::memcpy(data + layout.tensors[i].offset, tensors[i].data, tensors[i].desc.bytes());
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
  const auto arguments = block_of({test::float_tensor(three)}, {std::byte{7}});
  inputs.upload(0, BlockKind::kActivation, 2, activation.data(), activation.bytes, stream);
  inputs.upload(0, BlockKind::kArguments, 0, arguments.data(), arguments.bytes, stream);
  inputs.publish_recomputable(0, stream);
  EXPECT_EQ(inputs.wait_recomputable(0, kLong), WaitResult::kReached);
  EXPECT_EQ(inputs.wait_uploaded(0, {&kNeverStop, 0}), WaitResult::kTimedOut);
  const auto gradient = block_of({test::float_tensor(two)});
  inputs.upload(0, BlockKind::kGradient, 3, gradient.data(), gradient.bytes, stream);
  inputs.publish_uploaded(0, stream);
  ASSERT_EQ(inputs.wait_uploaded(0, kLong), WaitResult::kReached);
  const MicrobatchInputs& got = inputs.inputs(0);
  EXPECT_EQ(first_value(got.tensors(BlockKind::kGradient, 3).at(0)), 2);
  EXPECT_EQ(first_value(got.tensors(BlockKind::kActivation, 2).at(0)), 1) << "each has memory of its own";
  const std::vector<TensorView>& tensors = got.tensors(BlockKind::kActivation, 2);
  ASSERT_EQ(tensors.size(), 3U);
  EXPECT_EQ(first_value(tensors[0]), 1);
  EXPECT_EQ(tensors[0].desc.shape[0], 3);
  EXPECT_TRUE(tensors[1].desc.is_absent());
  EXPECT_EQ(tensors[1].data, nullptr);
  EXPECT_EQ(first_value(tensors[2]), 2);
  const InputBlock* loss = got.find(BlockKind::kArguments, 0);
  ASSERT_NE(loss, nullptr);
  ASSERT_EQ(loss->tensors.size(), 1U);
  EXPECT_EQ(first_value(loss->tensors[0]), 3);
  EXPECT_EQ(loss->structure, std::vector<std::byte>{std::byte{7}});
  EXPECT_EQ(got.find(BlockKind::kActivation, 1), nullptr);
  EXPECT_EQ(got.find(BlockKind::kGradient, 2), nullptr);
}

TEST(InputBuffers, HoldTwoMicrobatchesAndNoThirdBeforeOneIsComputed) {
  CpuDevice device;
  InputBuffers inputs(device);
  const WaitLimits at_once{&kNeverStop, 0};
  EXPECT_EQ(inputs.wait_free(0, at_once), WaitResult::kReached);
  EXPECT_EQ(inputs.wait_free(1, at_once), WaitResult::kReached);
  EXPECT_EQ(inputs.wait_free(2, at_once), WaitResult::kTimedOut);
  EXPECT_EQ(inputs.wait_uploaded(0, at_once), WaitResult::kTimedOut);
  inputs.publish_computed(0, device.stream(StreamKind::kCompute));
  EXPECT_EQ(inputs.wait_free(2, at_once), WaitResult::kReached);
  EXPECT_EQ(inputs.wait_free(3, at_once), WaitResult::kTimedOut);
}

TEST(InputBuffers, CarryManyMicrobatchesFromTheFetcherToTheRunner) {
  CpuDevice device;
  InputBuffers inputs(device);
  constexpr std::uint64_t kNum = 500;
  std::thread input_uploader([&] {
    Stream& stream = device.stream(StreamKind::kUploadActivations);
    for (std::uint64_t n = 0; n < kNum; ++n) {
      const std::vector<float> values(1 + n % 7, static_cast<float>(n));  // the sizes change, so the memory grows
      const auto block = block_of({test::float_tensor(values)});
      ASSERT_EQ(inputs.wait_free(n, kLong), WaitResult::kReached);
      inputs.clear(n, stream);
      inputs.upload(n, BlockKind::kActivation, 0, block.data(), block.bytes, stream);
      inputs.publish_uploaded(n, stream);
    }
  });
  for (std::uint64_t n = 0; n < kNum; ++n) {
    ASSERT_EQ(inputs.wait_uploaded(n, kLong), WaitResult::kReached);
    const std::vector<TensorView>& tensors = inputs.inputs(n).tensors(BlockKind::kActivation, 0);
    ASSERT_EQ(tensors.size(), 1U);
    EXPECT_EQ(tensors[0].desc.shape[0], static_cast<std::int64_t>(1 + n % 7));
    EXPECT_EQ(first_value(tensors[0]), static_cast<float>(n));
    inputs.publish_computed(n, device.stream(StreamKind::kCompute));
  }
  input_uploader.join();
}

}  // namespace
}  // namespace rp
