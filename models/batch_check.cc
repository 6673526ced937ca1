#include "models/batch_check.h"

#include <algorithm>

#include "common/bad_input.h"
#include "common/text.h"
#include "kernels/gpu_kernels.h"
#include "models/layers/causal_lm_loss.h"
#include "models/layers/documents.h"
#include "roundpipe/error.h"

namespace rp::models {

namespace {

// Returns a text such as "of sequence 3, position 17,".
std::string place_of(const at::Tensor& x_bt, std::int64_t element) {
  if (x_bt.dim() != 2) return cat("number ", element);
  return cat("of sequence ", element / x_bt.size(1), ", position ", element % x_bt.size(1), ",");
}

// Returns the index of the first element that is neither in the vocabulary nor equal to `other`, or
// -1.
std::int64_t find_outside(const at::Tensor& x_any, std::int64_t vocabulary, std::int64_t other) {
  const at::Tensor x = x_any.contiguous();
  const std::int64_t* values = x.const_data_ptr<std::int64_t>();
  const auto is_outside = [vocabulary, other](std::int64_t value) {
    return static_cast<std::uint64_t>(value) >= static_cast<std::uint64_t>(vocabulary) && value != other;
  };
  const std::int64_t* found = std::find_if(values, values + x.numel(), is_outside);
  return found == values + x.numel() ? -1 : found - values;
}

bool holds_tokens(const Tensors& tensors) {
  return !tensors.empty() && tensors[0].defined() && tensors[0].scalar_type() == at::kLong;
}

void check_inputs(std::int64_t vocabulary, const Tensors& inputs) {
  if (!holds_tokens(inputs)) return;
  const at::Tensor& ids = inputs[0];
  const std::int64_t place = find_outside(ids, vocabulary, 0);
  if (place >= 0) {
    throw Error(ExitCode::kUserError, cat("token id ", ids.flatten()[place].item<std::int64_t>(), " ",
                                          place_of(ids, place), " is outside the model's vocabulary of ", vocabulary,
                                          " tokens: prepare the data with this model's tokenizer"));
  }
  if (inputs.size() < 2 || !inputs[1].defined() || ids.dim() != 2) return;
  if (inputs[1].dim() != 2 || inputs[1].scalar_type() != at::kLong || inputs[1].size(0) != ids.size(0)) {
    throw Error(ExitCode::kUserError,
                cat("the model's second input is ", inputs[1].toString(), " of ", inputs[1].dim(),
                    " dimensions; give lengths of documents, int64 [", ids.size(0), " sequences, documents]"));
  }
  (void)documents_of_rows(inputs[1], ids.size(1));
}

void check_arguments(std::int64_t vocabulary, const Tensors& arguments) {
  if (!holds_tokens(arguments)) return;
  const at::Tensor& labels = arguments[0];
  const std::int64_t place = find_outside(labels, vocabulary, kIgnoredLabel);
  if (place >= 0) {
    throw Error(ExitCode::kUserError,
                cat("label ", labels.flatten()[place].item<std::int64_t>(), " ", place_of(labels, place),
                    " is neither ", kIgnoredLabel, " (not trained) nor a token of the model's vocabulary of ",
                    vocabulary, ": prepare the data with this model's tokenizer"));
  }
  if (arguments.size() < 2 || !arguments[1].defined() || arguments[1].numel() != 1) return;
  const double divisor = arguments[1].item<double>();
  if (divisor > 0) return;
  throw Error(ExitCode::kUserError, cat("causal_lm_loss: the divisor is ", divisor,
                                        "; give the number of trained tokens of the step, at least 1"));
}

}  // namespace

void check_batch(std::int64_t vocabulary, double logit_softcap, const CallContents& call) {
  check_inputs(vocabulary, call.inputs);
  if (!call.loss.starts_with(kCausalLmLoss)) return;
  const bool caps = call.loss.find(logit_cap_text(logit_softcap)) != std::string::npos;
  if (logit_softcap != 0 ? !caps : call.loss.find(kLogitCap) != std::string::npos) {
    throw Error(
        ExitCode::kUserError,
        cat("the model ", logit_softcap == 0 ? "does not cap its logits" : cat("caps its logits at ", logit_softcap),
            ", and the loss ", quoted_name(call.loss),
            " does otherwise: make it by causal_lm_loss() of causal_lm_loss_settings() of the model's folder"));
  }
  check_arguments(vocabulary, call.arguments);
}

}  // namespace rp::models
