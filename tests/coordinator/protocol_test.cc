// The protocol (docs/design/protocol.md) on the toy model: same losses, norms and weights as a sequential loop, bit for
// bit, for any number of workers, plan and prefetch depth; as threads over one mapping, over two, and as processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fcntl.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <thread>

#include "common/run_depth.h"
#include "coordinator/coordinator.h"
#include "device/cpu_device.h"
#include "roundpipe/error.h"
#include "tests/common/temp_directory.h"
#include "tests/coordinator/random_plan.h"
#include "tests/coordinator/toy_model.h"
#include "worker/worker.h"

namespace rp::test {
namespace {

enum class Harness { kOneMapping, kTwoMappings, kProcesses };

struct RunSettings {
  Harness harness = Harness::kOneMapping;
  int num_workers = 1;
  bool prefetch = true;
  std::string plan;  // "" = by the coordinator, and cut anew on the way
  const FaultBoard* board = nullptr;
  bool check_consistency = false;
  TraceJournal* trace = nullptr;
};

std::optional<FaultBoardEntry> entry(const FaultBoard* board, int index) {
  return board == nullptr ? std::nullopt : std::optional(board->entry(index));
}

std::vector<UniqueFd> duplicates(const std::vector<int>& descriptors) {
  std::vector<UniqueFd> result;
  for (const int fd : descriptors) result.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  return result;
}

void serve(Store& store, int worker, const ToyConfig& config, const RunSettings& settings) {
  CpuDevice device;
  ToyExecutor executor(config, store.catalogue());
  Worker(store, worker, device, executor, entry(settings.board, 1 + worker), settings.trace).serve();
}

// The workers of a run, ended by the coordinator's end.
class Workers {
 public:
  Workers(Store& store, const RunSettings& settings, const ToyConfig& config) {
    for (int i = 0; i < settings.num_workers; ++i) {
      if (settings.harness == Harness::kOneMapping) {
        threads_.emplace_back([&store, i, config, settings] { serve(store, i, config, settings); });
      } else if (settings.harness == Harness::kTwoMappings) {
        views_.push_back(Store::attach(duplicates(store.descriptors())));
        threads_.emplace_back([view = views_.back().get(), i, config, settings] { serve(*view, i, config, settings); });
      } else {
        const pid_t child = fork();
        if (child == 0) {
          const auto view = Store::attach(duplicates(store.descriptors()));
          serve(*view, i, config, settings);
          _exit(0);
        }
        children_.push_back(child);
      }
    }
  }
  ~Workers() {
    for (std::thread& thread : threads_) thread.join();
    for (const pid_t child : children_) {
      int status = 0;
      EXPECT_EQ(waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0);
    }
  }

 private:
  std::vector<std::unique_ptr<Store>> views_;
  std::vector<std::thread> threads_;
  std::vector<pid_t> children_;
};

// Reads all that a dump is made of, again and again, as long as it lives.
class BoardReader {
 public:
  explicit BoardReader(const FaultBoard& board) : thread_([this, &board] { read(board); }) {}
  ~BoardReader() {
    done_.store(true);
    thread_.join();
    EXPECT_GT(num_waits_, 0);
  }

 private:
  void read(const FaultBoard& board) {
    while (!done_.load()) {
      for (int process = 0; process < board.num_entries(); ++process) {
        FaultBoardEntry entry = board.entry(process);
        (void)entry.task();
        const BoardProgress progress = entry.progress();
        EXPECT_LE(progress.committed, 1000);
        for (int thread = 0; thread < 4; ++thread) num_waits_ += entry.waits(thread).observe().has_value() ? 1 : 0;
      }
    }
  }

