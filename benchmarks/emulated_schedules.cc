// Runs the runtime on emulated devices: processes, store, rings and words are real; computations
// take the time of the published workloads and touch no data (docs/design/emulated-device.md).
// Compares the run with the simulator for the same plan: bubble, busy time of asynchronous steps,
// and the cost of dispatching a task.
//
//   emulated_schedules [--model 1.7b|8b|32b|all] [--steps N] [--warm-up N] [--scale F] [--mode sync|async|all]
//       [--round-microbatches 8|16]
//   (defaults: all models, 16 steps after 4 of warm-up, all times as published (scale 1), both modes, rounds of 8)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "common/program_main.h"
#include "common/text.h"
#include "coordinator/schedule_report.h"
#include "coordinator/updates/emulated_group_updater.h"
#include "device/emulated_device.h"
#include "roundpipe/error.h"
#include "scheduler/round_schedule.h"
#include "tests/scheduler/golden_schedules.h"
#include "worker/executor/emulated_stage_executor.h"
#include "worker/worker.h"

namespace rp {
namespace {

struct Options {
  std::string model = "all";
  std::string mode = "all";
  int num_steps = 16;
  int num_warm_up = 4;
  double scale = 1;  // factor of all times
  int round_microbatches = 8;
};

// Shared by all processes: data that the model has and no record of the protocol carries.
struct Shared {
  static constexpr std::size_t kSlots = 1024, kMicrobatches = 16;
  // The times at which microbatches of the last slots ended. Writer: the slot's worker, before the
  // event that its reader waits for.
  std::array<std::array<std::atomic<std::int64_t>, kMicrobatches>, kSlots> end_ns;
  // Counted after the warm-up.
  std::atomic<std::int64_t> num_waits;    // microbatches whose input arrived after their worker was free
  std::atomic<std::int64_t> handover_ns;  // sum over these, from the emulated arrival to the start
};

Shared* new_shared() {
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw Error(ExitCode::kNoResource, "no shared memory for the benchmark");
  return new (memory) Shared;
}

void note(Shared& shared, const Command& command, int microbatch, const ComputeSpan& span, std::int64_t hop_ns,
          int num_warm_up) {
  const std::uint64_t slot = command.slot.number().value();
  const auto m = static_cast<std::size_t>(microbatch);
  shared.end_ns[slot % Shared::kSlots][m].store(span.end_ns, std::memory_order_relaxed);
  if (command.step <= static_cast<std::uint64_t>(num_warm_up)) return;
  if (command.first_layer == 0 && command.phase == Phase::kForward) return;  // its input comes from the coordinator
  const std::int64_t arrival_ns =
      shared.end_ns[(slot - 1) % Shared::kSlots][m].load(std::memory_order_relaxed) + hop_ns;
  if (arrival_ns <= span.free_ns) return;
  shared.num_waits.fetch_add(1, std::memory_order_relaxed);
  shared.handover_ns.fetch_add(span.start_ns - arrival_ns, std::memory_order_relaxed);
}

constexpr std::int64_t kTokens = 4 * 2048, kWidth = 2048;  // an activation of 32 MiB, which no process touches

TensorDesc activation() {
  TensorDesc desc{.dtype = DType::kBFloat16, .rank = 2};
  desc.shape[0] = kTokens;
  desc.shape[1] = kWidth;
  return desc;
}

std::vector<EmulatedLayer> emulated_layers(const Workload& workload, double scale) {
  const auto ns = [scale](double ms) { return static_cast<std::int64_t>(ms * 1e6 * scale); };
  std::vector<EmulatedLayer> layers;
  for (const LayerWork& layer : workload.layers) {
    layers.push_back({.forward_ns = ns(layer.forward), .backward_ns = ns(layer.backward), .output = activation()});
  }
  layers.push_back(
      {.forward_ns = ns(workload.head.forward), .backward_ns = ns(workload.head.backward), .output = activation()});
  return layers;
}

std::unique_ptr<Store> make_store(const Workload& workload, bool asynchronous) {
  StoreSettings settings;
  settings.backing = "memfd";
  settings.is_sparse = true;
  settings.num_workers = static_cast<std::uint32_t>(workload.num_gpus);
  settings.wait_timeout_ns = 60 * kNsPerSecond;
  // 235 million parameters per layer: a machine with 24 GB could not hold a model of this size.
  const ParameterRequest weight{.name = "w", .dtype = DType::kBFloat16, .shape = {235'000'000}};
  const std::vector<LayerRequest> layers(static_cast<std::size_t>(workload.num_layers()) + 1,
                                         LayerRequest{.name = "emulated", .parameters = {weight}});
  const bool adds_rounds = workload.round_microbatches < workload.num_microbatches;
  return Store::create(settings, Catalogue::lay_out(layers, asynchronous ? 2 : 1, adds_rounds));
}

pid_t fork_worker(Store& store, int worker, const Workload& workload, const Options& options, Shared& shared) {
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::vector<UniqueFd> descriptors;
  for (const int fd : store.descriptors()) descriptors.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  const auto view = Store::attach(std::move(descriptors));
  const auto hop_ns = static_cast<std::int64_t>(workload.hop * 1e6 * options.scale);
  EmulatedDevice device({.activation_latency_ns = hop_ns});
  EmulatedStageExecutor executor(
      emulated_layers(workload, options.scale), device, view->catalogue(),
      [&](const StageTask& task, int microbatch, bool is_recompute, const ComputeSpan& span) {
        if (!is_recompute) note(shared, *task.command, microbatch, span, hop_ns, options.num_warm_up);
      });
  Worker(*view, worker, device, executor).serve();
  _exit(0);
}

TensorView view_of(const std::int64_t& value) {
  TensorView view;
  view.desc = {.dtype = DType::kInt64, .rank = 0};
  view.data = reinterpret_cast<const std::byte*>(&value);
  return view;
}

void train(Coordinator& coordinator, const Workload& workload, int num_steps, bool asynchronous) {
  const std::int64_t token = 0;
  RoundInputs inputs;
  for (int m = 0; m < workload.round_microbatches; ++m) {
    inputs.inputs.push_back({.tensors = {view_of(token)}});
    inputs.arguments.push_back({.tensors = {view_of(token)}});
  }
  for (int step = 0; step < num_steps; ++step) {
    for (int m = 0; m < workload.num_microbatches; m += workload.round_microbatches) {
      (void)coordinator.accept_round({.num_microbatches = workload.round_microbatches}, inputs);
    }
    (void)coordinator.accept_step(0, {.rules = {AdamW{}}, .options = {.asynchronous = asynchronous}});
  }
  coordinator.synchronize();
}

MeasuredSteps measure(const Workload& workload, const Plan& plan, bool asynchronous, const Options& options,
                      Shared& shared) {
  const auto store = make_store(workload, asynchronous);
  std::vector<pid_t> children;
  for (int worker = 0; worker < workload.num_gpus; ++worker) {
    children.push_back(fork_worker(*store, worker, workload, options, shared));
  }
  ScheduleReport report(workload.num_gpus);
  {
    const PipelineSettings pipeline{.adds_rounds = workload.round_microbatches < workload.num_microbatches,
                                    .asynchronous = asynchronous,
                                    .plan = {.by_hand = plan}};
    Coordinator coordinator(*store, {.pipelines = {pipeline},
                                     .on_commit = [&report](const CommittedTask& task) { report.add(task); },
                                     .make_updater = emulated_updaters({})});
    train(coordinator, workload, options.num_warm_up + options.num_steps, asynchronous);
  }
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  std::printf("# store: %s of addresses, %s of memory\n",
              bytes_text(Store::needed({}, store->catalogue()).total()).c_str(),
              bytes_text(store->allocated().total()).c_str());
  return report.measure(static_cast<std::uint64_t>(options.num_warm_up));
}

void print_row(const test::GoldenModel& model, bool asynchronous, const Options& options) {
  Workload workload = model.workload;
  workload.fused_waits = true;  // as in the runtime
  workload.round_microbatches = options.round_microbatches;
  Plan plan = test::golden_plan(model);
  const std::vector<StageWork> stages = stage_works(workload, plan);
  RoundSimulator simulator(workload);
  const double simulated_ms = asynchronous ? simulator.period(stages) : simulator.makespan(stages);
  const double simulated = busy_ms(workload, stages) / workload.num_gpus / simulated_ms;
  Shared* shared = new_shared();
  const MeasuredSteps measured = measure(workload, plan, asynchronous, options, *shared);
  const auto num_waits = static_cast<double>(shared->num_waits.load());
  const auto us = [](std::int64_t ns) { return static_cast<double>(ns) * 1e-3; };
  std::printf("%-5s %-5s %5d %10.2f %10.2f %8.2f %8.2f %8.2f %9.2f %9.4f %9.1f %9.2f %9.2f %9.2f\n", model.name.c_str(),
              asynchronous ? "async" : "sync", measured.num_steps, simulated_ms * options.scale, measured.step_ms(),
              100 * (1 - simulated), 100 * measured.bubble(), 100 * measured.efficiency() / simulated,
              measured.dispatch_us_per_task(), 100 * measured.dispatch_part(), us(measured.max_dispatch_ns),
              100 * measured.exposed_part(), us(shared->handover_ns.load()) / std::max(1.0, num_waits),
              num_waits / static_cast<double>(measured.num_tasks));
  std::fflush(stdout);
  munmap(shared, sizeof(Shared));
}

int run(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc)
      throw Error(ExitCode::kUsage,
                  name + ": its value is missing; the options stand at the top of emulated_schedules.cc");
    const char* const value = argv[i + 1];
    if (name == "--model") options.model = value;
    else if (name == "--mode") options.mode = value;
    else if (name == "--steps") options.num_steps = std::atoi(value);
    else if (name == "--warm-up") options.num_warm_up = std::atoi(value);
    else if (name == "--scale") options.scale = std::atof(value);
    else if (name == "--round-microbatches") options.round_microbatches = std::atoi(value);
    else throw Error(ExitCode::kUsage, name + ": unknown; the options stand at the top of emulated_schedules.cc");
  }
  std::printf("# %d steps after %d, times x %g, rounds of %d microbatches, %ld cores\n", options.num_steps,
              options.num_warm_up, options.scale, options.round_microbatches, sysconf(_SC_NPROCESSORS_ONLN));
  std::printf(
      "# ms of a step and %% of bubble: simulated, measured; %% of the simulated busy time;\n"
      "# dispatch per task: us, %%, us at most; %% exposed; us from an emulated arrival to the start where that was "
      "waited\n"
      "# for, and such waits per task\n");
  for (const test::GoldenModel& model : test::golden_models()) {
    if (options.model != "all" && options.model != model.name) continue;
    for (const bool asynchronous : {false, true}) {
      if (options.mode == (asynchronous ? "sync" : "async")) continue;
      print_row(model, asynchronous, options);
    }
  }
  return 0;
}

}  // namespace
}  // namespace rp

int main(int argc, char** argv) {
  return rp::run_program("emulated_schedules", [&] { return rp::run(argc, argv); });
}
