// train/evaluation.h
// The loss on documents that are not trained on.
#pragma once

#include "roundpipe/models.h"
#include "roundpipe/pipeline.h"
#include "train/data/sequences.h"
#include "train/settings/settings.h"

namespace rp {

// The mean cross entropy over the trained tokens of all `sequences`, with the newest weights. They run in rounds of the
// size and microbatches of those that train; the number of workers changes no bit. Throws Interrupted once a signal
// asked for an end.
[[nodiscard]] double evaluate(Pipeline& pipeline, const Sequences& sequences, const TrainSettings& settings,
                              const models::CausalLmLossSettings& loss);

}  // namespace rp
