// models/batch_check.h
// What a causal language model is given, looked at before it is computed with.
//
// A layer on a GPU cannot refuse a token: to look at it means to wait for the GPU. There a wrong token, label or length
// only makes the loss NaN. So each call is looked at in the coordinator, which has its tensors in host memory anyway:
// one pass over 16 bytes a token, which are copied to the store anyway. Every device gives the same message, before
// anything is computed.
#pragma once

#include <cstdint>

#include "roundpipe/model.h"

namespace rp::models {

// Inputs {ids [b, t], documents [b, k] or nothing}; arguments of causal_lm_loss(): {labels [b, t], divisor}, of other
// losses not looked at. Throws rp::Error (kUserError), naming value and place, for an id or a label outside the
// vocabulary, for lengths of documents that do not fit their sequences, for a divisor that is not positive, and for a
// causal_lm_loss() that caps logits otherwise than the model (`logit_softcap`, 0: not at all). Tensors of other dtypes
// are left to the layers.
void check_batch(std::int64_t vocabulary, double logit_softcap, const CallContents& call);

}  // namespace rp::models
