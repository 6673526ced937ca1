// Runs the protocol (docs/design/protocol.md) on the toy model. Losses, norms and weights must be
// the same as those of a sequential loop, bit for bit, for any number of workers, plan and prefetch
// depth; with workers that are threads over one mapping, threads over several mappings, and
// processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <random>

#include "roundpipe/error.h"
#include "tests/common/temp_directory.h"
#include "tests/coordinator/random_plan.h"
#include "tests/coordinator/toy_run.h"
#include "tests/coordinator/toy_workers.h"

namespace rp::test {
namespace {

constexpr const char* kPlans[] = {"fused 0-4", "forward 0-1 2-3 | fused 4 | backward 3 1-2 0",
                                  "forward 0 1 2 3 | fused 4 | backward 0-3", ""};

class Protocol : public testing::TestWithParam<Harness> {};

TEST_P(Protocol, AnyNumberOfWorkersPlanAndPrefetchGivesTheBitsOfTheSequentialLoop) {
  ToyConfig config;
  config.tied = true;
  for (const bool asynchronous : {false, true}) {
    config.asynchronous = asynchronous;
    for (const int workers : {1, 2, 3, 4, 8}) {
      for (const bool prefetch : {true, false}) {
        for (const char* plan : kPlans) {
          SCOPED_TRACE(testing::Message() << workers << " workers, prefetch " << prefetch << ", plan '" << plan
                                          << "', asynchronous " << asynchronous);
          expect_reference(config, {GetParam(), workers, prefetch, plan});
        }
      }
    }
  }
}

TEST_P(Protocol, ClippingWaitsForAllGradientsAndScalesThem) {
  ToyConfig config;
  config.tied = true;
  config.max_grad_norm = 0.5;
  for (const bool asynchronous : {false, true}) {
    config.asynchronous = asynchronous;
    expect_reference(config, {GetParam(), 3, true, kPlans[1]});
  }
}

// The scale belongs to the version of the weights: whichever step a worker computes, it finds the
// scale of that step.
TEST_P(Protocol, ALossScaleThatGrowsByPowersOfTwoChangesNoBit) {
  ToyConfig config;
  config.tied = true;
  config.num_steps = 12;
  config.scales_loss = true;
  for (const bool asynchronous : {false, true}) {
    config.asynchronous = asynchronous;
    expect_reference(config, {GetParam(), 3, true, kPlans[1]}, 2);
  }
}

TEST_P(Protocol, GradientsOfSeveralRoundsAreAddedInRoundOrder) {
  ToyConfig config;
  config.tied = true;
  config.rounds_per_step = 3;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    config.dtype = dtype;
    for (const double max_grad_norm : {0.0, 0.5}) {
      config.max_grad_norm = max_grad_norm;
      for (const bool asynchronous : {false, true}) {
        config.asynchronous = asynchronous;
        config.num_steps = asynchronous ? 40 : 5;  // gradients arrive while the last step's are read
        expect_reference(config, {GetParam(), 2, true, kPlans[1]});
      }
    }
  }
}

TEST_P(Protocol, SixteenBitWeightsAreTheRoundedMasters) {
  ToyConfig config;
  config.tied = true;
  config.dtype = DType::kBFloat16;
  for (const bool asynchronous : {false, true}) {
    config.asynchronous = asynchronous;
    expect_reference(config, {GetParam(), 4, true, kPlans[2]});
  }
}

// Plan 1 has six tasks per round, three of which compute a recompute and a backward pass.
TEST_P(Protocol, ATraceChangesNoBitAndHasEveryTaskAndMicrobatchOnce) {
  const TempDirectory directory;
  TraceJournal trace = TraceJournal::create(directory.path(), {.num_workers = 3});
  const FaultBoard board = FaultBoard::create(4);
  ToyConfig config;
  config.tied = true;
  config.rounds_per_step = 2;
  config.max_grad_norm = 0.5;
  expect_reference(config,
                   {.harness = GetParam(), .num_workers = 3, .plan = kPlans[1], .board = &board, .trace = &trace});
  std::map<TraceKind, int> num;
  for (const TraceJournal::Piece& piece : trace.pieces()) {
    EXPECT_LE(piece.process, 3U);
    std::int64_t last_end_ns = 0;
    for (const TraceRecord& r : trace.records(piece)) {
      ++num[r.kind];
      EXPECT_LE(r.begin_ns, r.end_ns);
      EXPECT_LE(last_end_ns, r.end_ns);
      last_end_ns = r.end_ns;
    }
  }
  const int num_tasks = 6 * config.rounds_per_step * config.num_steps;
  EXPECT_EQ(num[TraceKind::kTask], num_tasks);
  EXPECT_EQ(num[TraceKind::kCommit], num_tasks);
  EXPECT_EQ(num[TraceKind::kCompute], num_tasks * config.num_microbatches);
  EXPECT_EQ(num[TraceKind::kRecompute], num_tasks / 2 * config.num_microbatches);
  EXPECT_EQ(num[TraceKind::kAcceptRound], config.rounds_per_step * config.num_steps);
  EXPECT_EQ(num[TraceKind::kUpdate], 6 * config.num_steps) << "five weight groups and the tied one";
  EXPECT_EQ(num[TraceKind::kNorm], 6 * config.num_steps);
  EXPECT_EQ(num[TraceKind::kAddGradient], 7 * config.rounds_per_step * config.num_steps) << "two uses of the tied one";
  EXPECT_EQ(num[TraceKind::kDownloadGradient], num[TraceKind::kAddGradient]);
}

TEST_P(Protocol, ManyStepsReuseTheRingsAndTheMemory) {
  ToyConfig config;
  config.num_steps = 120;
  config.asynchronous = true;
  expect_reference(config, {GetParam(), 3, true, kPlans[1]});
}

// The words of versions and attempts only grow, also if training begins again with other weights.
TEST_P(Protocol, LoadedWeightsAreANewVersionAndGiveTheSameBitsAgain) {
  ToyConfig config;
  config.tied = true;
  for (const int rounds_per_step : {1, 2}) {
    config.rounds_per_step = rounds_per_step;
    for (const bool asynchronous : {false, true}) {
      config.asynchronous = asynchronous;
      expect_reference(config, {GetParam(), 3, true, kPlans[1]}, 3);
    }
  }
}

// The checker must neither find anything nor change a bit.
TEST_P(Protocol, TheConsistencyCheckFindsNothingAndChangesNoBit) {
  ToyConfig config;
  config.tied = true;
  for (const bool asynchronous : {false, true}) {
    config.asynchronous = asynchronous;
    for (const int rounds_per_step : {1, 2}) {
      config.rounds_per_step = rounds_per_step;
      for (const char* plan : kPlans) {
        expect_reference(config, {.harness = GetParam(), .num_workers = 3, .plan = plan, .check_consistency = true}, 2);
      }
    }
    config.rounds_per_step = 1;
    config.max_grad_norm = asynchronous ? 0.5 : 0.0;
    expect_reference(
        config,
        {.harness = GetParam(), .num_workers = 2, .prefetch = false, .plan = kPlans[1], .check_consistency = true});
  }
}

TEST_P(Protocol, AWorkerThatComesAfterTheEndOfTheRunEnds) {
  const ToyConfig config;
  StoreSettings settings;
  settings.num_workers = 2;
  settings.arena_limit_bytes = 1 << 20;
  const auto store = Store::create(settings, toy_catalogue(config));
  PipelineSettings options;
  options.plan.by_hand = parse_plan("fused 0-4", config.num_layers);
  { Coordinator coordinator(*store, {.pipelines = {options}}); }
  const Workers workers(*store, {GetParam(), 2, true, ""}, config);
}

TEST_P(Protocol, AFailingLayerReachesTheCallerWithItsPlace) {
  ToyConfig config;
  config.failing_layer = 2;
  if (GetParam() != Harness::kOneMapping) config.failure_code = ExitCode::kNoResource;  // as if out of GPU memory
  try {
    (void)run_toy(config, {GetParam(), 3, true, kPlans[1]}, 1);
    FAIL() << "no exception";
  } catch (const WorkerError& error) {
    EXPECT_EQ(error.code(), config.failure_code);
    EXPECT_EQ(error.place().layer, 2);
    EXPECT_EQ(error.place().microbatch, config.num_microbatches - 1);
    EXPECT_EQ(error.place().step, 2);
    EXPECT_THAT(error.what(), testing::HasSubstr("layer 2 (toy) failed in the forward stage of layers 2-3"));
    EXPECT_THAT(error.what(), testing::HasSubstr("the toy layer fails"));
  }
}

// ThreadSanitizer checks that reading is safe.
TEST_P(Protocol, ADumpCanBeTakenAtAnyMoment) {
  ToyConfig config;
  config.num_steps = 20;
  config.tied = true;
  const FaultBoard board = FaultBoard::create(4);
  const RunSettings settings{.harness = GetParam(), .num_workers = 3, .plan = kPlans[1], .board = &board};
  expect_reference(config, settings);
  const BoardProgress progress = board.entry(0).progress();
  EXPECT_EQ(progress.committed, 20 * 6);
  EXPECT_EQ(progress.accepted, progress.committed);
  EXPECT_EQ(progress.dispatched, progress.committed);
  EXPECT_EQ(progress.step, 20);
  EXPECT_EQ(progress.round, 19);
  EXPECT_FALSE(board.entry(0).waits(CoordinatorThread::kUser).observe().has_value());
}

TEST(RandomProtocol, GivesTheBitsOfTheSequentialLoopInAnyConfiguration) {
  const char* runs = std::getenv("RP_RANDOM_RUNS");  // the slow tests set it to a larger number
  const auto num_runs = static_cast<unsigned>(runs == nullptr ? 60 : std::atoi(runs));
  for (unsigned seed = 1; seed <= num_runs; ++seed) {
    std::mt19937 random(seed);
    ToyConfig config = random_toy_config(random);
    RunSettings settings{.harness = Harness::kOneMapping,
                         .num_workers = draw(random, 1, 6),
                         .prefetch = draw(random, 0, 1) == 1,
                         .plan = ""};
    config.scales_loss = draw(random, 0, 3) == 0;
    if (draw(random, 0, 4) > 0) settings.plan = plan_text(random_plan(random, config.num_layers), config.num_layers);
    settings.check_consistency = draw(random, 0, 2) == 0;
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << settings.num_workers << " workers, " << config
                                    << ", plan '" << settings.plan << "', prefetch " << settings.prefetch
                                    << ", checked " << settings.check_consistency);
    expect_reference(config, settings);
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, Protocol, testing::Values(Harness::kOneMapping));
INSTANTIATE_TEST_SUITE_P(Mappings, Protocol, testing::Values(Harness::kTwoMappings));
INSTANTIATE_TEST_SUITE_P(Processes, Protocol, testing::Values(Harness::kProcesses));

}  // namespace
}  // namespace rp::test
