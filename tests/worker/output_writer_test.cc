#include "worker/output_writer.h"

#include <gtest/gtest.h>

#include <atomic>

#include "tests/common/expect_refusal.h"
#include "tests/worker/worker_harness.h"

namespace rp {
namespace {

class OutputWriterTest : public testing::Test {
 protected:
  MicrobatchOutputs output(int index, std::vector<float> values) {
    auto owner = std::make_shared<std::vector<float>>(std::move(values));
    last_owner_ = owner;
    MicrobatchOutputs outputs;
    outputs.blocks.push_back(
        {.kind = BlockKind::kActivation, .index = index, .tensors = {test::float_tensor(*owner)}, .owner = owner});
    return outputs;
  }
  void TearDown() override { device_.stream(StreamKind::kDownload).drain(); }

  void wait_for_event(EventInEpoch event) {
    ASSERT_EQ(store_->worker_words(0).events.wait_at_least(event, kLong), WaitResult::kReached);
  }
  const BlockPlace& place(int boundary, int microbatch) {
    return table_.place(BlockKind::kActivation, boundary, microbatch);
  }

  std::unique_ptr<Store> store_ = test::two_layer_store({.wait_timeout_ns = kNsPerSecond});
  RoundTable table_ = test::make_table(*store_);
  CpuDevice device_;
  WorkerObservers no_observers_;
  HostSignals signals_{*store_, 0};
  OutputWriter writer_{*store_, 0, device_, signals_, no_observers_};
  Command command_ = test::forward_command();
  std::weak_ptr<std::vector<float>> last_owner_;
};

TEST_F(OutputWriterTest, WritesABlockThatOthersFindByItsEvent) {
  command_.slot = SlotInEpoch(Epoch(0), SlotNumber(9));
  command_.first_event = EventNumber(20);
  writer_.write(command_, 1, output(1, {5, 6, 7}));
  wait_for_event(EventInEpoch(22));
  EXPECT_EQ(place(1, 1).slot, SlotInEpoch(9));
  EXPECT_EQ(place(1, 1).arena, 0U);
  const std::byte* block = store_->block_data(place(1, 1));
  const BlockHead head = read_block_head(block, place(1, 1).bytes);
  ASSERT_EQ(head.tensors.size(), 1U);
  EXPECT_EQ(head.tensors[0].shape[0], 3);
  EXPECT_EQ(reinterpret_cast<const float*>(block + head.tensors[0].offset)[2], 7);
  device_.stream(StreamKind::kDownload).drain();
  EXPECT_TRUE(last_owner_.expired()) << "the tensors live until they are copied, and no longer";
}

TEST_F(OutputWriterTest, PublishesTheEventOfAMicrobatchWithoutOutput) {
  command_.slot = SlotInEpoch(Epoch(3), SlotNumber(9));
  writer_.write(command_, 0, {});
  wait_for_event(EventInEpoch(Epoch(3), EventNumber(1)));
}

TEST_F(OutputWriterTest, HasRoomForTheOutputsOfTwoMicrobatchesUntilTheyAreCopied) {
  const WaitLimits at_once{&kNeverStop, 0};
  std::atomic<bool> goes_on{false};
  device_.stream(StreamKind::kDownload)
      .call([](void* flag) { static_cast<std::atomic<bool>*>(flag)->wait(false); }, &goes_on);
  EXPECT_EQ(writer_.wait_room(at_once), WaitResult::kReached);
  writer_.write(command_, 0, output(1, {1}));
  EXPECT_EQ(writer_.wait_room(at_once), WaitResult::kReached);
  writer_.write(command_, 1, {});
  EXPECT_EQ(writer_.wait_room(at_once), WaitResult::kTimedOut);
  goes_on.store(true);
  goes_on.notify_all();
  EXPECT_EQ(writer_.wait_room(kLong), WaitResult::kReached);
}

TEST_F(OutputWriterTest, UsesAgainWhatTheCoordinatorFreed) {
  RingWriter<FreeRecord> frees = store_->free_writer(0);
  for (int turn = 0; turn < 200; ++turn) {
    writer_.write(command_, 0, output(1, std::vector<float>(30'000, 1)));
    device_.stream(StreamKind::kDownload).drain();
    ASSERT_TRUE(frees.try_push({.epoch = Epoch(0), .offset = place(1, 0).offset}));
  }
  EXPECT_EQ(store_->arena(0).segment().bytes(), std::uint64_t{1} << 20);
}

TEST_F(OutputWriterTest, IgnoresFreesOfAnotherEpoch) {
  writer_.write(command_, 0, output(1, {1}));
  const std::uint64_t offset = place(1, 0).offset;
  ASSERT_TRUE(store_->free_writer(0).try_push({.epoch = Epoch(7), .offset = offset}));
  writer_.write(command_, 0, output(1, {2}));
  EXPECT_NE(place(1, 0).offset, offset);
}

TEST_F(OutputWriterTest, SaysWhenTheBudgetIsSpent) {
  expect_error(ExitCode::kNoResource, {"activations of worker 0", "budget"}, [&] {
    for (int i = 0; i < 10; ++i) {
      ASSERT_EQ(writer_.wait_room(kLong), WaitResult::kReached);
      writer_.write(command_, 0, output(1, std::vector<float>(250'000, 1)));
    }
  });
}

}  // namespace
}  // namespace rp
