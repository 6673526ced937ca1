// train: fine-tunes a causal language model from a Hugging Face directory on tokenized text. docs/train.md.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <map>
#include <optional>
#include <string>

#include "common/text.h"
#include "hoststore/memory/memory_limit.h"
#include "launcher/process/watching_tool.h"
#include "roundpipe/error.h"
#include "roundpipe/models.h"
#include "roundpipe/pipeline.h"
#include "roundpipe/session.h"
#include "train/emulated_training.h"
#include "train/output/progress.h"
#include "train/output/standard_output.h"
#include "train/resume_point.h"
#include "train/run/memory_check.h"
#include "train/run/run_directory.h"
#include "train/run/run_state.h"
#include "train/run_header.h"
#include "train/run_inputs.h"
#include "train/run_model.h"
#include "train/settings/defaults.h"
#include "train/settings/options.h"
#include "train/settings/settings.h"
#include "train/trained_model.h"
#include "train/training.h"

namespace {

void check_nodes(const rp::Session& session, const rp::TrainSettings& settings) {
  const int num_nodes = session.num_nodes();
  if (num_nodes == 1) return;
  if (settings.exported) throw rp::Error(rp::ExitCode::kUsage, "--export needs one node: start it without mpirun");
  if (settings.rounds_per_step >= num_nodes) return;
  throw rp::Error(rp::ExitCode::kUsage,
                  rp::cat("--rounds-per-step is ", settings.rounds_per_step, ", but there are ", num_nodes,
                          " nodes, which share the rounds of a step: give --rounds-per-step ", num_nodes,
                          " or a multiple of it (the results are those of this number of rounds on one node)"));
}

// On several nodes, the first one finds the checkpoint, and all make sure that their settings, data
// and models are its own.
rp::RunInputs inputs_of_node(rp::Session& session, rp::TrainSettings& settings) {
  constexpr const char* kBegins = "begin";
  constexpr const char* kHasEnded = "end";
  rp::RunInputs inputs;
  std::string decision;
  if (session.node() == 0) {
    inputs = rp::find_run_inputs(settings, session.threads_per_worker(), session.restarted());
    decision = inputs.has_ended           ? kHasEnded
               : inputs.resume.checkpoint ? std::filesystem::absolute(*inputs.resume.checkpoint).string()
                                          : kBegins;
  }
  decision = session.from_first_node(decision);
  if (session.num_nodes() == 1) return inputs;
  inputs.has_ended = decision == kHasEnded;
  if (inputs.has_ended) return inputs;
  if (session.node() > 0) {
    inputs = rp::find_run_inputs_of_node(
        settings, session.threads_per_worker(),
        decision == kBegins ? std::nullopt : std::optional<std::filesystem::path>(decision));
  }
  const std::string own =
      rp::shared_run_text(inputs.state(settings, 0, 0), inputs.eval_data ? inputs.eval_data->checksum() : 0);
  rp::check_same_run(own, session.from_first_node(own), session.node());
  return inputs;
}

std::map<std::string, std::string> saved_settings(const std::filesystem::path& checkpoint) {
  return rp::read_checkpoint(rp::checkpoint_to_resume(checkpoint)).settings;
}

// Implements --export.
void write_model_of_checkpoint(rp::Pipeline& pipeline, const rp::TrainSettings& settings,
                               const std::filesystem::path& checkpoint) {
  (void)pipeline.load_state(checkpoint);
  rp::RunDirectory(settings.output).create();
  rp::print(rp::cat("of ", checkpoint.string(), ", step ", pipeline.num_steps(), ": ",
                    rp::write_trained_model(pipeline, settings), "\n"));
}

void run(int argc, char** argv) {
  rp::Session session(argc, argv);
  rp::set_print_limit([&session] { return session.stop_requested(); });
  const rp::TrainCommand command =
      rp::parse_train_command({argv + 1, argv + argc}, session.is_emulated(), saved_settings);
  if (command.action != rp::TrainCommand::Action::kRun) {
    rp::print(command.action == rp::TrainCommand::Action::kHelp ? rp::train_help() : "train " RP_VERSION "\n");
    rp::check_printed();
    return;
  }
  rp::TrainSettings settings = command.settings;
  if (session.node() > 0) rp::set_quiet();
  check_nodes(session, settings);
  if (!settings.parts.adapter.empty()) {
    const rp::TrainedParts given = settings.parts;
    settings.parts = rp::models::read_adapter(given.adapter);
    settings.parts.frozen_weights = given.frozen_weights;
    if (given.lora.dropout > 0) settings.parts.lora.dropout = given.lora.dropout;
  }
  if (session.is_emulated()) {
    rp::train_emulated(session, settings, rp::pipeline_options(settings));
    rp::check_printed();
    return;
  }
  std::optional<rp::RunInputs> inputs;
  std::filesystem::path exported;
  std::string header;
  if (session.is_coordinator() && settings.exported) {
    exported = rp::find_exported_checkpoint(settings);
  } else if (session.is_coordinator()) {
    inputs = inputs_of_node(session, settings);
    if (inputs->has_ended) {
      rp::print(rp::ended_text(settings));
      rp::check_printed();
      return;
    }
    if (inputs->finished.empty()) {
      header = rp::header_text(settings, *inputs);
      rp::print(header);
    }
  }
  // A worker derives the same settings from its command line as the coordinator.
  if (!inputs && !settings.exported && rp::needs_model(settings)) {
    const rp::models::ModelInfo info = rp::models::inspect(settings.model, settings.parts);
    rp::fill_in_by_model(settings, info.num_parameters, info.max_sequence_length);
  }
  const rp::models::CausalLmLossSettings loss = rp::loss_settings(settings);
  rp::Pipeline pipeline(session, rp::load_model(settings, loss), rp::models::causal_lm_loss(loss),
                        rp::pipeline_options(settings));
  try {
    {
      rp::LoadingProgress progress;
      session.start([&](const rp::LoadProgress& loaded) { progress.show(loaded.num_loaded, loaded.num_layers); });
    }
    if (settings.exported) {
      write_model_of_checkpoint(pipeline, settings, exported);
      rp::check_printed();
      return;
    }
    const std::string plans =
        rp::memory_text(session.memory_plan()) + rp::speed_text(session.num_workers(), pipeline.plan_text());
    const int num_cpu_workers = session.device() == "cpu" ? session.num_workers() : 0;
    rp::check_activations(settings, rp::least_activation_bytes(settings, pipeline.plan_text(), num_cpu_workers),
                          rp::available_memory());
    const bool is_first = inputs->finished.empty();
    rp::Training training(session, pipeline, settings, loss, *inputs,
                          is_first ? header + rp::settings_text(settings, session.threads_per_worker()) + plans : "");
    if (is_first) rp::print(plans);
    training.run();
    rp::check_printed();
  } catch (...) {
    throw;  // caught only to unwind the stack: the progress bar is removed before the error is printed
  }
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = false;
#endif

}  // namespace

int main(int argc, char** argv) {
  run(argc, argv);
  std::cout.flush();
  std::fflush(nullptr);
  // LibTorch's exit handlers take a third of the time of its start, to free what the process no longer
  // needs. A sanitizer, or a tool that watches the process, writes its report in exit handlers.
  if (!kIsSanitized && rp::watching_tool().empty()) _exit(0);
  return 0;
}
