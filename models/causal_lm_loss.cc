#include "models/causal_lm_loss.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "common/text.h"
#include "models/gpu_causal_lm_loss.h"
#include "models/kernel_call.h"
#include "models/linear.h"
#include "roundpipe/error.h"

namespace rp::models {

namespace {

constexpr const char* kLossName = "causal_lm_loss";

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The number of trained tokens is another one in every microbatch, and oneDNN makes and keeps code for each shape of a
// product that it meets (half a megabyte each): rows are filled up with zeros to a multiple of this.
constexpr std::int64_t kRowGrain = 64;

// What one call computes. Rows are trained tokens, r of them; hidden states may have further rows, of zeros.
struct LossAndGradients {
  at::Tensor loss;            // fp32 scalar: the sum of the rows' cross entropies, divided
  at::Tensor grad_hidden_rh;  // undefined where no gradient is wanted
  at::Tensor grad_weight_vh;  // likewise, where the weight is frozen, and where there are no rows; fp32 if there are several chunks
};

LossAndGradients cross_entropy(const at::Tensor& hidden_rh, const at::Tensor& weight_vh, const at::Tensor& labels_r,
                               float divisor, std::int64_t step, bool with_gradient, bool with_weight_gradient) {
  const std::int64_t trained = labels_r.size(0), rows = hidden_rh.size(0), vocabulary = weight_vh.size(0);
  const at::Tensor losses_r = at::empty({trained}, hidden_rh.options().dtype(at::kFloat));
  LossAndGradients result;
  if (with_gradient) result.grad_hidden_rh = at::empty_like(hidden_rh);
  for (std::int64_t begin = 0; begin < trained; begin += step) {
    const std::int64_t count = std::min(step, rows - begin);
    const at::Tensor hidden_ch = hidden_rh.narrow(0, begin, count);
    const at::Tensor logits_cv = at::mm(hidden_ch, weight_vh.t());
    const CrossEntropyRows call{logits_cv.mutable_data_ptr(), labels_r.const_data_ptr<std::int64_t>() + begin,
                                losses_r.mutable_data_ptr<float>() + begin, vocabulary, 1.0F / divisor, with_gradient};
    const DType dtype = kernel_dtype(logits_cv);
    const std::int64_t count_trained = std::min(count, trained - begin);
    share_rows(count_trained, vocabulary, [&](std::int64_t first, std::int64_t last) {
      kernels().cross_entropy(dtype, call, first, last);
    });
    if (!with_gradient) continue;
    logits_cv.narrow(0, count_trained, count - count_trained).zero_();
    at::Tensor grad_ch = result.grad_hidden_rh.narrow(0, begin, count);
    at::mm_out(grad_ch, logits_cv, weight_vh);
    if (!with_weight_gradient) continue;
    const at::Tensor grad_vh = at::mm(logits_cv.t(), hidden_ch);
    if (begin == 0) {
      result.grad_weight_vh = trained <= step ? grad_vh : grad_vh.to(at::kFloat);
    } else {
      result.grad_weight_vh.add_(grad_vh);
    }
  }
  // fp64, row after row: the same for any chunks and threads.
  double total = 0;
  const float* losses = losses_r.const_data_ptr<float>();
  for (std::int64_t i = 0; i < trained; ++i) total += losses[i];
  result.loss = at::scalar_tensor(total / divisor, losses_r.options());
  return result;
}

// The rows of the trained tokens, and zeros up to a multiple of kRowGrain.
at::Tensor gather_rows(const at::Tensor& hidden_nh, const at::Tensor& trained_r) {
  const std::int64_t trained = trained_r.size(0), rows = (trained + kRowGrain - 1) / kRowGrain * kRowGrain;
  const at::Tensor hidden_rh = at::empty({rows, hidden_nh.size(1)}, hidden_nh.options());
  at::Tensor gathered = hidden_rh.narrow(0, 0, trained);
  at::index_select_out(gathered, hidden_nh, 0, trained_r);
  hidden_rh.narrow(0, trained, rows - trained).zero_();
  return hidden_rh;
}

struct CausalLmLoss : torch::autograd::Function<CausalLmLoss> {
  // hidden_nh: all n tokens. trained_r: the places of the trained ones, in order. The weight may be of another dtype: it is
  // computed with in that of the hidden states.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden_nh, const at::Tensor& weight_any,
                            const at::Tensor& trained_r, const at::Tensor& labels_r, double divisor,
                            std::int64_t chunk_tokens, bool with_gradient) {
    const at::Tensor weight_vh = weight_any.to(hidden_nh.scalar_type());
    const bool all = trained_r.size(0) == hidden_nh.size(0);
    const at::Tensor hidden_rh = all ? hidden_nh.contiguous() : gather_rows(hidden_nh, trained_r);
    const LossAndGradients result =
        cross_entropy(hidden_rh, weight_vh, labels_r, static_cast<float>(divisor), chunk_tokens, with_gradient, weight_any.requires_grad());
    if (with_gradient) {
      at::Tensor grad_nh = result.grad_hidden_rh;
      if (!all) grad_nh = at::zeros_like(hidden_nh).index_copy_(0, trained_r, result.grad_hidden_rh.narrow(0, 0, trained_r.size(0)));
      context->save_for_backward({grad_nh, result.grad_weight_vh, weight_any});
    }
    return result.loss;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    variable_list gradients = context->get_saved_variables();
    const at::Tensor weight_any = gradients.back();
    gradients.pop_back();
    // The loss is usually the end of the graph: then the factor is 1, and a pass over the gradients is saved.
    const auto factor = grads[0].item<double>();
    for (at::Tensor& gradient : gradients) {
      if (factor != 1.0 && gradient.defined()) gradient = gradient * factor;
    }
    at::Tensor& grad_weight = gradients[1];
    if (context->needs_input_grad(1) && grad_weight.defined() && takes_gradient_in_place(weight_any)) {
      add_to_floats(weight_any.grad(), grad_weight);  // autograd would widen it first
      grad_weight.reset();
    }
    gradients.resize(7);  // nothing for the other arguments
    return gradients;
  }
};

void check_labels(const at::Tensor& labels_r, std::int64_t vocabulary) {
  if (labels_r.numel() == 0) return;
  const auto lowest = labels_r.min().item<std::int64_t>(), highest = labels_r.max().item<std::int64_t>();
  if (lowest >= 0 && highest < vocabulary) return;
  throw Error(ExitCode::kUserError, cat("label ", lowest < 0 ? lowest : highest, " is neither ", kIgnoredLabel,
                                        " (not trained) nor a token of the model's vocabulary of ", vocabulary,
                                        ": prepare the data with this model's tokenizer"));
}

}  // namespace

