// reference_train: takes the options of `train` and computes the same losses (on stdout, as
// metrics.jsonl has them) and the same OUTPUT/final by the reference loop, without launcher,
// workers, coordinator or store.
#include <ATen/Parallel.h>

#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "models/checkpoint.h"
#include "models/layers/scalar_type.h"
#include "roundpipe/models.h"
#include "tests/reference/reference_loop.h"
#include "train/batch_tensors.h"
#include "train/data/batches.h"
#include "train/data/token_file.h"
#include "train/settings/settings.h"

namespace rp {
namespace {

// Returns the rounds of all steps, in order.
std::vector<reference::Round> make_rounds(const TrainSettings& settings) {
  const TokenFile file = TokenFile::open(settings.data, models::inspect(settings.model).vocabulary);
  const Sequences sequences(file, split_documents(file.num_documents(), settings.eval_share, settings.seed).trained,
                            settings.sequence_length, settings.is_packed);
  BatchSource batches(sequences, settings.batch_size, settings.seed);
  std::vector<reference::Round> rounds;
  for (std::int64_t step = 0; step < settings.max_steps; ++step) {
    TokenBatch batch = batches.next();
    const at::Tensor divisor = at::scalar_tensor(static_cast<double>(batch.num_trained), at::kFloat);
    for (std::int64_t round = 0; round < settings.rounds_per_step; ++round) {
      const std::int64_t size = settings.sequences_of_round();
      BatchTensors tensors = tensors_of(batch, settings.sequence_length, round * size, (round + 1) * size);
      for (at::Tensor& input : tensors.inputs) input = input.clone();
      rounds.push_back({tensors.inputs, {tensors.labels.clone(), divisor}});
    }
  }
  return rounds;
}

void print_losses(const std::vector<double>& losses, std::int64_t rounds_per_step) {
  double step_loss = 0;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    step_loss += losses[i];
    if ((i + 1) % static_cast<std::size_t>(rounds_per_step) != 0) continue;
    std::printf("%.17g\n", step_loss);
    step_loss = 0;
  }
}

void save(const std::vector<reference::Parameter>& parameters, const TrainSettings& settings) {
  std::map<std::string, at::Tensor> working;
  for (const reference::Parameter& parameter : parameters) working[parameter.name] = parameter.working;
  models::export_checkpoint(
      settings.model, settings.output / "final",
      [&](std::int64_t layer, const std::string& name) { return working.at(std::to_string(layer) + "." + name); },
      settings.parts);
}

int run(const TrainSettings& settings) {
  at::set_num_threads(1);
  reference::Settings loop{.num_microbatches = static_cast<int>(settings.num_microbatches),
                           .rounds_per_step = static_cast<int>(settings.rounds_per_step),
                           .asynchronous = settings.asynchronous,
                           .max_grad_norm = settings.max_grad_norm,
                           .router_bias_update_rate = settings.router_bias_update_rate,
                           .rule = {}};
  if (settings.schedule != LearningRateSchedule::kConstant || settings.warmup_steps != 0) {
    throw Error(ExitCode::kUsage,
                "the reference has a constant learning rate; give --lr-schedule constant --warmup-steps 0");
  }
  loop.rule.learning_rate = settings.learning_rate;
  loop.rule.weight_decay = settings.weight_decay;
  const at::ScalarType dtype = scalar_type_of(settings.dtype);
  const reference::Result result = reference::train(models::load(settings.model, dtype, settings.parts),
                                                    models::causal_lm_loss(), make_rounds(settings), loop);
  print_losses(result.losses, settings.rounds_per_step);
  save(result.parameters, settings);
  return 0;
}

}  // namespace
}  // namespace rp

int main(int argc, char** argv) {
  try {
    return rp::run(rp::parse_train_command({argv + 1, argv + argc}).settings);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "reference_train: %s\n", error.what());
    return 1;
  }
}