  std::atomic<bool> done_{false};
  std::int64_t num_waits_ = 0;  // the thread's
  std::thread thread_;
};

// Both working copies, where there are two: an asynchronous run begins with the version before, too.
void write_initial_weights(Store& store) {
  for (std::uint32_t b = 0; b < store.catalogue().blocks().size(); ++b) {
    const BlockRecord& block = store.catalogue().blocks()[b];
    for (std::uint64_t i = 0; i < block.num_elements; ++i) {
      const float value = toy_initial_weight(b, i);
      store.state(block.moment1_offset)[i] = store.state(block.moment2_offset)[i] = 0;
      if (block.dtype != DType::kFloat32) store.state(block.master_offset)[i] = value;
      for (std::uint32_t copy = 0; copy < block.num_copies; ++copy) {
        std::byte* working = store.parameters(block.parameter_offset[copy]);
        if (block.dtype == DType::kFloat32) {
          reinterpret_cast<float*>(working)[i] = value;
        } else {
          reinterpret_cast<std::uint16_t*>(working)[i] = bf16_from_float(value);
        }
      }
    }
  }
}

void add_microbatch(RoundInputs& inputs, std::vector<std::vector<float>>& storage, const ToyConfig& config, int round, int m) {
  const auto view = [&storage](std::vector<float> values) {
    storage.push_back(std::move(values));
    TensorView tensor;
    tensor.desc = {.dtype = DType::kFloat32, .rank = 1};
    tensor.desc.shape[0] = static_cast<std::int64_t>(storage.back().size());
    tensor.data = reinterpret_cast<const std::byte*>(storage.back().data());
    return tensor;
  };
  inputs.inputs.push_back({.tensors = {view(toy_input(config, round, m))}});
  inputs.arguments.push_back({.tensors = {view(toy_label(config, round, m))}});
}

ToyResult train(Store& store, Coordinator& coordinator, const ToyConfig& config) {
  ToyResult result;
  std::vector<std::shared_ptr<Round>> rounds;
  std::vector<std::shared_ptr<StepOutcome>> steps;
  for (int step = 0; step < config.num_steps; ++step) {
    for (int r = 0; r < config.rounds_per_step; ++r) {
      std::vector<std::vector<float>> storage;
      storage.reserve(2 * static_cast<std::size_t>(config.num_microbatches));
      RoundInputs data;
      for (int m = 0; m < config.num_microbatches; ++m) {
        add_microbatch(data, storage, config, step * config.rounds_per_step + r, m);
      }
      rounds.push_back(coordinator.accept_round({.num_microbatches = config.num_microbatches}, data));
    }
    steps.push_back(coordinator.accept_step(
        0, {.rules = {toy_rule()}, .options = {.asynchronous = config.asynchronous, .max_grad_norm = config.max_grad_norm}}));
  }
  coordinator.synchronize();
  for (const auto& round : rounds) {
    coordinator.wait_forward(*round);
    result.losses.push_back(round->losses.at(0));
  }
  for (const auto& step : steps) result.norms.push_back(coordinator.wait_norm(0, *step).grad_norm);
  for (const BlockRecord& block : store.catalogue().blocks()) {
    const float* master = block.dtype == DType::kFloat32
                              ? reinterpret_cast<const float*>(
                                    store.parameters(block.parameter_offset[coordinator.version(0) % block.num_copies]))
                              : store.state(block.master_offset);
    result.masters.insert(result.masters.end(), master, master + config.num_elements);
  }
  return result;
}

constexpr double kInitialScale = 1024;

// The results of `trainings` from the same weights, one after the other in one run.
std::vector<ToyResult> run_toy(const ToyConfig& config, const RunSettings& settings, int trainings = 1) {
  StoreSettings store_settings;
  store_settings.num_workers = static_cast<std::uint32_t>(settings.num_workers);
  store_settings.stage_buffers = settings.prefetch ? kStageBuffers : 1;
  store_settings.arena_limit_bytes = std::uint64_t{256} << 20;
  store_settings.wait_timeout_ns = 20 * kNsPerSecond;
  store_settings.check_consistency = settings.check_consistency;
  const auto store = Store::create(store_settings, toy_catalogue(config));
  write_initial_weights(*store);
  const Workers workers(*store, settings, config);
  std::optional<BoardReader> reader;  // after the processes are forked
  if (settings.board != nullptr) reader.emplace(*settings.board);
  PipelineSettings options;
  options.adds_rounds = config.rounds_per_step > 1;
  options.asynchronous = config.asynchronous;
  if (!settings.plan.empty()) options.plan.by_hand = parse_plan(settings.plan, config.num_layers);
  if (config.scales_loss) options.loss_scaling = LossScaling{.initial_scale = kInitialScale, .growth_interval = 2};
  Coordinator coordinator(*store, {.pipelines = {options}, .board = entry(settings.board, 0), .trace = settings.trace});
  std::vector<ToyResult> results = {train(*store, coordinator, config)};
  while (results.size() < static_cast<std::size_t>(trainings)) {
    coordinator.restart_at(0, 0, 0, {.loss_scale = {.scale = kInitialScale, .previous_scale = kInitialScale}});
    write_initial_weights(*store);
    results.push_back(train(*store, coordinator, config));
  }
  return results;
}

void expect_reference(const ToyConfig& config, const RunSettings& settings, int trainings = 1) {
  const ToyResult expected = toy_reference(config);
  for (const ToyResult& actual : run_toy(config, settings, trainings)) {
    EXPECT_EQ(actual.losses, expected.losses);
    EXPECT_EQ(actual.norms, expected.norms);
    EXPECT_EQ(actual.masters, expected.masters);
  }
}

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

// The scale travels with the weights' version: whichever step a worker is in, it finds that step's.
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
        config.num_steps = asynchronous ? 40 : 5;  // the next step's gradients come while this one's are still read
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

// Of plan 1: six tasks a round, three of which compute a recompute and a backward.
TEST_P(Protocol, ATraceChangesNoBitAndHasEveryTaskAndMicrobatchOnce) {
  const TempDirectory directory;
  TraceJournal trace = TraceJournal::create(directory.path(), {.num_workers = 3});
  const FaultBoard board = FaultBoard::create(4);
  ToyConfig config;
  config.tied = true;
  config.rounds_per_step = 2;
  config.max_grad_norm = 0.5;
  expect_reference(config, {.harness = GetParam(), .num_workers = 3, .plan = kPlans[1], .board = &board, .trace = &trace});
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
  EXPECT_EQ(num[TraceKind::kUpdate], 6 * config.num_steps) << "five blocks and the tied one";
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

// Words of versions and attempts only grow, also where training begins anew with other weights.
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

// What the checker may not do is to find something, or to change a bit.
TEST_P(Protocol, WithTheCheckOfConsistencyNothingIsFoundAndNoBitChanges) {
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
    expect_reference(config, {.harness = GetParam(), .num_workers = 2, .prefetch = false, .plan = kPlans[1], .check_consistency = true});
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
  try {
    (void)run_toy(config, {GetParam(), 3, true, kPlans[1]}, 1);
    FAIL() << "no exception";
  } catch (const WorkerError& error) {
    EXPECT_EQ(error.place().layer, 2);
    EXPECT_EQ(error.place().microbatch, config.num_microbatches - 1);
    EXPECT_EQ(error.place().step, 2);
    EXPECT_THAT(error.what(), testing::HasSubstr("layer 2 (toy) failed in the forward stage of layers 2-3"));
    EXPECT_THAT(error.what(), testing::HasSubstr("the toy layer fails"));
  }
}

// ThreadSanitizer sees whether it can.
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
  const char* runs = std::getenv("RP_RANDOM_RUNS");  // the slow tests ask for more
  const auto num_runs = static_cast<unsigned>(runs == nullptr ? 60 : std::atoi(runs));
  for (unsigned seed = 1; seed <= num_runs; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&random](int low, int high) { return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1)); };
    ToyConfig config;
    config.num_layers = draw(2, 9);
    config.num_elements = 32 * draw(1, 4);
    config.num_microbatches = draw(1, 5);
    config.rounds_per_step = draw(0, 2) == 0 ? draw(2, 3) : 1;
    config.num_steps = draw(2, 6);
    config.tied = draw(0, 1) == 1;
    config.asynchronous = draw(0, 1) == 1;
    config.dtype = draw(0, 1) == 1 ? DType::kBFloat16 : DType::kFloat32;
    config.max_grad_norm = draw(0, 2) == 0 ? 0.5 : 0.0;
    RunSettings settings{.harness = Harness::kOneMapping, .num_workers = draw(1, 6), .prefetch = draw(0, 1) == 1, .plan = ""};
    config.scales_loss = draw(0, 3) == 0;
    if (draw(0, 4) > 0) settings.plan = plan_text(random_plan(random, config.num_layers), config.num_layers);
    settings.check_consistency = draw(0, 2) == 0;
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << config.num_layers << " layers, plan '" << settings.plan
                                    << "', " << settings.num_workers << " workers, prefetch " << settings.prefetch << ", "
                                    << config.num_microbatches << " microbatches, " << config.rounds_per_step
                                    << " rounds a step, asynchronous " << config.asynchronous << ", tied " << config.tied
                                    << ", clipping " << config.max_grad_norm << ", loss scaling " << config.scales_loss << ", "
                                    << dtype_bytes(config.dtype) << "-byte weights, checked " << settings.check_consistency);
    expect_reference(config, settings);
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, Protocol, testing::Values(Harness::kOneMapping));
INSTANTIATE_TEST_SUITE_P(Mappings, Protocol, testing::Values(Harness::kTwoMappings));
INSTANTIATE_TEST_SUITE_P(Processes, Protocol, testing::Values(Harness::kProcesses));

}  // namespace
}  // namespace rp::test
