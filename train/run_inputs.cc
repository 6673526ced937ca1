#include "train/run_inputs.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <system_error>

#include "common/bad_input.h"
#include "common/checked_files/checksum.h"
#include "common/text.h"
#include "model_files/config/model_config.h"
#include "roundpipe/pipeline.h"
#include "train/run/model_folder.h"
#include "train/run/run_directory.h"
#include "train/settings/defaults.h"
#include "train/settings/problems.h"

namespace rp {
namespace {

namespace fs = std::filesystem;

// A vocabulary size that accepts every token file, for use while the model's vocabulary is unknown.
constexpr std::int64_t kAnyVocabulary = std::int64_t{1} << 40;

// Counts masters and moments; asynchronous runs also save the weights of the step before.
std::uint64_t checkpoint_bytes(const TrainSettings& settings, std::int64_t num_trained) {
  return static_cast<std::uint64_t>(num_trained) * (12 + (settings.asynchronous ? dtype_bytes(settings.dtype) : 0));
}

// Returns the minimum number of further checkpoints that exist at the same time. A run that keeps a
// limited number of checkpoints needs space for two: a new one is complete before the oldest is
// deleted; if the disk is full, others are deleted earlier.
std::int64_t num_checkpoints_to_come(const TrainSettings& settings, std::int64_t steps_done) {
  const std::int64_t steps = settings.max_steps - steps_done;
  if (steps <= 0) return 0;
  std::int64_t number = 1;  // the one at the end, or after a signal
  if (const std::int64_t interval = settings.save_every.steps; interval > 0) {
    number = settings.max_steps / interval - steps_done / interval + (settings.max_steps % interval == 0 ? 0 : 1);
  } else if (settings.save_every.seconds > 0) {
    number = steps;
  }
  const auto present = static_cast<std::int64_t>(RunDirectory(settings.output).checkpoints().size());
  return settings.num_kept_checkpoints() > 0 ? std::min(number, std::max<std::int64_t>(2 - present, 1)) : number;
}

void check_length(const TrainSettings& settings, const models::ModelInfo& model, Problems& problems) {
  if (model.max_sequence_length > 0 && settings.sequence_length > model.max_sequence_length) {
    problems.add(ExitCode::kUsage,
                 cat("--sequence-length ", settings.sequence_length, " is beyond the ", model.max_sequence_length,
                     " positions of the model in ", settings.model.string(), "; lower it"));
  }
}

void check_experts(const TrainSettings& settings, const models::ModelInfo& model, Problems& problems) {
  if (!settings.router_aux_loss || model.num_experts > 0) return;
  problems.add(ExitCode::kUsage,
               cat("--router-aux-loss ", *settings.router_aux_loss, " balances experts, and the model in ",
                   settings.model.string(), " (", model.architecture, ") has none; leave it out"));
}

// Checks that the disk has space for `num_checkpoints` checkpoints of `each` bytes and for the
// trained model.
void check_disk(const TrainSettings& settings, const models::ModelInfo& model, std::int64_t num_checkpoints,
                std::uint64_t each, Problems& problems) {
  fs::path place = fs::absolute(settings.output);
  std::error_code failure;
  while (!fs::exists(place, failure) && place.has_relative_path()) place = place.parent_path();
  const fs::space_info space = fs::space(place, failure);
  if (failure || space.capacity == 0) return;
  const bool is_adapter = settings.parts.lora.rank > 0;
  const std::uint64_t final_bytes = (is_adapter ? 4 * static_cast<std::uint64_t>(model.num_trained) : 0) +
                                    (!is_adapter || settings.saves_merged ? model.weight_bytes : 0);
  // Computed in double, because steps times parameters may overflow an integer.
  const double need =
      static_cast<double>(final_bytes) + static_cast<double>(num_checkpoints) * static_cast<double>(each);
  if (need <= static_cast<double>(space.available)) return;
  std::string what = bytes_text(final_bytes) + " for the trained model";
  if (num_checkpoints == 1) what += cat(" and ", bytes_text(each), " for a checkpoint");
  if (num_checkpoints > 1) what += cat(" and ", num_checkpoints, " times ", bytes_text(each), " for checkpoints");
  problems.add(ExitCode::kNoResource,
               cat("--output ", settings.output.string(), " needs ", what, ", but ", bytes_text(space.available),
                   " are free there; make room or name another place",
                   num_checkpoints > 1 ? ", or give --save-every never" : ""));
}

void check_tokenizer(const TokenFile& data, const fs::path& model) {
  const std::uint64_t identity = tokenizer_identity(model);
  if (identity == 0 || data.tokenizer() == 0 || identity == data.tokenizer()) return;
  throw bad_input(data.path(), "was made with another tokenizer than that of ", model.string(),
                  " (its tokenizer.json is another file): the model would read other words. Prepare the data again: "
                  "tools/prepare_data.py --tokenizer ",
                  model.string());
}

void open_data(const TrainSettings& settings, RunInputs& inputs, std::int64_t vocabulary) {
  inputs.data = std::make_unique<TokenFile>(TokenFile::open(settings.data, vocabulary));
  check_tokenizer(*inputs.data, settings.model);
  const DocumentSplit split = split_documents(inputs.data->num_documents(), settings.eval_share, settings.seed);
  if (settings.eval_share > 0 && split.held_out.empty()) {
    throw bad_input(settings.data, "has one document, so --eval-share ", settings.eval_share,
                    " leaves none to train on; give --eval-data instead");
  }
  const auto sequences_of = [&](const TokenFile& file, const std::vector<std::uint64_t>& documents) {
    return std::make_unique<Sequences>(file, documents, settings.sequence_length, settings.is_packed);
  };
  inputs.sequences = sequences_of(*inputs.data, split.trained);
  inputs.batches = std::make_unique<BatchSource>(*inputs.sequences, settings.batch_size, settings.seed);
  if (!split.held_out.empty()) inputs.eval_sequences = sequences_of(*inputs.data, split.held_out);
  if (settings.eval_data.empty()) return;
  inputs.eval_data = std::make_unique<TokenFile>(TokenFile::open(settings.eval_data, vocabulary));
  check_tokenizer(*inputs.eval_data, settings.model);
  const std::uint64_t num_documents = inputs.eval_data->num_documents();
  inputs.eval_sequences = sequences_of(*inputs.eval_data, split_documents(num_documents, 0, 0).trained);
}

// Checks the warm-up of a run whose number of steps was not known before the data were read.
void check_steps(const TrainSettings& settings, Problems& problems) {
  if (settings.epochs == 0 || settings.warmup_steps <= settings.max_steps) return;
  problems.add(ExitCode::kUsage, cat("--warmup-steps ", settings.warmup_steps, " is more than the ", settings.max_steps,
                                     " steps of the run: the learning rate would never be reached; lower it"));
}

void inspect_model(const TrainSettings& settings, RunInputs& inputs, Problems& problems) {
  if (const std::optional<std::string> why = why_no_model(settings.model))
    return problems.add(ExitCode::kBadInput, *why);
  problems.collect([&] {
    inputs.model = models::inspect(settings.model, settings.parts);
    inputs.identity = identity_of_model(settings.model, inputs.model.has_frozen);
  });
}

// Checks that the run of the checkpoint can continue with the current settings.
void take_checkpoint(const TrainSettings& settings, RunInputs& inputs, Problems& problems) {
  if (inputs.batches == nullptr || inputs.identity == ModelIdentity{})
    return;  // find_run_inputs() reports what is wrong with the data or the model
  const fs::path& checkpoint = *inputs.resume.checkpoint;
  inputs.notes = check_resume(checkpoint, inputs.resume.saved, inputs.state(settings, 0, 0), problems);
  if (settings.resumes_newest_whole)
    inputs.notes.insert(inputs.notes.begin(), cat("resumes from ", checkpoint.string()));
  inputs.steps_done = inputs.resume.saved.step;
  inputs.batches->seek(inputs.resume.saved.data_cursor);
  inputs.evaluations = inputs.resume.saved.evaluations;
}

// Finds the checkpoint to resume from, and checks it.
void find_checkpoint(const TrainSettings& settings, RunInputs& inputs, Problems& problems) {
  inputs.resume = find_resume_point(settings, problems);
  if (inputs.resume.checkpoint) return take_checkpoint(settings, inputs, problems);
  inputs.notes.push_back(
      cat("there is no checkpoint in ", settings.output.string(), " to resume from: the run begins"));
}

// The process before this one may have died while it wrote the checkpoint of the best step.
void forget_best_without_checkpoint(const TrainSettings& settings, RunInputs& inputs) {
  EvaluationRecord& record = inputs.evaluations;
  if (settings.final_model != FinalModel::kBest || record.best_step < 0) return;
  if (std::error_code ignored; fs::exists(RunDirectory(settings.output).checkpoint(record.best_step), ignored)) return;
  inputs.notes.push_back(
      cat("the checkpoint of step ", record.best_step,
          ", the best so far, was not complete when the program died: the best of the evaluations to "
          "come counts"));
  record.best_step = -1;
  record.best_loss = std::numeric_limits<double>::infinity();
}

void continue_after_finished(const TrainSettings& settings, RunInputs& inputs) {
  const FinishedStep& last = inputs.finished.back();
  if (!last.restart_data.empty()) inputs.resume.saved = parse_run_state("the state of the run", last.restart_data);
  inputs.steps_done = inputs.resume.saved.step;
  inputs.batches->seek(inputs.resume.saved.data_cursor);
  inputs.evaluations = inputs.resume.saved.evaluations;
  forget_best_without_checkpoint(settings, inputs);
  inputs.notes.push_back(cat("goes on after step ", inputs.steps_done, " of ", settings.max_steps));
}

// Returns true if nothing is left to do for a job that is queued repeatedly with --resume auto.
bool has_ended(const TrainSettings& settings) {
  const RunDirectory output(settings.output);
  if (!settings.resumes_newest_whole || !output.has_final_model()) return false;
  const std::vector<std::int64_t> steps = output.checkpoints();
  // With --epochs, the number of steps is not known yet. Such a run that has written its model is
  // taken as complete.
  if (steps.empty() || settings.epochs > 0 || steps.back() >= settings.max_steps) return true;
  if (settings.early_stop == 0) return false;
  return read_checkpoint(output.checkpoint(steps.back())).evaluations.num_since_best >= settings.early_stop;
}

// Opens the model and the data, and fills in the settings that depend on them. Returns true if the
// model can be used.
bool find_model_and_data(TrainSettings& settings, RunInputs& inputs, Problems& problems) {
  inspect_model(settings, inputs, problems);
  const bool has_model = problems.empty();
  fill_in_by_model(settings, inputs.model.num_parameters, inputs.model.max_sequence_length);
  if (has_model) {
    check_length(settings, inputs.model, problems);
    check_experts(settings, inputs.model, problems);
  }
  problems.collect([&] { open_data(settings, inputs, has_model ? inputs.model.vocabulary : kAnyVocabulary); });
  if (inputs.sequences) fill_in_by_data(settings, inputs.sequences->size());
  check_steps(settings, problems);
  if (has_model) inputs.checkpoint_bytes = checkpoint_bytes(settings, inputs.model.num_trained);
  return has_model;
}

// Reads every byte of the model. Only models that `train` has written have such a list.
void verify_model(const TrainSettings& settings) {
  ChecksumList::verify_if_listed(settings.model, ChecksumKind::kSha256, {kConfigFile});
}

}  // namespace

RunInputs find_run_inputs(TrainSettings& settings, int threads_per_worker, std::vector<FinishedStep> finished) {
  RunInputs inputs;
  inputs.threads_per_worker = threads_per_worker;
  // A program that had not loaded its checkpoint yet begins as it did.
  const bool has_loaded = !settings.is_resumed() || (!finished.empty() && !finished.back().restart_data.empty());
  if (has_loaded) inputs.finished = std::move(finished);
  const bool is_restarted = !inputs.finished.empty();
  inputs.has_ended = !is_restarted && has_ended(settings);
  if (inputs.has_ended) return inputs;
  Problems problems;
  const bool has_model = find_model_and_data(settings, inputs, problems);
  if (is_restarted) {
    problems.throw_if_any();
    continue_after_finished(settings, inputs);
    return inputs;
  }
  RunDirectory(settings.output).check(settings.is_resumed(), problems);
  if (settings.is_resumed()) problems.collect([&] { find_checkpoint(settings, inputs, problems); });
  if (has_model) {
    check_disk(settings, inputs.model, num_checkpoints_to_come(settings, inputs.steps_done), inputs.checkpoint_bytes,
               problems);
  }
  problems.throw_if_any();
  verify_model(settings);  // last, because it takes long
  return inputs;
}

RunInputs find_run_inputs_of_node(TrainSettings& settings, int threads_per_worker,
                                  const std::optional<fs::path>& checkpoint) {
  RunInputs inputs;
  inputs.threads_per_worker = threads_per_worker;
  settings.resume = checkpoint;
  settings.resumes_newest_whole = false;
  Problems problems;
  (void)find_model_and_data(settings, inputs, problems);
  if (checkpoint) {
    problems.collect([&] {
      inputs.resume = {.checkpoint = checkpoint, .saved = read_checkpoint(*checkpoint), .damaged = {}};
      take_checkpoint(settings, inputs, problems);
    });
  }
  problems.throw_if_any();
  verify_model(settings);
  return inputs;
}

std::filesystem::path find_exported_checkpoint(const TrainSettings& settings) {
  RunInputs inputs;
  Problems problems;
  inspect_model(settings, inputs, problems);
  const bool has_model = problems.empty();
  fs::path checkpoint;
  problems.collect([&] {
    checkpoint = checkpoint_to_resume(*settings.exported);
    const SavedRun saved = read_checkpoint(checkpoint);
    if (has_model) check_model(checkpoint, saved, settings.model, inputs.identity, problems);
  });
  RunDirectory(settings.output).check_export(problems);
  if (has_model) check_disk(settings, inputs.model, 0, 0, problems);
  problems.throw_if_any();
  return checkpoint;
}

}  // namespace rp
