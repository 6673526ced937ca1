#include "tests/coordinator/toy_run.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "common/run_depth.h"
#include "coordinator/coordinator.h"
#include "tests/coordinator/toy_workers.h"

namespace rp::test {

namespace {

// Reads everything that a dump contains, repeatedly, until it is destroyed.
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
      usleep(50);  // on a busy machine, a thread that only spins delays the ends of killed processes by seconds
    }
  }

  std::atomic<bool> done_{false};
  std::int64_t num_waits_ = 0;  // used only by the thread
  std::thread thread_;
};

void add_microbatch(RoundInputs& inputs, std::vector<std::vector<float>>& storage, const ToyConfig& config, int round,
                    int m) {
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

constexpr double kInitialScale = 1024;

}  // namespace

void write_initial_weights(Store& store) {
  for (const GroupId b : store.catalogue().weight_groups().indices()) {
    const WeightGroupRecord& group = store.catalogue().weight_groups()[b];
    const ElementRange owned = store.catalogue().owned(b);
    std::fill_n(store.state(group.moment1_offset), owned.size(), 0.0F);
    std::fill_n(store.state(group.moment2_offset), owned.size(), 0.0F);
    for (std::uint64_t i = 0; i < group.num_elements; ++i) {
      const float value = toy_initial_weight(b, i);
      if (group.dtype != DType::kFloat32 && owned.begin <= i && i < owned.end)
        store.state(group.master_offset)[i - owned.begin] = value;
      for (std::uint32_t copy = 0; copy < group.num_copies; ++copy) {
        std::byte* working = store.parameters(group.parameter_offset[copy]);
        if (group.dtype == DType::kFloat32) {
          reinterpret_cast<float*>(working)[i] = value;
        } else {
          reinterpret_cast<std::uint16_t*>(working)[i] = bf16_from_float(value);
        }
      }
    }
  }
}

std::vector<float> toy_masters(Store& store, const ToyConfig& config, Version version) {
  std::vector<float> masters;
  for (const GroupId index : store.catalogue().weight_groups().indices()) {
    const WeightGroupRecord& group = store.catalogue().weight_groups()[index];
    const ElementRange owned = store.catalogue().owned(index);
    const auto n = static_cast<std::uint64_t>(config.num_elements);
    const std::uint64_t begin = masters.size();
    masters.resize(begin + n);
    if (group.dtype == DType::kFloat32) {
      std::copy_n(reinterpret_cast<const float*>(store.working_copy(index, version).data()), n,
                  masters.begin() + static_cast<std::ptrdiff_t>(begin));
    } else {
      std::copy_n(store.state(group.master_offset), std::min(owned.end, n) - std::min(owned.begin, n),
                  masters.begin() + static_cast<std::ptrdiff_t>(begin + owned.begin));
    }
  }
  return masters;
}

ToyResult train_toy(Store& store, Coordinator& coordinator, const ToyConfig& config, const AfterRound& after_round) {
  ToyResult result;
  std::vector<ToyStep> steps;
  for (int step = 0; step < config.num_steps; ++step)
    steps.push_back(accept_toy_step(coordinator, config, step, after_round));
  coordinator.synchronize();
  for (const ToyStep& step : steps) {
    for (const auto& round : step.rounds) {
      coordinator.wait_forward(*round);
      result.losses.push_back(round->losses.at(0));
    }
    result.norms.push_back(coordinator.wait_norm(0, *step.outcome).grad_norm);
  }
  result.masters = toy_masters(store, config, coordinator.pipeline_state(0).version());
  return result;
}

