// Tests Pipeline::begin_save_state(): a state that is saved while training continues equals one
// that is saved while nothing runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "roundpipe/error.h"
#include "tests/pipeline/saved_states.h"

namespace rp::test {
namespace {

using models::same_bits;

std::size_t num_entries(const std::filesystem::path& directory) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(directory), {}));
}

TEST(StateSave, DuringTrainingHasTheBytesOfOneWithoutTraining) {
  const auto rounds = tiny_rounds(8);
  for (const bool asynchronous : {false, true}) {
    for (const int rounds_per_step : {1, 2}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        SCOPED_TRACE(testing::Message() << "asynchronous " << asynchronous << " rounds " << rounds_per_step << " "
                                        << at::toString(dtype));
        TinySettings settings{
            .dtype = dtype,
            .options = {.num_microbatches = 3, .rounds_per_step = rounds_per_step, .asynchronous = asynchronous}};
        if (dtype == at::kHalf) settings.options.loss_scaling = LossScaling{.growth_interval = 2};
        const TempDirectory still, beside;
        {
          TinyRun run(settings);
          train_and_save(run.pipeline(), settings.options, rounds, still.path(), false);
        }
        TinyRun run(settings);
        train_and_save(run.pipeline(), settings.options, rounds, beside.path(), true);
        for (int step = 1; step <= 8 / rounds_per_step; ++step) {
          EXPECT_EQ(contents_of(state_path(beside.path(), step)), contents_of(state_path(still.path(), step)))
              << "step " << step;
          EXPECT_NO_THROW(Pipeline::verify_state(state_path(beside.path(), step)));
        }
        EXPECT_EQ(num_entries(beside.path()), static_cast<std::size_t>(8 / rounds_per_step));
      }
    }
  }
}

TEST(StateSave, HasNoNameBeforeItIsFinishedAndLeavesNothingIfItIsNot) {
  const auto rounds = tiny_rounds(1);
  const TempDirectory scratch;
  TinyRun run({.options = {.num_microbatches = 3}});
  std::vector<double> losses;
  run.train(rounds, 0, 1, losses);
  {
    const StateSave save = run.pipeline().begin_save_state(scratch.path() / "state", "");
    while (!save.is_written()) std::this_thread::yield();
    EXPECT_FALSE(std::filesystem::exists(scratch.path() / "state"));
    EXPECT_EQ(num_entries(scratch.path()), 1U);
    EXPECT_GT(save.seconds(), 0);
  }
  EXPECT_EQ(num_entries(scratch.path()), 0U);
  { const StateSave dropped_at_once = run.pipeline().begin_save_state(scratch.path() / "state", ""); }
  EXPECT_EQ(num_entries(scratch.path()), 0U);
}

TEST(StateSave, WhatFailsItIsThrownByFinish) {
  const TempDirectory scratch;
  TinyRun run({});
  run.pipeline().save_state(scratch.path() / "state", "");
  StateSave save = run.pipeline().begin_save_state(scratch.path() / "state", "");
  EXPECT_THROW(save.finish(), Error) << "it exists already";
  EXPECT_EQ(num_entries(scratch.path()), 1U);
}

TEST(StateSave, WhoMayWriteWeightsWaitsForIt) {
  const TempDirectory scratch;
  TinyRun run({.options = {.num_microbatches = 3}});
  std::vector<double> losses;
  run.train(tiny_rounds(1), 0, 1, losses);
  run.pipeline().save_state(scratch.path() / "before", "");
  StateSave first = run.pipeline().begin_save_state(scratch.path() / "first", "");
  for (const ParameterState& parameter : run.pipeline().parameters()) at::Tensor(parameter.master).fill_(7);
  StateSave second = run.pipeline().begin_save_state(scratch.path() / "second", "");
  EXPECT_TRUE(first.is_written()) << "one at a time";
  (void)run.pipeline().load_state(scratch.path() / "before");
  first.finish();
  second.finish();
  EXPECT_EQ(contents_of(scratch.path() / "first"), contents_of(scratch.path() / "before"));
  EXPECT_NE(contents_of(scratch.path() / "second"), contents_of(scratch.path() / "before"));
}

TEST(StateSave, EndsWithItsPipeline) {
  const TempDirectory scratch;
  std::optional<StateSave> save;
  {
    TinyRun run({});
    save = run.pipeline().begin_save_state(scratch.path() / "state", "");
  }
  save.reset();
  EXPECT_EQ(num_entries(scratch.path()), 0U);
}

}  // namespace
}  // namespace rp::test