at::Tensor causal_lm_loss_of(const Tensors& outputs, const Tensors& arguments, std::int64_t chunk_tokens) {
  const at::Tensor &hidden_bth = outputs.at(0), &weight_vh = outputs.at(1);
  const at::Tensor labels_n = arguments.at(0).reshape({-1});
  TORCH_CHECK(hidden_bth.dim() == 3 && labels_n.numel() == hidden_bth.size(0) * hidden_bth.size(1),
              "causal_lm_loss: labels ", arguments.at(0).sizes(), " do not fit hidden states ", hidden_bth.sizes());
  if (runs_on_gpu(hidden_bth)) {
    return gpu_causal_lm_loss(hidden_bth.reshape({-1, hidden_bth.size(2)}), weight_vh, labels_n, arguments.at(1),
                              chunk_tokens == 0 ? kGpuChunkTokens : chunk_tokens);
  }
  const auto divisor = arguments.at(1).item<double>();
  if (!(divisor > 0)) {
    throw Error(ExitCode::kUserError, cat("causal_lm_loss: the divisor is ", divisor,
                                          "; give the number of trained tokens of the step, at least 1"));
  }
  const at::Tensor trained_r = labels_n.ne(kIgnoredLabel).nonzero().squeeze(1);
  const at::Tensor labels_r = labels_n.index_select(0, trained_r);
  check_labels(labels_r, weight_vh.size(0));
  const bool with_gradient = at::GradMode::is_enabled() && (hidden_bth.requires_grad() || weight_vh.requires_grad());
  const at::Tensor hidden_nh = hidden_bth.reshape({-1, hidden_bth.size(2)});
  // fp16 in fp32: so the gradients are rounded behind their multiplication by the loss scale.
  const bool is_fp16 = hidden_nh.scalar_type() == at::kHalf;
  return CausalLmLoss::apply(is_fp16 ? hidden_nh.to(at::kFloat) : hidden_nh, weight_vh, trained_r, labels_r, divisor,
                             chunk_tokens == 0 ? kChunkTokens : chunk_tokens, with_gradient);
}

CallContents causal_lm_example(std::int64_t sequences, std::int64_t tokens) {
  const at::Tensor ids = at::zeros({sequences, tokens}, at::kLong);
  return {.inputs = {ids}, .loss = kLossName, .arguments = {ids, at::scalar_tensor(static_cast<double>(ids.numel()), at::kFloat)}};
}

Loss causal_lm_loss() {
  return loss(kLossName, [](const Tensors& outputs, const Tensors& arguments) {
    return causal_lm_loss_of(outputs, arguments);
  });
}

}  // namespace rp::models
