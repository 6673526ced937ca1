// Runs steps on emulated devices: the runtime is real, the times are those of the model, and no
// data is touched.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "coordinator/schedule_report.h"
#include "coordinator/simulated_steps.h"
#include "coordinator/updates/emulated_group_updater.h"
#include "device/emulated_device.h"
#include "roundpipe/error.h"
#include "scheduler/round_schedule.h"
#include "worker/executor/emulated_stage_executor.h"
#include "worker/worker.h"

namespace rp {
namespace {

constexpr int kNumLayers = 4, kNumWorkers = 2, kNumMicrobatches = 4, kNumSteps = 5, kWarmUp = 2;
constexpr std::int64_t kForwardNs = 2 * kNsPerMs, kBackwardNs = 4 * kNsPerMs;
constexpr const char* kPlan = "forward 0-1 2 | fused 3 | backward 2 0-1";

TensorDesc activation() {
  TensorDesc desc{.dtype = DType::kBFloat16, .rank = 2};
  desc.shape[0] = 8192;
  desc.shape[1] = 8192;
  return desc;
}

// 64 GB with a billion parameters per layer.
std::unique_ptr<Store> huge_store(bool asynchronous, std::int64_t parameters = 1'000'000'000) {
  StoreSettings settings;
  settings.backing = "memfd";
  settings.num_workers = kNumWorkers;
  settings.wait_timeout_ns = 20 * kNsPerSecond;
  settings.is_sparse = true;
  settings.arena_limit_bytes = std::uint64_t{32} << 30;  // ThreadSanitizer leaves few addresses
  const ParameterRequest weight{.name = "w", .dtype = DType::kBFloat16, .shape = {parameters}};
  const std::vector<LayerRequest> layers(kNumLayers, LayerRequest{.name = "l", .parameters = {weight}});
  return Store::create(settings, Catalogue::lay_out(layers, asynchronous ? 2 : 1, false));
}

class EmulatedWorkers {
 public:
  EmulatedWorkers(Store& store, const EmulatedDeviceModel& model, const EmulatedStageExecutor::Observer& observer) {
    const EmulatedLayer layer{.forward_ns = kForwardNs, .backward_ns = kBackwardNs, .output = activation()};
    for (int worker = 0; worker < store.num_workers(); ++worker) {
      threads_.emplace_back([&store, worker, model, layer, observer] {
        EmulatedDevice device(model);
        EmulatedStageExecutor executor(std::vector<EmulatedLayer>(kNumLayers, layer), device, store.catalogue(),
                                       observer);
        Worker(store, worker, device, executor).serve();
      });
    }
  }
  ~EmulatedWorkers() {
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::vector<std::thread> threads_;
};

struct Training {
  bool asynchronous = false;
  RecomputeGrain recompute = RecomputeGrain::kStage;
};

void train(Coordinator& coordinator, const Training& training) {
  const std::int64_t token = 0;
  TensorView view;
  view.desc = {.dtype = DType::kInt64, .rank = 0};
  view.data = reinterpret_cast<const std::byte*>(&token);
  const RoundInputs inputs{.inputs = std::vector<BlockContents>(kNumMicrobatches, {.tensors = {view}}),
                           .arguments = std::vector<BlockContents>(kNumMicrobatches, {.tensors = {view}})};
  for (int step = 0; step < kNumSteps; ++step) {
    (void)coordinator.accept_round(
        {.grain_layer = training.recompute == RecomputeGrain::kLayer, .num_microbatches = kNumMicrobatches}, inputs);
    (void)coordinator.accept_step(0, {.rules = {AdamW{}}, .options = {.asynchronous = training.asynchronous}});
  }
  coordinator.synchronize();
}

MeasuredSteps measure(Store& store, const Training& training, const EmulatedDeviceModel& device,
                      const HostMemoryModel& memory, const EmulatedStageExecutor::Observer& observer = {},
                      StepTimes* compared = nullptr) {
  const EmulatedWorkers workers(store, device, observer);
  ScheduleReport report(kNumWorkers);
  const PipelineSettings pipeline{.asynchronous = training.asynchronous,
                                  .plan = {.by_hand = parse_plan(kPlan, kNumLayers)}};
  Coordinator coordinator(store, {.pipelines = {pipeline},
                                  .on_commit = [&report](const CommittedTask& task) { report.add(task); },
                                  .make_updater = emulated_updaters(memory)});
  train(coordinator, training);
  EXPECT_EQ(report.shape().recompute, training.recompute);
  if (compared != nullptr) {
    const LayerTiming layer{.forward = kForwardNs, .recompute = kForwardNs, .backward = kBackwardNs};
    *compared = compare_steps(report, std::vector<LayerTiming>(kNumLayers, layer),
                              {.num_workers = kNumWorkers, .asynchronous = training.asynchronous});
  }
  return report.measure(kWarmUp);
}

double simulated_step_ms(const Training& training) {
  const LayerWork layer{.forward = kForwardNs * 1e-6, .backward = kBackwardNs * 1e-6};
  const Workload workload{.num_gpus = kNumWorkers,
                          .num_microbatches = kNumMicrobatches,
                          .round_microbatches = kNumMicrobatches,
                          .layers = std::vector<LayerWork>(kNumLayers - 1, layer),
                          .head = layer,
                          .recompute = training.recompute};
  RoundSimulator simulator(workload);
  const std::vector<StageWork> stages = stage_works(workload, parse_plan(kPlan, kNumLayers));
  return training.asynchronous ? simulator.period(stages) : simulator.makespan(stages);
}

TEST(MachineRun, TakesTheTimeOfTheModelAndNoneOfTheMemory) {
  using enum RecomputeGrain;
  for (const Training training :
       {Training{false, kStage}, Training{true, kStage}, Training{false, kLayer}, Training{true, kLayer}}) {
    SCOPED_TRACE(testing::Message() << "asynchronous " << training.asynchronous << ", by layer "
                                    << (training.recompute == kLayer));
    const auto store = huge_store(training.asynchronous);
    const MeasuredSteps measured = measure(*store, training, {}, {});
    EXPECT_EQ(measured.num_steps, kNumSteps - kWarmUp);
    EXPECT_EQ(measured.num_tasks, 5 * measured.num_steps);
    // Backward stages recompute three layers. The fused stage has a forward pass instead.
    const std::int64_t round_ns = kNumMicrobatches * (kNumLayers * (kForwardNs + kBackwardNs) + 3 * kForwardNs);
    EXPECT_EQ(measured.busy_ns, round_ns * measured.num_steps);
    // A run is never faster than the model, and slower by the other load of this machine. A
    // synchronous step may begin before the previous one ends, and the time of an asynchronous one
    // may differ a little from the mean.
    EXPECT_GE(measured.step_ms(), 0.9 * simulated_step_ms(training));
    EXPECT_GT(measured.efficiency(), 0.05);
    EXPECT_GT(store->catalogue().parameter_bytes(), std::uint64_t{7} << 30);
    EXPECT_LT(store->allocated().total(), std::uint64_t{16} << 20);
  }
}

TEST(MachineRun, ComparedWithTheSimulatorTakesTheSameTime) {
  for (const bool asynchronous : {false, true}) {
    StepTimes times;
    const MeasuredSteps measured =
        measure(*huge_store(asynchronous), {.asynchronous = asynchronous}, {}, {}, {}, &times);
    EXPECT_EQ(times.num_steps, kNumSteps - 2);
    EXPECT_NEAR(times.simulated_ms, simulated_step_ms({.asynchronous = asynchronous}), 0.02 * times.simulated_ms);
    EXPECT_GE(times.measured_ms, 0.9 * times.simulated_ms);
    EXPECT_GT(times.busy, 0.05);
    EXPECT_GE(times.simulated_busy, times.busy * 0.9);
    EXPECT_GT(measured.median_ms, 0);
  }
}

// A run of any length keeps its newest steps, and counts those that it drops.
TEST(ScheduleReport, KeepsTheNewestStepsAndTheirMedian) {
  ScheduleReport report(2);
  const std::size_t num_steps = ScheduleReport::kMaxSteps + 50;
  std::int64_t end_ns = 0;
  for (std::size_t step = 1; step <= num_steps; ++step) {
    Round round;
    round.step = step;
    round.plan = parse_plan(kPlan, kNumLayers);
    if (step <= 3) round.plan.backward = {{0, kNumLayers - 1}};
    round.traits.num_microbatches = 2;
    end_ns += step == num_steps ? 90'000'000 : 10'000'000;
    Slot slot;
    slot.phase = Phase::kFused;
    report.add({.round = round,
                .slot = slot,
                .completion = {.start_ns = end_ns - 8'000'000, .end_ns = end_ns, .wait_ns = 3'000'000}});
    if (step == 10) {
      EXPECT_EQ(report.shape().first_step, 4U);
      EXPECT_EQ(steps_to_leave_out(report, 2), 5U);
      EXPECT_EQ(report.measure(5).num_steps, 5);
    }
  }
  EXPECT_EQ(report.num_steps(), num_steps);
  const MeasuredSteps measured = report.measure(2);
  EXPECT_EQ(measured.num_steps, static_cast<int>(ScheduleReport::kMaxSteps) - 1);
  EXPECT_EQ(measured.median_ms, 10) << "one long step does not change the median";
  EXPECT_EQ(measured.busy_ns, measured.num_steps * std::int64_t{5'000'000}) << "without the waits between microbatches";
  EXPECT_EQ(report.measure(num_steps - 1).num_steps, 1);
  EXPECT_EQ(report.measure(num_steps - 1).median_ms, 90);
}

TEST(ScheduleReport, OfTooFewStepsIsNotCompared) {
  const ScheduleReport report(2);
  EXPECT_EQ(compare_steps(report, {{.forward = 1}}, {}).num_steps, 0);
}

// With recompute by layer, a stage recomputes only its last layer before the gradient arrives. The
// stage of two layers recomputes the other one as part of its backward computation.
TEST(MachineRun, RecomputesBeforeTheGradientWhatTheGrainSays) {
  for (const RecomputeGrain recompute : {RecomputeGrain::kStage, RecomputeGrain::kLayer}) {
    std::atomic<std::int64_t> recomputed_ns{0}, computed_ns{0};
    const auto observer = [&](const StageTask& task, int, bool is_recompute, const ComputeSpan& span) {
      if (task.command->phase == Phase::kBackward)
        (is_recompute ? recomputed_ns : computed_ns) += span.end_ns - span.start_ns;
    };
    (void)measure(*huge_store(false), {.recompute = recompute}, {}, {}, observer);
    const bool by_layer = recompute == RecomputeGrain::kLayer;
    const std::int64_t num_microbatches = kNumSteps * kNumMicrobatches;
    EXPECT_EQ(recomputed_ns, num_microbatches * (by_layer ? 2 : 3) * kForwardNs);
    EXPECT_EQ(computed_ns, num_microbatches * (3 * kBackwardNs + (by_layer ? 1 : 0) * kForwardNs));
  }
}

// The 200 MB of weights of a layer take 20 ms, its computations 8 and 16 ms, so steps wait for the
// link.
TEST(MachineRun, WaitsForALinkThatIsTooSlow) {
  const auto store = huge_store(false, 100'000'000);
  const MeasuredSteps measured = measure(*store, {}, {.upload_bytes_per_ns = 10, .download_bytes_per_ns = 10}, {});
  EXPECT_GT(measured.exposed_part(), 0.1);
  // Each layer is uploaded for its forward and its backward stage, the fused one once; there are
  // two links.
  EXPECT_GE(measured.step_ms(), 7 * 20 / 2);
}

TEST(MachineRun, WaitsForTheUpdatesOfASlowHost) {
  const auto store = huge_store(false);
  // 28 bytes for each of 4 billion parameters.
  const double bytes_per_ns = 28 * 4e9 / (50.0 * kNsPerMs);
  const MeasuredSteps measured = measure(*store, {}, {}, {.bytes_per_ns = bytes_per_ns});
  EXPECT_GE(measured.step_ms(), 50);
}

TEST(EmulatedGroupUpdater, CountsTheBytesOfAPass) {
  const auto store = huge_store(false);
  const std::uint64_t n = store->catalogue().weight_groups()[GroupId(0)].num_elements;
  const EmulatedGroupUpdater updater(store->catalogue(), {}, false);
  EXPECT_EQ(updater.update_bytes(GroupId(0), false), 28 * n);
  EXPECT_EQ(updater.norm_bytes(GroupId(0)), 2 * n);
  EXPECT_EQ(updater.update_bytes(GroupId(0), true), 6 * n);
  const EmulatedGroupUpdater of_sums(store->catalogue(), {}, true);
  EXPECT_EQ(of_sums.update_bytes(GroupId(0), false), 30 * n);
  const GroupUpdater::GradientPart whole{.use = UseId(0), .elements = {.begin = 0, .end = n}};
  EXPECT_EQ(of_sums.sum_bytes(whole, false), 10 * n);
  EXPECT_EQ(of_sums.sum_bytes(whole, true), 14 * n);
}

}  // namespace
}  // namespace rp
