#include "train/run_model.h"

#include <ATen/ATen.h>

#include <utility>

#include "models/layers/scalar_type.h"

namespace rp {

namespace {

// Packed sequences use other kernels, so their example includes the lengths of documents.
CallContents example_of(const TrainSettings& settings, const models::CausalLmLossSettings& loss) {
  CallContents example = models::causal_lm_example(settings.sequences_of_microbatch(), settings.sequence_length, loss);
  if (settings.is_packed) example.inputs.push_back(at::zeros({settings.sequences_of_microbatch(), 1}, at::kLong));
  return example;
}

}  // namespace

PipelineOptions pipeline_options(const TrainSettings& settings) {
  PipelineOptions options{.num_microbatches = static_cast<int>(settings.num_microbatches),
                          .recompute_grain = settings.recompute_grain,
                          .rounds_per_step = static_cast<int>(settings.rounds_per_step),
                          .asynchronous = settings.asynchronous,
                          .seed = settings.seed};
  if (settings.dtype == DType::kFloat16) options.loss_scaling = LossScaling{};
  return options;
}

models::CausalLmLossSettings loss_settings(const TrainSettings& settings) {
  models::CausalLmLossSettings loss = models::causal_lm_loss_settings(settings.model.string());
  loss.z_loss = settings.z_loss;
  loss.balance = settings.router_aux_loss.value_or(loss.balance);
  return loss;
}

Model load_model(const TrainSettings& settings, const models::CausalLmLossSettings& loss) {
  Model model = models::load(settings.model, scalar_type_of(settings.dtype), settings.parts);
  model.set_example(example_of(settings, loss));
  return model;
}

}  // namespace rp
