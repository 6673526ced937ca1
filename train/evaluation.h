// train/evaluation.h
// Computes the loss on documents that are not trained on.
#pragma once

#include "roundpipe/models.h"
#include "roundpipe/pipeline.h"
#include "train/data/sequences.h"
#include "train/settings/settings.h"

namespace rp {

// Returns the mean cross entropy over the trained tokens of all `sequences`, with the newest
// weights. The rounds have the same number of sequences and microbatches as training rounds; the
// number of workers does not change a bit of the result. Throws Interrupted once a signal has
// requested an end.
[[nodiscard]] double evaluate(Pipeline& pipeline, const Sequences& sequences, const TrainSettings& settings,
                              const models::CausalLmLossSettings& loss);

}  // namespace rp
