// Lets workers of the toy model die at any of their operations, and expects the bits of the sequential loop
// (docs/design/replay.md): with replacements, with fewer and fewer workers, and with workers that come back.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <random>

#include "common/system/clock.h"
#include "tests/coordinator/random_plan.h"
#include "tests/coordinator/toy_run.h"

namespace rp::test {
namespace {

constexpr const char* kPlan = "forward 0-1 2-3 | fused 4 | backward 3 1-2 0";

class Replay : public testing::TestWithParam<Harness> {
 protected:
  // Expects the bits of the sequential loop. Returns the number of workers that died.
  static int num_deaths_in(const ToyConfig& config, RunSettings settings) {
    int num_deaths = 0;
    settings.harness = GetParam();
    settings.plan = kPlan;
    settings.num_deaths = &num_deaths;
    expect_reference(config, settings);
    return num_deaths;
  }
};

// Every third operation over one mapping, every eleventh with the other harnesses.
TEST_P(Replay, AWorkerMayDieBeforeAnyOfItsOperations) {
  ToyConfig config;
  config.tied = true;
  config.num_steps = 3;
  for (const bool asynchronous : {false, true}) {
    config.asynchronous = asynchronous;
    for (int operation = 1; operation < 120; operation += GetParam() == Harness::kOneMapping ? 3 : 11) {
      SCOPED_TRACE(testing::Message() << "operation " << operation << ", asynchronous " << asynchronous);
      EXPECT_EQ(
          num_deaths_in(config,
                        {.num_workers = 3, .deaths = {{.worker = 1, .operation = operation}}, .max_replacements = 1}),
          1);
    }
  }
}

// Worker 2 computes the fused stages, worker 1 the second forward stages and the second backward ones. Every operation
// over one mapping, every fourth with the other harnesses.
TEST_P(Replay, AWorkerMayLeaveHalfWrittenResults) {
  ToyConfig config;
  config.tied = true;
  config.num_steps = 3;
  for (const bool asynchronous : {false, true}) {
    config.asynchronous = asynchronous;
    for (const int worker : {1, 2}) {
      for (int operation = 1; operation < 35; operation += GetParam() == Harness::kOneMapping ? 1 : 4) {
        SCOPED_TRACE(testing::Message() << "worker " << worker << ", operation " << operation << ", asynchronous "
                                        << asynchronous);
        EXPECT_EQ(num_deaths_in(config, {.num_workers = 3,
                                         .deaths = {{.worker = worker, .operation = operation, .writes_half = true}},
                                         .max_replacements = 1}),
                  1);
      }
    }
  }
}

TEST_P(Replay, TheRunGoesOnWithFewerWorkers) {
  ToyConfig config;
  config.num_steps = 6;
  for (const bool asynchronous : {false, true}) {
    config.asynchronous = asynchronous;
    for (const int operation : {5, 20, 45}) {
      SCOPED_TRACE(testing::Message() << "operation " << operation << ", asynchronous " << asynchronous);
      EXPECT_EQ(num_deaths_in(config, {.num_workers = 4,
                                       .deaths = {{.worker = 2, .operation = operation},
                                                  {.worker = 0, .operation = 2 * operation},
                                                  {.worker = 3, .operation = 3 * operation}}}),
                3);
    }
  }
}

// Each worker dies once, so others than those of the beginning finish the run.
TEST_P(Replay, WorkersThatHaveLeftComeBack) {
  ToyConfig config;
  config.num_steps = 10;
  for (const bool asynchronous : {false, true}) {
    config.asynchronous = asynchronous;
    for (const int commits : {1, 12, 1000}) {  // 1000: when no worker is left
      SCOPED_TRACE(testing::Message() << "back after " << commits << " commits, asynchronous " << asynchronous);
      int num_returns = 0;
      EXPECT_EQ(num_deaths_in(config, {.num_workers = 4,
                                       .deaths = {{.worker = 2, .operation = 10},
                                                  {.worker = 0, .operation = 30, .writes_half = true},
                                                  {.worker = 3, .operation = 50},
                                                  {.worker = 1, .operation = 100}},
                                       .commits_until_return = commits,
                                       .num_returns = &num_returns}),
                4);
      EXPECT_GE(num_returns, 1);
    }
  }
}

// The others go on meanwhile; the second commit without it waits until it is there.
TEST_P(Replay, AWorkerThatHasComeBackComputes) {
  ToyConfig config;
  bool computes = false;
  RunSettings settings{.num_workers = 3, .deaths = {{.worker = 1, .operation = 20}}, .commits_until_return = 1};
  settings.on_commit = [&, num_without = 0](Store& store, const CommittedTask& task) mutable {
    const Epoch epoch = task.completion.slot.epoch();
    if (epoch == Epoch(1) && ++num_without == 2) {
      const std::atomic<bool> never{false};
      EXPECT_EQ(store.worker_words(1).acknowledged.wait_at_least(epoch.value() + 1, {&never, 20 * kNsPerSecond}),
                WaitResult::kReached);
    }
    computes |= epoch > Epoch(0) && task.slot.worker == 1;
  };
  EXPECT_EQ(num_deaths_in(config, settings), 1);
  EXPECT_TRUE(computes);
}

TEST_P(Replay, AWorkerThatHasComeBackMayDieAgain) {
  ToyConfig config;
  config.num_steps = 6;
  int num_returns = 0;
  EXPECT_EQ(num_deaths_in(config, {.num_workers = 1,
                                   .deaths = {{.worker = 0, .operation = 30},
                                              {.worker = 0, .operation = 20, .life = 1},
                                              {.worker = 0, .life = 2}},
                                   .commits_until_return = 1,
                                   .num_returns = &num_returns}),
            3);
  EXPECT_EQ(num_returns, 3);
}

// The others run into waits for it meanwhile.
TEST_P(Replay, AStoppedWorkerIsEndedAndReplaced) {
  ToyConfig config;
  config.tied = true;
  for (const bool asynchronous : {false, true}) {
    config.asynchronous = asynchronous;
    for (const int operation : {Death::kAtStart, 1, 2, 9, 17, 40, 63, 90}) {
      SCOPED_TRACE(testing::Message() << "operation " << operation << ", asynchronous " << asynchronous);
      EXPECT_EQ(num_deaths_in(config, {.num_workers = 3,
                                       .deaths = {{.worker = 1, .operation = operation, .stops_before = true}},
                                       .max_replacements = 1}),
                1);
    }
  }
}

// It does not acknowledge the epoch that the other's death begins.
TEST_P(Replay, AWorkerMayBeStoppedWhileAnotherDies) {
  ToyConfig config;
  for (const int operation : {10, 25, 40}) {
    for (const int replacements : {0, 2}) {
      SCOPED_TRACE(testing::Message() << "operation " << operation << ", " << replacements << " replacements");
      EXPECT_EQ(num_deaths_in(config, {.num_workers = 3,
                                       .deaths = {{.worker = 1, .operation = operation, .stops_before = true},
                                                  {.worker = 2, .operation = operation + 1}},
                                       .max_replacements = replacements}),
                2);
    }
  }
}

TEST_P(Replay, TheOnlyWorkerIsReplaced) {
  ToyConfig config;
  config.rounds_per_step = 2;
  EXPECT_EQ(num_deaths_in(config, {.num_workers = 1,
                                   .deaths = {{.worker = 0, .operation = 30},
                                              {.worker = 0, .operation = 50, .life = 1, .writes_half = true},
                                              {.worker = 0, .operation = 40, .life = 2, .stops_before = true}},
                                   .max_replacements = 3}),
            3);
}

// The run may end before the replacements that are planned to die have started.
TEST_P(Replay, WorkersMayDieWhileTheyStart) {
  ToyConfig config;
  config.num_steps = 4;
  EXPECT_GE(num_deaths_in(config, {.num_workers = 3,
                                   .deaths = {{.worker = 0},
                                              {.worker = 1, .operation = 25},
                                              {.worker = 1, .life = 1},
                                              {.worker = 1, .operation = 1, .life = 2}},
                                   .max_replacements = 4}),
            1);
}

TEST_P(Replay, AllWorkersMayDieAtOnce) {
  ToyConfig config;
  config.max_grad_norm = 0.5;
  EXPECT_EQ(num_deaths_in(config, {.num_workers = 2,
                                   .deaths = {{.worker = 0, .operation = 40}, {.worker = 1, .operation = 40}},
                                   .max_replacements = 2}),
            2);
}

TEST_P(Replay, TheConsistencyCheckFindsNothing) {
  ToyConfig config;
  config.tied = true;
  config.num_steps = 4;
  for (const Death& death :
       {Death{.worker = 1, .operation = 10}, Death{.worker = 1, .operation = 33}, Death{.worker = 1, .operation = 61},
        Death{.worker = 1, .operation = 90}, Death{.worker = 1, .operation = 5, .writes_half = true},
        Death{.worker = 1, .operation = 20, .writes_half = true},
        Death{.worker = 2, .operation = 33, .writes_half = true}}) {
    EXPECT_EQ(
        num_deaths_in(config, {.num_workers = 3, .check_consistency = true, .deaths = {death}, .max_replacements = 1}),
        1);
  }
}

class RandomReplay : public testing::TestWithParam<Harness> {};

// A third as many runs with the harnesses that take longer.
TEST_P(RandomReplay, GivesTheBitsOfTheSequentialLoopInAnyConfiguration) {
  const char* runs = std::getenv("RP_RANDOM_RUNS");  // the slow tests set it to a larger number
  const auto num_wanted = static_cast<unsigned>(runs == nullptr ? 60 : std::atoi(runs));
  const unsigned num_runs = GetParam() == Harness::kOneMapping ? num_wanted : (num_wanted + 2) / 3;
  int num_deaths = 0;
  int num_returns = 0;
  for (unsigned seed = 1; seed <= num_runs; ++seed) {
    std::mt19937 random(seed);
    ToyConfig config = random_toy_config(random);
    config.num_steps += 2;
    config.scales_loss = draw(random, 0, 3) == 0;
    RunSettings settings{
        .harness = GetParam(), .num_workers = draw(random, 1, 6), .prefetch = draw(random, 0, 1) == 1, .plan = ""};
    if (draw(random, 0, 4) > 0) settings.plan = plan_text(random_plan(random, config.num_layers), config.num_layers);
    settings.check_consistency = draw(random, 0, 3) == 0;
    const int num_planned = draw(random, 1, 4);
    for (int i = 0; i < num_planned; ++i) {
      const bool writes_half = draw(random, 0, 1) == 1;
      settings.deaths.push_back({.worker = draw(random, 0, settings.num_workers - 1),
                                 .operation = draw(random, 1, writes_half ? 60 : 150),
                                 .life = draw(random, 0, 1),
                                 .writes_half = writes_half,
                                 .stops_before = draw(random, 0, 3) == 0});
    }
    if (draw(random, 0, 1) == 1) settings.max_replacements = draw(random, 1, num_planned);
    if (draw(random, 0, 1) == 1) settings.commits_until_return = draw(random, 1, 30);
    // One worker at least must be left.
    if (num_planned >= settings.num_workers && settings.commits_until_return == 0)
      settings.max_replacements = num_planned;
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << settings.num_workers << " workers, " << num_planned
                                    << " deaths, " << settings.max_replacements << " replacements, back after "
                                    << settings.commits_until_return << " commits, asynchronous " << config.asynchronous
                                    << ", plan '" << settings.plan << "'");
    settings.num_deaths = &num_deaths;
    settings.num_returns = &num_returns;
    expect_reference(config, settings);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(num_deaths, static_cast<int>(num_runs / 2)) << "some are planned for a time after the end";
  EXPECT_GT(num_returns, 0);
}

INSTANTIATE_TEST_SUITE_P(Threads, Replay, testing::Values(Harness::kOneMapping));
INSTANTIATE_TEST_SUITE_P(Mappings, Replay, testing::Values(Harness::kTwoMappings));
INSTANTIATE_TEST_SUITE_P(Processes, Replay, testing::Values(Harness::kProcesses));
INSTANTIATE_TEST_SUITE_P(Threads, RandomReplay, testing::Values(Harness::kOneMapping));
INSTANTIATE_TEST_SUITE_P(Mappings, RandomReplay, testing::Values(Harness::kTwoMappings));
INSTANTIATE_TEST_SUITE_P(Processes, RandomReplay, testing::Values(Harness::kProcesses));

}  // namespace
}  // namespace rp::test
