#include "train/run_inputs.h"

#include <algorithm>
#include <cstdint>
#include <system_error>

#include "common/text.h"
#include "roundpipe/pipeline.h"
#include "train/problems.h"
#include "train/run_directory.h"

namespace rp {
namespace {

namespace fs = std::filesystem;

// The vocabulary that lets every token file pass while the model's is not known.
constexpr std::int64_t kAnyVocabulary = std::int64_t{1} << 40;

// Masters and moments; asynchronous runs keep the weights of one step before, too.
std::uint64_t checkpoint_bytes(const TrainSettings& settings, std::int64_t num_trained) {
  return static_cast<std::uint64_t>(num_trained) * (12 + (settings.asynchronous ? dtype_bytes(settings.dtype) : 0));
}

void check_length(const TrainSettings& settings, const models::ModelInfo& model, Problems& problems) {
  if (model.max_sequence_length > 0 && settings.sequence_length > model.max_sequence_length) {
    problems.add(ExitCode::kUsage, cat("--sequence-length ", settings.sequence_length, " is beyond the ",
                                       model.max_sequence_length, " positions of the model in ", settings.model.string(),
                                       "; lower it"));
  }
}

void check_experts(const TrainSettings& settings, const models::ModelInfo& model, Problems& problems) {
  if (!settings.router_aux_loss || model.num_experts > 0) return;
  problems.add(ExitCode::kUsage, cat("--router-aux-loss ", *settings.router_aux_loss, " balances experts, and the model in ", settings.model.string(),
                                     " (", model.architecture, ") has none; leave it out"));
}

void check_disk(const TrainSettings& settings, const models::ModelInfo& model, std::int64_t steps_done, Problems& problems) {
  fs::path place = fs::absolute(settings.output);
  std::error_code failure;
  while (!fs::exists(place, failure) && place.has_relative_path()) place = place.parent_path();
  const fs::space_info space = fs::space(place, failure);
  if (failure || space.capacity == 0) return;
  // One at least, if there are steps: a signal ends the run with a checkpoint.
  const std::int64_t num_least = settings.max_steps > 0 ? 1 : 0;
  const std::int64_t num_checkpoints = std::max(
      num_least, settings.save_every > 0 ? (settings.max_steps / settings.save_every - steps_done / settings.save_every) : 0);
  const bool is_adapter = settings.parts.lora.rank > 0;
  const std::uint64_t final_bytes = (is_adapter ? 4 * static_cast<std::uint64_t>(model.num_trained) : 0) +
                                    (!is_adapter || settings.saves_merged ? model.weight_bytes : 0);
  const std::uint64_t each = checkpoint_bytes(settings, model.num_trained);
  // In doubles: steps times parameters may be any number.
  const double need = static_cast<double>(final_bytes) + static_cast<double>(num_checkpoints) * static_cast<double>(each);
  if (need <= static_cast<double>(space.available)) return;
  std::string what = bytes_text(final_bytes) + " for the trained model";
  if (num_checkpoints == 1) what += cat(" and ", bytes_text(each), " for a checkpoint");
  if (num_checkpoints > 1) what += cat(" and ", num_checkpoints, " times ", bytes_text(each), " for checkpoints");
  problems.add(ExitCode::kNoResource,
               cat("--output ", settings.output.string(), " needs ", what, ", but ", bytes_text(space.available),
                   " are free there; make room, name another place", settings.save_every > 0 ? " or raise --save-every" : ""));
}

// Where to resume, and whether that run can go on as this one is set up.
void find_checkpoint(const TrainSettings& settings, RunInputs& inputs, Problems& problems) {
  const fs::path checkpoint = checkpoint_to_resume(*settings.resume);
  const SavedRun saved = parse_run_state(checkpoint, Pipeline::saved_user_data(checkpoint));
  if (inputs.batches == nullptr) return;  // what is wrong with the data is told
  inputs.notes = check_resume(checkpoint, saved, settings, inputs.threads_per_worker, inputs.identity(), problems);
  const std::vector<std::int64_t> present = RunDirectory(settings.output).checkpoints();
  if (!present.empty() && present.back() > saved.step) {
    problems.add(ExitCode::kUsage, cat("--output ", settings.output.string(), " has a checkpoint of step ", present.back(),
                                       ", but --resume ", checkpoint.string(), " is of step ", saved.step,
                                       "; remove the later ones or name another --output"));
  }
  inputs.checkpoint = checkpoint;
  inputs.steps_done = saved.step;
  inputs.batches->seek(saved.data_cursor);
}

}  // namespace

RunInputs find_run_inputs(const TrainSettings& settings, int threads_per_worker) {
  RunInputs inputs;
  inputs.threads_per_worker = threads_per_worker;
  Problems problems;
  problems.collect([&] { inputs.model = models::inspect(settings.model, settings.parts); });
  const bool has_model = problems.empty();
  if (has_model) {
    check_length(settings, inputs.model, problems);
    check_experts(settings, inputs.model, problems);
  }
  problems.collect([&] {
    inputs.data = std::make_unique<TokenFile>(
        TokenFile::open(settings.data, has_model ? inputs.model.vocabulary : kAnyVocabulary));
    inputs.batches = std::make_unique<BatchSource>(*inputs.data, settings.sequence_length, settings.batch_size, settings.seed);
  });
  RunDirectory(settings.output).check(settings.resume.has_value(), problems);
  if (settings.resume) problems.collect([&] { find_checkpoint(settings, inputs, problems); });
  if (has_model) check_disk(settings, inputs.model, inputs.steps_done, problems);
  problems.throw_if_any();
  return inputs;
}

}  // namespace rp
