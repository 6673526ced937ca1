// Measures what each part of RoundPipe is worth: weights that yield to inputs, gradients that yield
// to outputs, and backward stages that are cut independently of the forward stages. Each part is
// left out alone, and all of them together. The models and settings are the published ones on 8
// GPUs (docs/design/transfers.md), in the simulator or as runs on emulated GPUs
// (docs/emulated-device.md), which have no PCIe roots and no host memory that GPUs share, and whose
// matrix products sum in fp32.
//
//   transfer_ablation [--on simulator|sim] [--model NAME|all] [--mode sync|async|all] [--steps N] [--jobs N]
//   (defaults: simulator, all, all; runs on emulated GPUs: 8 steps after 4, one run at a time)

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/program_main.h"
#include "common/text.h"
#include "model_files/layer_costs.h"
#include "model_files/profile_file.h"
#include "roundpipe/error.h"
#include "scheduler/gpu_memory.h"
#include "scheduler/planner.h"
#include "scheduler/simulation/machine_run.h"
#include "scheduler/simulation/run_simulator.h"
#include "tests/common/temp_directory.h"

namespace {

struct Options {
  bool on_sim = false;
  std::string model = "all";
  std::string mode = "all";
  int num_steps = 8;
  int num_jobs = 1;
};

struct Model {
  const char* preset = "";
  int batch = 0;  // sequences of 2048 tokens
  int rounds = 0;
  int microbatches = 0;  // of a round
  int lora_rank = 0;
};
constexpr Model kModels[] = {{"qwen3-1.7b", 512, 4, 10, 0},
                             {"llama3.1-8b", 256, 2, 10, 0},
                             {"gpt-oss-20b", 128, 1, 16, 0},
                             {"qwen3-32b", 128, 2, 10, 0},
                             {"qwen3-235b", 64, 1, 10, 32}};

// Returns the plan whose forward and backward stages have the same cuts, as even as possible, with
// the best number of stages.
std::optional<rp::Plan> symmetric_plan(const rp::PlanTask& task) {
  rp::PlanCost cost(task);
  std::optional<rp::Cuts> best;
  double best_ms = 0;
  const int num_layers = task.workload.num_layers();
  for (int fused = task.limits.least_fused_start; fused <= num_layers; ++fused) {
    for (int stages = 1; stages <= fused; ++stages) {
      rp::Cuts cuts;
      for (int i = 1; i <= stages; ++i) cuts.forward.push_back(static_cast<int>(static_cast<long>(fused) * i / stages));
      cuts.backward = cuts.forward;
      if (!cost.fits(cuts)) continue;
      const double ms = cost.step_ms(cuts, rp::Horizon::kLong);
      if (best && ms >= best_ms) continue;
      best = cuts;
      best_ms = ms;
    }
  }
  return best ? std::optional(rp::plan_of(*best)) : std::nullopt;
}

double step_ms(const rp::RunWork& work, const rp::Plan& plan) {
  return rp::simulate_run(work, rp::stage_works(work.workload, plan), {.warm_up = 3, .steps = 6}).step_ms;
}

// A model's settings as a task for the planner and a run for the simulator.
struct Setting {
  rp::RunWork work{};
  rp::PlanTask task{};
};

Setting setting_of(const Model& model, bool asynchronous, rp::Accumulate accumulate) {
  const rp::CostSettings settings{.sequences = static_cast<double>(model.batch) / (model.microbatches * model.rounds),
                                  .parts = {.lora = {.rank = model.lora_rank, .on_experts = true}},
                                  .accumulate = accumulate};
  const std::vector<rp::LayerCost> costs = rp::layer_costs(rp::preset_config(model.preset), settings);
  const rp::MachineRun emulated{
      .gpu = rp::gpu_profile("rtx4090").profile,
      .server = rp::server_profile("xeon6330-8gpu").profile,
      .num_gpus = 8,
      .accumulate = accumulate,
      .host = {.asynchronous = asynchronous, .rounds_per_step = model.rounds, .num_microbatches = model.microbatches}};
  const rp::RunWork work = rp::run_work(costs, emulated);
  return {.work = work,
          .task = {.workload = work.workload,
                   .round_choices = {model.microbatches},
                   .asynchronous = asynchronous,
                   .limits = rp::stage_limits(costs, emulated.gpu.usable_bytes(), rp::RecomputeGrain::kStage, 2)}};
}

rp::Plan thorough(const rp::PlanTask& task) { return rp::thorough_plan(task, std::chrono::seconds(2)).plan; }

void simulate(const Model& model, bool asynchronous) {
  const auto [work, task] = setting_of(model, asynchronous, rp::Accumulate::kFp16);
  const rp::Plan plan = thorough(task);
  const double all = step_ms(work, plan);
  const auto with = [&](auto change) {
    rp::RunWork changed = work;
    change(changed.policy);
    return 100 * (step_ms(changed, plan) / all - 1);
  };
  const double weights = with([](rp::TransferPolicy& policy) { policy.weights_yield = false; });
  const double gradients = with([](rp::TransferPolicy& policy) { policy.gradients_yield = false; });
  const double neither =
      with([](rp::TransferPolicy& policy) { policy.weights_yield = policy.gradients_yield = false; });
  const double roots = with([](rp::TransferPolicy& policy) { policy.roots_yield = true; });
  const std::optional<rp::Plan> symmetric = symmetric_plan(task);
  std::printf("%-12s %-5s %9.3f %+9.2f %% %+9.2f %% %+9.2f %% %+9.2f %%", model.preset, asynchronous ? "async" : "sync",
              all / 1000, weights, gradients, neither, roots);
  if (symmetric) std::printf(" %+9.2f %%\n", 100 * (step_ms(work, *symmetric) / all - 1));
  else std::printf("  does not fit\n");
}

// The figures that a run on emulated GPUs reports.
struct Measured {
  double step_ms = 0;
  double simulated_ms = 0;
  double dispatch_percent = 0;
};

Measured measure(const std::string& command) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> output(popen((command + " 2>&1").c_str(), "r"), pclose);
  if (!output) throw rp::Error(rp::ExitCode::kNoResource, "cannot start: " + command);
  std::string text;
  std::array<char, 512> line{};
  Measured measured;
  int num_found = 0;
  while (std::fgets(line.data(), static_cast<int>(line.size()), output.get()) != nullptr) {
    text += line.data();
    num_found += std::sscanf(line.data(), "roundpipe: step %lf ms simulated %lf ms", &measured.step_ms,
                             &measured.simulated_ms) == 2;
    num_found += std::sscanf(line.data(), "roundpipe: dispatch %*f us %lf %%", &measured.dispatch_percent) == 1;
  }
  if (num_found != 2) throw rp::Error(rp::ExitCode::kUserError, rp::cat("no report from: ", command, "\n", text));
  return measured;
}

