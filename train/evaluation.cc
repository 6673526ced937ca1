#include "train/evaluation.h"

#include <ATen/ATen.h>

#include <vector>

#include "train/batch_tensors.h"

namespace rp {

double evaluate(Pipeline& pipeline, const Sequences& sequences, const TrainSettings& settings,
                const models::CausalLmLossSettings& loss) {
  if (settings.asynchronous) pipeline.synchronize();  // otherwise the weights would be one step older
  const Packs order = sequences.in_order();
  // The divisor counts the tokens of all rounds, so that the losses of the rounds add up to the
  // mean.
  const at::Tensor divisor = at::scalar_tensor(static_cast<double>(sequences.counts().trained), at::kFloat);
  const std::int64_t size = settings.sequences_of_round();
  std::vector<RoundResult> rounds;
  for (std::uint64_t first = 0; first < order.size(); first += static_cast<std::uint64_t>(size)) {
    TokenBatch batch = sequences.batch(order, first, static_cast<std::uint64_t>(size));
    const BatchTensors tensors = tensors_of(batch, sequences.length(), 0, size);
    rounds.push_back(pipeline.evaluate(tensors.inputs, {tensors.labels, divisor}));
  }
  double sum = 0;
  for (const RoundResult& round : rounds) sum += models::causal_lm_losses(round.losses(), loss).cross_entropy;
  return sum;
}

}  // namespace rp
