#include "train/run/step_times.h"

#include "common/network_profile.h"
#include "common/text.h"
#include "model_files/profile_file.h"
#include "roundpipe/error.h"
#include "train/output/number_text.h"
#include "train/run/training_setup.h"

namespace rp {
namespace {

std::string row(const std::string& what, const StepTimes& times, double step_ms) {
  return cat("\n  ", what, formatted(": %.1f ms, measured %.2f times as much", step_ms, times.measured_ms / step_ms));
}

}  // namespace

PredictedStep predict_step(const TrainSettings& settings, const std::string& profile, const std::string& plan,
                           int num_workers, bool fp16_accumulation, int num_nodes, const std::string& network) {
  PredictedStep predicted{.profile = profile};
  try {
    const GpuProfile gpu = gpu_profile(profile).profile;
    predicted.profile = gpu.name;
    if (settings.dtype == DType::kFloat32) {
      throw Error(ExitCode::kUsage, "profiles are of products of 16-bit numbers, and --dtype is fp32");
    }
    const bool adds_up_in_fp16 = fp16_accumulation && settings.dtype == DType::kFloat16;
    TrainingSetup setup = setup_of(settings, gpu, num_workers, adds_up_in_fp16 ? Accumulate::kFp16 : Accumulate::kFp32);
    setup.num_nodes = num_nodes;
    if (const auto links = network_of(network)) setup.network = *links;
    if (num_nodes > 1)
      predicted.profile += cat(" on ", num_nodes, network.empty() ? " nodes, without the network" : " nodes");
    const int num_layers = static_cast<int>(setup.model.num_layers()) + 2;  // the embedding and the head
    predicted.step_ms = predict_plan(setup, parse_plan(plan, num_layers)).run.step_ms;
  } catch (const Error& error) {
    predicted.problem = error.what();
  }
  return predicted;
}

std::string step_times_text(const StepTimes& times, const std::optional<PredictedStep>& predicted) {
  if (times.num_steps == 0) return {};
  std::string text = formatted("step: %.1f ms, the median of %d; workers compute %.1f %% of the time",
                               times.measured_ms, times.num_steps, 100 * times.busy);
  if (times.simulated_ms > 0) text += row("simulated from what its layers took", times, times.simulated_ms);
  if (!predicted) return text;
  if (predicted->problem.empty())
    return text + row(cat("predicted from the model's shape for ", predicted->profile), times, predicted->step_ms);
  return text + cat("\n  not predicted for ", predicted->profile, ": ", predicted->problem);
}

}  // namespace rp
