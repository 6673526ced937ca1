// Lets workers of the toy model die at any of their operations, and expects the bits of the sequential loop
// (docs/design/replay.md): with replacements, and with fewer and fewer workers.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

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

TEST_P(Replay, TheOnlyWorkerIsReplaced) {
  ToyConfig config;
  config.rounds_per_step = 2;
  EXPECT_EQ(
      num_deaths_in(config, {.num_workers = 1,
                             .deaths = {{.worker = 0, .operation = 30}, {.worker = 0, .operation = 50, .life = 1}},
                             .max_replacements = 2}),
      2);
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
  for (const int operation : {10, 33, 61, 90}) {
    EXPECT_EQ(num_deaths_in(config, {.num_workers = 3,
                                     .check_consistency = true,
                                     .deaths = {{.worker = 1, .operation = operation}},
                                     .max_replacements = 1}),
              1);
  }
}

TEST(RandomReplay, GivesTheBitsOfTheSequentialLoopInAnyConfiguration) {
  const char* runs = std::getenv("RP_RANDOM_RUNS");  // the slow tests set it to a larger number
  const auto num_runs = static_cast<unsigned>(runs == nullptr ? 60 : std::atoi(runs));
  int num_deaths = 0;
  for (unsigned seed = 1; seed <= num_runs; ++seed) {
    std::mt19937 random(seed);
    ToyConfig config = random_toy_config(random);
    config.num_steps += 2;
    config.scales_loss = draw(random, 0, 3) == 0;
    RunSettings settings{.num_workers = draw(random, 1, 6), .prefetch = draw(random, 0, 1) == 1, .plan = ""};
    if (draw(random, 0, 4) > 0) settings.plan = plan_text(random_plan(random, config.num_layers), config.num_layers);
    settings.check_consistency = draw(random, 0, 3) == 0;
    const int num_planned = draw(random, 1, 4);
    for (int i = 0; i < num_planned; ++i) {
      settings.deaths.push_back({.worker = draw(random, 0, settings.num_workers - 1),
                                 .operation = draw(random, 1, 150),
                                 .life = draw(random, 0, 1)});
    }
    // One worker at least must be left.
    settings.max_replacements = draw(random, 0, 1) == 1 || num_planned >= settings.num_workers ? num_planned : 0;
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << settings.num_workers << " workers, " << num_planned
                                    << " deaths, " << settings.max_replacements << " replacements, asynchronous "
                                    << config.asynchronous << ", plan '" << settings.plan << "'");
    settings.num_deaths = &num_deaths;
    expect_reference(config, settings);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(num_deaths, static_cast<int>(num_runs / 2)) << "some are planned for a time after the end";
}

INSTANTIATE_TEST_SUITE_P(Threads, Replay, testing::Values(Harness::kOneMapping));
INSTANTIATE_TEST_SUITE_P(Mappings, Replay, testing::Values(Harness::kTwoMappings));
INSTANTIATE_TEST_SUITE_P(Processes, Replay, testing::Values(Harness::kProcesses));

}  // namespace
}  // namespace rp::test
