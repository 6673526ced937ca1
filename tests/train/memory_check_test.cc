#include "train/run/memory_check.h"

#include <gtest/gtest.h>

#include "model_files/profile_file.h"
#include "tests/common/expect_refusal.h"

namespace rp {
namespace {

TrainSettings settings() {
  TrainSettings s;
  s.model = "preset:qwen3-1.7b";
  s.batch_size = 16;
  s.num_microbatches = 4;
  s.sequence_length = 1024;
  return s;
}

// A plan for the preset, which has 28 layers of hidden size 2048, the embedding and the head.
constexpr const char* kOneStage = "forward 0-28 | fused 29-29 | backward 0-28";

TEST(MemoryCheckTest, CountsTheInputsThatABackwardReads) {
  TrainSettings s = settings();
  const std::uint64_t by_stage = least_activation_bytes(s, kOneStage, 0);
  const std::uint64_t boundary = 16ULL * 1024 * 2048 * 2;
  EXPECT_GE(by_stage, boundary) << "the input of the head's stage";
  EXPECT_LT(by_stage, 5 * boundary);
  s.recompute_grain = RecomputeGrain::kLayer;
  const std::uint64_t by_layer = least_activation_bytes(s, kOneStage, 0);
  EXPECT_GE(by_layer, 28 * boundary) << "and those of all layers";
  EXPECT_LT(by_layer, 33 * boundary);
  s.dtype = DType::kFloat32;
  EXPECT_EQ(least_activation_bytes(s, kOneStage, 0), 2 * by_layer);
  s.dtype = DType::kBFloat16;
  s.rounds_per_step = 4;
  EXPECT_LT(least_activation_bytes(s, kOneStage, 0), by_layer / 3) << "of one round";
}

TEST(MemoryCheckTest, WhatDoesNotFitIsRefusedWithWhatWould) {
  check_activations(settings(), 100, 100);
  expect_error(
      ExitCode::kNoResource,
      {"a round of 16 sequences of 1024 tokens keeps at least 4.00 KiB", "1.00 KiB are free", "at most 4 sequences"},
      [] { check_activations(settings(), 4096, 1024); });
  expect_error(ExitCode::kNoResource, {"give a shorter --sequence-length"},
               [] { check_activations(settings(), 409600, 1024); });
}

// The memory of workers on processors is the host's, so the host also holds what each worker saves
// of a microbatch between forward and backward.
TEST(MemoryCheckTest, CountsWhatWorkersOnProcessorsSave) {
  TrainSettings s = settings();
  s.recompute_grain = RecomputeGrain::kLayer;
  const std::uint64_t none = least_activation_bytes(s, kOneStage, 0), two = least_activation_bytes(s, kOneStage, 2);
  const std::uint64_t hidden = 4ULL * 1024 * 2048 * 2;  // bytes of a hidden state of one microbatch
  EXPECT_GT(two - none, 2 * 5 * hidden);
  EXPECT_EQ(least_activation_bytes(s, kOneStage, 4) - none, 2 * (two - none));
  s.recompute_grain = RecomputeGrain::kStage;
  EXPECT_GT(least_activation_bytes(s, kOneStage, 2), two) << "all layers of the stage at once";
}

TEST(MemoryCheckTest, SaysOfAGpuWhatRpPlanSays) {
  const GpuProfile gpu = gpu_profile("rtx4090").profile;
  check_gpu_memory(settings(), gpu);
  TrainSettings s = settings();
  s.sequence_length = 262144;
  expect_error(ExitCode::kNoResource, {"stages of one layer each do not fit the GPU", "are usable"},
               [&] { check_gpu_memory(s, gpu); });
}

}  // namespace
}  // namespace rp
