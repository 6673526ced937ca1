#include "train/accepted_step.h"

#include <ATen/ATen.h>

#include <utility>

#include "train/batch_tensors.h"

namespace rp {

AcceptedStep accept_step(Pipeline& pipeline, const TrainSettings& settings, std::int64_t step, TokenBatch& batch,
                         const Update& update, std::string restart_data) {
  AcceptedStep accepted{.step = step, .tokens = batch.num_tokens, .trained_tokens = batch.num_trained};
  // The divisor counts the trained tokens of the whole step, so that the loss is the mean over them
  // however the step is split.
  const at::Tensor divisor = at::scalar_tensor(static_cast<double>(batch.num_trained), at::kFloat);
  const std::int64_t size = settings.sequences_of_round();
  for (std::int64_t round = 0; round < settings.rounds_per_step; ++round) {
    const BatchTensors tensors = tensors_of(batch, settings.sequence_length, round * size, (round + 1) * size);
    accepted.rounds.push_back(pipeline.forward_backward(tensors.inputs, {tensors.labels, divisor}));
  }
  accepted.result = pipeline.step(update, {.asynchronous = settings.asynchronous,
                                           .max_grad_norm = settings.max_grad_norm,
                                           .router_bias_update_rate = settings.router_bias_update_rate,
                                           .restart_data = std::move(restart_data)});
  return accepted;
}

}  // namespace rp