void run_on_sim(const Model& model, bool asynchronous, const Options& options) {
  const Setting setting = setting_of(model, asynchronous, rp::Accumulate::kFp32);
  const int num_layers = setting.task.workload.num_layers() + 1;  // including the head
  const rp::TempDirectory files;
  const std::string best = files.write("best", rp::plan_text(thorough(setting.task), num_layers)).string();
  const std::string bin = std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
  const auto command = [&](const char* yielding, const std::string& plan) {
    std::string text =
        rp::cat("RP_YIELD_TO_ACTIVATIONS=", yielding, " ", bin, "/rp-launch --device sim:rtx4090 --workers 8 --plan ",
                plan, " ", bin, "/train --model preset:", model.preset,
                " --sequence-length 2048 --max-grad-norm 0 --batch-size ", model.batch, " --num-microbatches ",
                model.microbatches, " --rounds-per-step ", model.rounds, " --max-steps ", 4 + options.num_steps);
    if (model.lora_rank > 0) text += rp::cat(" --lora-experts --lora-rank ", model.lora_rank);
    return asynchronous ? text + " --async" : text;
  };
  std::vector<std::string> commands;
  for (const char* yielding : {"all", "gradients", "weights", "none"}) commands.push_back(command(yielding, best));
  const std::optional<rp::Plan> symmetric = symmetric_plan(setting.task);
  if (symmetric)
    commands.push_back(command("all", files.write("same-cuts", rp::plan_text(*symmetric, num_layers)).string()));
  std::vector<Measured> cells;
  while (cells.size() < commands.size()) {
    std::vector<std::future<Measured>> at_work;
    for (std::size_t i = cells.size();
         i < commands.size() && at_work.size() < static_cast<std::size_t>(options.num_jobs); ++i) {
      at_work.push_back(std::async(std::launch::async, measure, commands[i]));
    }
    for (std::future<Measured>& cell : at_work) cells.push_back(cell.get());
  }
  std::printf("%-12s %-5s %9.3f (%9.3f)", model.preset, asynchronous ? "async" : "sync", cells[0].step_ms / 1000,
              cells[0].simulated_ms / 1000);
  double dispatch_percent = cells[0].dispatch_percent;
  for (std::size_t i = 1; i < cells.size(); ++i) {
    std::printf("  %+6.2f %% (%+6.2f %%)", 100 * (cells[i].step_ms / cells[0].step_ms - 1),
                100 * (cells[i].simulated_ms / cells[0].simulated_ms - 1));
    dispatch_percent = std::max(dispatch_percent, cells[i].dispatch_percent);
  }
  std::printf("%s  %.3f %%\n", symmetric ? "" : "  same cuts do not fit", dispatch_percent);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    if (value.empty())
      throw rp::Error(rp::ExitCode::kUsage,
                      name + ": its value is missing; the options stand at the top of transfer_ablation.cc");
    if (name == "--on" && (value == "simulator" || value == "sim")) options.on_sim = value == "sim";
    else if (name == "--model") options.model = value;
    else if (name == "--mode") options.mode = value;
    else if (name == "--steps") options.num_steps = std::max(1, std::atoi(value.c_str()));
    else if (name == "--jobs") options.num_jobs = std::max(1, std::atoi(value.c_str()));
    else
      throw rp::Error(rp::ExitCode::kUsage,
                      rp::cat(name, " ", value, ": unknown; the options stand at the top of transfer_ablation.cc"));
  }
  const bool is_known = std::ranges::any_of(kModels, [&](const Model& model) { return options.model == model.preset; });
  if (options.model != "all" && !is_known)
    throw rp::Error(rp::ExitCode::kUsage, options.model + ": none of the published models");
  return options;
}

int run(const Options& options) {
  if (options.on_sim) {
    std::printf(
        "s a step, measured (simulated); by how much it is longer without: weights give way, gradients give way, both, "
        "cuts of their own for backward; dispatch, at most\n");
  } else {
    std::printf("%-12s %-5s %9s | step is longer without: %s\n", "model", "", "s a step",
                "weights give way, gradients give way, both, with roots that give way, cuts of their own for backward");
  }
  for (const Model& model : kModels) {
    if (options.model != "all" && options.model != model.preset) continue;
    for (const bool asynchronous : {false, true}) {
      if (options.mode == (asynchronous ? "sync" : "async")) continue;
      if (options.on_sim) run_on_sim(model, asynchronous, options);
      else simulate(model, asynchronous);
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return rp::run_program("transfer_ablation", [&] { return run(parse(argc, argv)); });
}
