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

class Replay : public testing::TestWithParam<Harness> {};

TEST_P(Replay, AWorkerMayDieBeforeAnyOfItsOperations) {
  ToyConfig config;
  config.tied = true;
  config.num_steps = 3;
  for (const bool asynchronous : {false, true}) {
    config.asynchronous = asynchronous;
    for (int operation = 1; operation < 120; operation += GetParam() == Harness::kOneMapping ? 3 : 11) {
      SCOPED_TRACE(testing::Message() << "operation " << operation << ", asynchronous " << asynchronous);
      int num_deaths = 0;
      expect_reference(config, {.harness = GetParam(),
                                .num_workers = 3,
                                .plan = kPlan,
                                .deaths = {{.worker = 1, .operation = operation}},
                                .max_replacements = 1,
                                .num_deaths = &num_deaths});
      EXPECT_EQ(num_deaths, 1);
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
      expect_reference(config, {.harness = GetParam(),
                                .num_workers = 4,
                                .plan = kPlan,
                                .deaths = {{.worker = 2, .operation = operation},
                                           {.worker = 0, .operation = 2 * operation},
                                           {.worker = 3, .operation = 3 * operation}}});
    }
  }
}

TEST_P(Replay, TheOnlyWorkerIsReplaced) {
  ToyConfig config;
  config.rounds_per_step = 2;
  expect_reference(config, {.harness = GetParam(),
                            .num_workers = 1,
                            .plan = kPlan,
                            .deaths = {{.worker = 0, .operation = 30}, {.worker = 0, .operation = 50, .life = 1}},
                            .max_replacements = 2});
}

TEST_P(Replay, WorkersMayDieWhileTheyStart) {
  ToyConfig config;
  config.num_steps = 4;
  expect_reference(config, {.harness = GetParam(),
                            .num_workers = 3,
                            .plan = kPlan,
                            .deaths = {{.worker = 0},
                                       {.worker = 1, .operation = 25},
                                       {.worker = 1, .life = 1},
                                       {.worker = 1, .operation = 1, .life = 2}},
                            .max_replacements = 4});
}

TEST_P(Replay, AllWorkersMayDieAtOnce) {
  ToyConfig config;
  config.max_grad_norm = 0.5;
  expect_reference(config, {.harness = GetParam(),
                            .num_workers = 2,
                            .plan = kPlan,
                            .deaths = {{.worker = 0, .operation = 40}, {.worker = 1, .operation = 40}},
                            .max_replacements = 2});
}

TEST_P(Replay, TheConsistencyCheckFindsNothing) {
  ToyConfig config;
  config.tied = true;
  config.num_steps = 4;
  for (const int operation : {10, 33, 61, 90}) {
    expect_reference(config, {.harness = GetParam(),
                              .num_workers = 3,
                              .plan = kPlan,
                              .check_consistency = true,
                              .deaths = {{.worker = 1, .operation = operation}},
                              .max_replacements = 1});
  }
}

TEST(RandomReplay, GivesTheBitsOfTheSequentialLoopInAnyConfiguration) {
  const char* runs = std::getenv("RP_RANDOM_RUNS");  // the slow tests set it to a larger number
  const auto num_runs = static_cast<unsigned>(runs == nullptr ? 60 : std::atoi(runs));
  int num_deaths = 0;
  for (unsigned seed = 1; seed <= num_runs; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&random](int low, int high) {
      return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
    };
    ToyConfig config;
    config.num_layers = draw(2, 9);
    config.num_elements = 32 * draw(1, 4);
    config.num_microbatches = draw(1, 5);
    config.rounds_per_step = draw(0, 2) == 0 ? draw(2, 3) : 1;
    config.num_steps = draw(3, 8);
    config.tied = draw(0, 1) == 1;
    config.asynchronous = draw(0, 1) == 1;
    config.dtype = draw(0, 1) == 1 ? DType::kBFloat16 : DType::kFloat32;
    config.max_grad_norm = draw(0, 2) == 0 ? 0.5 : 0.0;
    config.scales_loss = draw(0, 3) == 0;
    RunSettings settings{.num_workers = draw(1, 6), .prefetch = draw(0, 1) == 1, .plan = ""};
    if (draw(0, 4) > 0) settings.plan = plan_text(random_plan(random, config.num_layers), config.num_layers);
    settings.check_consistency = draw(0, 3) == 0;
    const int num_planned = draw(1, 4);
    for (int i = 0; i < num_planned; ++i) {
      settings.deaths.push_back(
          {.worker = draw(0, settings.num_workers - 1), .operation = draw(1, 150), .life = draw(0, 1)});
    }
    // One worker at least must be left.
    settings.max_replacements = draw(0, 1) == 1 || num_planned >= settings.num_workers ? num_planned : 0;
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