ToyStep accept_toy_step(Coordinator& coordinator, const ToyConfig& config, int step, const AfterRound& after_round) {
  ToyStep accepted;
  const auto accept = [&](const RoundTraits& traits, int round) {
    std::vector<std::vector<float>> storage;
    storage.reserve(2 * static_cast<std::size_t>(config.num_microbatches));
    RoundInputs data;
    for (int m = 0; m < config.num_microbatches; ++m) add_microbatch(data, storage, config, round, m);
    return coordinator.accept_round(traits, data);
  };
  for (int r = 0; r < config.rounds_per_step; ++r) {
    accepted.rounds.push_back(accept({.num_microbatches = config.num_microbatches}, step * config.rounds_per_step + r));
    if (after_round) after_round(coordinator, *accepted.rounds.back());
  }
  accepted.outcome = coordinator.accept_step(
      0,
      {.rules = {toy_rule()}, .options = {.asynchronous = config.asynchronous, .max_grad_norm = config.max_grad_norm}});
  for (int e = 0; e < config.num_evaluations; ++e) {
    (void)accept({.kind = RoundKind::kForward,
                  .mode = RoundMode::kEvaluate,
                  .evaluates_loss = true,
                  .num_microbatches = config.num_microbatches},
                 e);
  }
  return accepted;
}

StoreSettings toy_store_settings(const RunSettings& settings) {
  StoreSettings store_settings;
  store_settings.num_workers = static_cast<std::uint32_t>(settings.num_workers);
  store_settings.stage_buffers = settings.prefetch ? kStageBuffers : 1;
  store_settings.arena_limit_bytes = std::uint64_t{256} << 20;
  store_settings.wait_timeout_ns = 20 * kNsPerSecond;
  store_settings.check_consistency = settings.check_consistency;
  return store_settings;
}

CoordinatorOptions toy_coordinator_options(const ToyConfig& config, const RunSettings& settings, Workers& workers,
                                           Store& store) {
  PipelineSettings pipeline;
  pipeline.adds_rounds = config.rounds_per_step > 1;
  pipeline.asynchronous = config.asynchronous;
  pipeline.plan.fits_device = settings.fits_device;
  if (!settings.plan.empty()) pipeline.plan.by_hand = parse_plan(settings.plan, config.num_layers);
  if (config.scales_loss) pipeline.loss_scaling = LossScaling{.initial_scale = kInitialScale, .growth_interval = 2};
  CoordinatorOptions options{.pipelines = {pipeline}, .board = entry(settings.board, 0), .trace = settings.trace};
  options.on_set_aside = [&](const Command& task) { settings.on_set_aside(store, task); };
  options.on_commit = [&](const CommittedTask& task) {
    workers.count_commit();
    if (settings.on_commit) settings.on_commit(store, task);
  };
  return options;
}

std::optional<FaultBoardEntry> entry(const FaultBoard* board, int index) {
  return board == nullptr ? std::nullopt : std::optional(board->entry(index));
}

std::vector<ToyResult> run_toy(const ToyConfig& config, const RunSettings& settings, int trainings) {
  const auto store = Store::create(toy_store_settings(settings), toy_catalogue(config));
  write_initial_weights(*store);
  Workers workers(*store, settings, config);
  std::optional<BoardReader> reader;  // started after the processes are forked
  if (settings.board != nullptr) reader.emplace(*settings.board);
  Coordinator coordinator(*store, toy_coordinator_options(config, settings, workers, *store));
  if (settings.set_aside && settings.deaths.empty()) coordinator.set_aside(*settings.set_aside);
  const WorkerWatch watch(workers, coordinator);
  std::vector<ToyResult> results = {train_toy(*store, coordinator, config)};
  while (results.size() < static_cast<std::size_t>(trainings)) {
    coordinator.restart_at(0, 0, 0, {.loss_scale = {.scale = kInitialScale, .previous_scale = kInitialScale}});
    write_initial_weights(*store);
    results.push_back(train_toy(*store, coordinator, config));
  }
  return results;
}

void expect_reference(const ToyConfig& config, const RunSettings& settings, int trainings) {
  const ToyResult expected = toy_reference(config);
  for (const ToyResult& actual : run_toy(config, settings, trainings)) {
    EXPECT_EQ(actual.losses, expected.losses);
    EXPECT_EQ(actual.norms, expected.norms);
    EXPECT_EQ(actual.masters, expected.masters);
  }
}

}  // namespace rp::test
