#include "hoststore/control.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace rp {
namespace {

// docs/formats/control.md defines these offsets, because other processes, and later versions, read
// these bytes.
TEST(Control, HasTheDocumentedOffsetsAndSizes) {
  EXPECT_EQ(offsetof(ControlHeader, bytes), 16U);
  EXPECT_EQ(offsetof(ControlHeader, run_id), 24U);
  EXPECT_EQ(offsetof(ControlHeader, catalogue_offset), 56U);
  EXPECT_EQ(offsetof(ControlHeader, num_layers), 72U);
  EXPECT_EQ(offsetof(ControlHeader, arena_limit_bytes), 96U);
  EXPECT_EQ(offsetof(ControlHeader, wait_timeout_ns), 104U);
  EXPECT_EQ(offsetof(ControlHeader, checks_consistency), 112U);
  EXPECT_EQ(offsetof(ControlHeader, is_sparse), 114U);
  EXPECT_EQ(offsetof(ControlHeader, gradients_yield), 118U);
  EXPECT_EQ(sizeof(ControlHeader), 120U);
  EXPECT_EQ(offsetof(Command, loss), 12U);
  EXPECT_EQ(offsetof(Command, slot), 16U);
  EXPECT_EQ(offsetof(Command, version), 40U);
  EXPECT_EQ(offsetof(Command, first_event), 56U);
  EXPECT_EQ(offsetof(Command, table), 64U);
  EXPECT_EQ(offsetof(Command, layer_base), 80U);
  EXPECT_EQ(offsetof(Command, first_layer), 88U);
  EXPECT_EQ(offsetof(Command, num_argument_imports), 108U);
  EXPECT_EQ(offsetof(Command, saved_boundaries), 112U);
  EXPECT_EQ(sizeof(Command), 248U);
  EXPECT_EQ(offsetof(Completion, memory), 64U);
  EXPECT_EQ(sizeof(Completion), 152U);
  EXPECT_EQ(sizeof(FreeRecord), 16U);
  EXPECT_EQ(offsetof(FailureRecord, message), 24U);
  EXPECT_EQ(offsetof(WorkerWords, acknowledged), 8U);
  EXPECT_EQ(offsetof(WorkerWords, heartbeat), 16U);
  EXPECT_EQ(offsetof(WorkerWords, warm_up_ns), 32U);
}

TEST(Control, LaysItsRegionsOutOnPagesInOrderWithoutOverlap) {
  ControlHeader header;
  header.num_workers = 5;
  header.num_layers = 33;
  header.num_groups = 40;
  header.num_uses = 41;
  header.num_pipelines = 3;
  header.checks_consistency = 1;
  const ControlLayout layout(header);
  const std::vector<std::pair<std::uint64_t, std::uint64_t>> regions = {
      {0, sizeof(ControlHeader)},
      {layout.epoch, 8},
      {layout.failed, 8},
      {layout.published, 8 * 40},
      {layout.gradient_released, 8 * 41},
      {layout.loss_scales, sizeof(LossScaleRecord) * 3},
      {layout.update_heartbeats, 8 * 3},
      {layout.worker_words, 64 * 5},
      {layout.commands, 5 * align_up(ring_bytes<Command>(kCommandRing), 64)},
      {layout.completions, 5 * align_up(ring_bytes<Completion>(kCompletionRing), 64)},
      {layout.frees, 5 * align_up(ring_bytes<FreeRecord>(kFreeRing), 64)},
      {layout.failures, 5 * sizeof(FailureRecord)},
      {layout.stamps, 40 * 2 * sizeof(WeightStamp)},
      {layout.catalogue, 0}};
  for (std::size_t i = 1; i < regions.size(); ++i) {
    EXPECT_EQ(regions[i].first % 4096, 0U) << "region " << i;
    EXPECT_GE(regions[i].first, regions[i - 1].first + regions[i - 1].second) << "region " << i;
  }
}

TEST(Control, HasNoBytesForStampsWithoutTheCheckOfConsistency) {
  ControlHeader header;
  header.num_workers = 1;
  header.num_groups = 40;
  const ControlLayout layout(header);
  EXPECT_EQ(layout.catalogue, layout.stamps);
}

TEST(Command, RemembersTheBoundariesThatItSaves) {
  Command command;
  for (const int boundary : {1, 63, 64, 700, 1024}) {
    EXPECT_FALSE(command.saves(boundary));
    command.save(boundary);
    EXPECT_TRUE(command.saves(boundary));
  }
  EXPECT_FALSE(command.saves(2));
  EXPECT_FALSE(command.saves(65));
}

TEST(Control, NamesThePhases) {
  EXPECT_STREQ(phase_name(Phase::kForward), "forward");
  EXPECT_STREQ(phase_name(Phase::kFused), "fused");
  EXPECT_STREQ(phase_name(Phase::kBackward), "backward");
}

}  // namespace
}  // namespace rp
