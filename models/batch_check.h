// models/batch_check.h
// Checks the tokens, labels and document lengths of a call to a causal language model before
// anything is computed.
//
// A layer on a GPU cannot refuse a token, because looking at it means waiting for the GPU. There a
// wrong token, label or length only makes the loss NaN. So each call is checked in the coordinator,
// which has its tensors in host memory: one pass over 16 bytes per token, which are copied to the
// store in any case. Every device reports the same message, before anything is computed.
#pragma once

#include <cstdint>

#include "roundpipe/model.h"

namespace rp::models {

// Checks the inputs {ids [b, t], documents [b, k] or nothing}, and the arguments of
// causal_lm_loss(): {labels [b, t], divisor}. Arguments of other losses are not checked. Throws
// rp::Error (kUserError), naming value and place, for an id or a label outside the vocabulary, for
// lengths of documents that do not fit their sequences, for a divisor that is not positive, and for
// a causal_lm_loss() whose logit cap differs from that of the model (`logit_softcap`; 0: none).
// Tensors of other dtypes are left to the layers to check.
void check_batch(std::int64_t vocabulary, double logit_softcap, const CallContents& call);

}  // namespace rp::models
