#include "models/layers/causal_lm_loss.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

#include "common/text.h"
#include "models/layers/expert_balance.h"
#include "models/layers/gpu_causal_lm_loss.h"
#include "models/layers/kernel_call.h"
#include "models/layers/linear.h"
#include "models/layers/logit_cap.h"
#include "roundpipe/error.h"

namespace rp::models {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The number of trained tokens differs between microbatches, and oneDNN generates and keeps code
// for each shape of a product that it meets (half a megabyte each). So rows of zeros are added up
// to a multiple of this number.
constexpr std::int64_t kRowGrain = 64;

// The results of one call. Rows are the r trained tokens. The hidden states may have further rows,
// which are zeros.
struct LossAndGradients {
  at::Tensor loss;            // fp32 scalar: the sum of the cross entropies of the rows, divided by the divisor
  at::Tensor z_loss;          // fp32 scalar, divided by the same divisor; undefined without a z-loss
  at::Tensor grad_hidden_rh;  // undefined if no gradient is needed
  // Undefined if no gradient is needed, if the weight is frozen, and if there are no rows. fp32 if
  // there are several chunks.
  at::Tensor grad_weight_vh;
};

struct LossCall {
  CausalLmLossSettings settings;
  double divisor = 1;
  std::int64_t chunk_tokens = kChunkTokens;
  bool with_gradient = false;
  bool with_weight_gradient = false;
};

// Adds in fp64, row after row, so that the sum does not depend on chunks and threads.
at::Tensor divided_sum(const at::Tensor& numbers_r, std::int64_t rows, float divisor, double (*term)(double)) {
  double total = 0;
  const float* numbers = numbers_r.const_data_ptr<float>();
  for (std::int64_t i = 0; i < rows; ++i) total += term(numbers[i]);
  return at::scalar_tensor(total / divisor, numbers_r.options());
}

LossAndGradients cross_entropy(const at::Tensor& hidden_rh, const at::Tensor& weight_vh, const at::Tensor& labels_r,
                               const LossCall& loss) {
  const std::int64_t step = loss.chunk_tokens;
  const auto divisor = static_cast<float>(loss.divisor);
  const auto z_loss = static_cast<float>(loss.settings.z_loss);
  const std::int64_t trained = labels_r.size(0), rows = hidden_rh.size(0), vocabulary = weight_vh.size(0);
  const at::Tensor losses_r = at::empty({trained}, hidden_rh.options().dtype(at::kFloat));
  const at::Tensor log_sums_r = z_loss > 0 ? at::empty_like(losses_r) : at::Tensor();
  LogitCap cap(loss.settings.logit_softcap);
  LossAndGradients result;
  if (loss.with_gradient) result.grad_hidden_rh = at::empty_like(hidden_rh);
  for (std::int64_t begin = 0; begin < trained; begin += step) {
    const std::int64_t count = std::min(step, rows - begin);
    const at::Tensor hidden_ch = hidden_rh.narrow(0, begin, count);
    const at::Tensor logits_cv = at::mm(hidden_ch, weight_vh.t());
    cap.apply(logits_cv);
    const CrossEntropyRows call{.logits = logits_cv.mutable_data_ptr(),
                                .labels = labels_r.const_data_ptr<std::int64_t>() + begin,
                                .losses = losses_r.mutable_data_ptr<float>() + begin,
                                .columns = vocabulary,
                                .scale = 1.0F / divisor,
                                .with_gradient = loss.with_gradient,
                                .z_loss = z_loss,
                                .log_sums = z_loss > 0 ? log_sums_r.mutable_data_ptr<float>() + begin : nullptr};
    const DType dtype = kernel_dtype(logits_cv);
    const std::int64_t count_trained = std::min(count, trained - begin);
    share_rows(count_trained, vocabulary,
               [&](std::int64_t first, std::int64_t last) { layer_kernels().cross_entropy(dtype, call, first, last); });
    if (!loss.with_gradient) continue;
    logits_cv.narrow(0, count_trained, count - count_trained).zero_();
    cap.apply_gradient(logits_cv);
    at::Tensor grad_ch = result.grad_hidden_rh.narrow(0, begin, count);
    at::mm_out(grad_ch, logits_cv, weight_vh);
    if (!loss.with_weight_gradient) continue;
    const at::Tensor grad_vh = at::mm(logits_cv.t(), hidden_ch);
    if (begin == 0) {
      result.grad_weight_vh = trained <= step ? grad_vh : grad_vh.to(at::kFloat);
    } else {
      result.grad_weight_vh.add_(grad_vh);
    }
  }
  result.loss = divided_sum(losses_r, trained, divisor, [](double x) { return x; });
  if (z_loss > 0)
    result.z_loss =
        divided_sum(log_sums_r, trained, divisor, [](double x) { return x * x; }).mul_(loss.settings.z_loss);
  return result;
}

// Returns the rows of the trained tokens, followed by rows of zeros up to a multiple of kRowGrain.
at::Tensor gather_rows(const at::Tensor& hidden_nh, const at::Tensor& trained_r) {
  const std::int64_t trained = trained_r.size(0), rows = (trained + kRowGrain - 1) / kRowGrain * kRowGrain;
  const at::Tensor hidden_rh = at::empty({rows, hidden_nh.size(1)}, hidden_nh.options());
  at::Tensor gathered = hidden_rh.narrow(0, 0, trained);
  at::index_select_out(gathered, hidden_nh, 0, trained_r);
  hidden_rh.narrow(0, trained, rows - trained).zero_();
  return hidden_rh;
}

struct CausalLmLoss : torch::autograd::Function<CausalLmLoss> {
  // hidden_nh: all n tokens. trained_r: the positions of the trained ones, in order. The weight may
  // have another dtype than the hidden states; it is then converted to theirs.
  static variable_list forward(AutogradContext* context, const at::Tensor& hidden_nh, const at::Tensor& weight_any,
                               const at::Tensor& trained_r, const at::Tensor& labels_r, const LossCall& loss) {
    const at::Tensor weight_vh = weight_any.to(hidden_nh.scalar_type());
    const bool all = trained_r.size(0) == hidden_nh.size(0);
    const at::Tensor hidden_rh = all ? hidden_nh.contiguous() : gather_rows(hidden_nh, trained_r);
    const LossAndGradients result = cross_entropy(hidden_rh, weight_vh, labels_r, loss);
    if (loss.with_gradient) {
      at::Tensor grad_nh = result.grad_hidden_rh;
      if (!all)
        grad_nh =
            at::zeros_like(hidden_nh).index_copy_(0, trained_r, result.grad_hidden_rh.narrow(0, 0, trained_r.size(0)));
      context->save_for_backward({grad_nh, result.grad_weight_vh, weight_any});
    }
    if (!result.z_loss.defined()) return {result.loss};
    context->mark_non_differentiable({result.z_loss});
    return {result.loss, result.z_loss};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    variable_list gradients = context->get_saved_variables();
    const at::Tensor weight_any = gradients.back();
    gradients.pop_back();
    // The loss is usually the end of the graph. Then the factor is 1, and a pass over the gradients
    // is saved.
    const auto factor = grads[0].item<double>();
    for (at::Tensor& gradient : gradients) {
      if (factor != 1.0 && gradient.defined()) gradient = gradient * factor;
    }
    at::Tensor& grad_weight = gradients[1];
    if (context->needs_input_grad(1) && grad_weight.defined() && takes_gradient_in_place(weight_any)) {
      add_to_floats(weight_any.grad(), grad_weight);  // autograd would widen it first
      grad_weight.reset();
    }
    gradients.resize(5);  // no gradients for the other arguments
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

// Returns the cross entropy, and the z-loss if the settings have one.
Tensors cpu_losses(const Tensors& outputs, const at::Tensor& labels_n, const at::Tensor& trained_r, LossCall loss) {
  const at::Tensor &hidden_bth = outputs.at(0), &weight_vh = outputs.at(1);
  const at::Tensor labels_r = labels_n.index_select(0, trained_r);
  check_labels(labels_r, weight_vh.size(0));
  loss.with_gradient = at::GradMode::is_enabled() && (hidden_bth.requires_grad() || weight_vh.requires_grad());
  loss.with_weight_gradient = weight_vh.requires_grad();
  const at::Tensor hidden_nh = hidden_bth.reshape({-1, hidden_bth.size(2)});
  // fp16 is computed in fp32, so that the gradients are rounded only after they are multiplied by
  // the loss scale.
  const bool is_fp16 = hidden_nh.scalar_type() == at::kHalf;
  return CausalLmLoss::apply(is_fp16 ? hidden_nh.to(at::kFloat) : hidden_nh, weight_vh, trained_r, labels_r, loss);
}

// Adds the numbers of the experts, if the model has experts. The weight of a microbatch is its
// share of the step's trained tokens.
void add_balance(const Tensors& outputs, const at::Tensor& share, double coefficient, Tensors& losses) {
  if (outputs.size() < 4) return;
  const BalanceReport report = report_of({outputs[2], outputs[3]});
  losses.push_back(coefficient > 0 ? report.auxiliary_loss * share * coefficient : at::zeros_like(report.most_loaded));
  losses.push_back(report.most_loaded * share);
  losses.push_back(report.least_loaded * share);
}

}  // namespace

Tensors causal_lm_loss_of(const Tensors& outputs, const Tensors& arguments, const CausalLmLossSettings& settings,
                          std::int64_t chunk_tokens) {
  const at::Tensor &hidden_bth = outputs.at(0), &weight_vh = outputs.at(1);
  const at::Tensor labels_n = arguments.at(0).reshape({-1});
  TORCH_CHECK(hidden_bth.dim() == 3 && labels_n.numel() == hidden_bth.size(0) * hidden_bth.size(1),
              "causal_lm_loss: labels ", arguments.at(0).sizes(), " do not fit hidden states ", hidden_bth.sizes());
  if (runs_on_gpu(hidden_bth)) {
    Tensors losses = gpu_causal_lm_loss(hidden_bth.reshape({-1, hidden_bth.size(2)}), weight_vh, labels_n,
                                        arguments.at(1), settings, chunk_tokens == 0 ? kGpuChunkTokens : chunk_tokens);
    if (outputs.size() >= 4) {
      add_balance(outputs, labels_n.ne(kIgnoredLabel).sum().to(at::kFloat) / arguments.at(1).detach().to(at::kFloat),
                  settings.balance, losses);
    }
    return losses;
  }
  const auto divisor = arguments.at(1).item<double>();
  if (!(divisor > 0)) {
    throw Error(ExitCode::kUserError, cat("causal_lm_loss: the divisor is ", divisor,
                                          "; give the number of trained tokens of the step, at least 1"));
  }
  const at::Tensor trained_r = labels_n.ne(kIgnoredLabel).nonzero().squeeze(1);
  Tensors losses = cpu_losses(
      outputs, labels_n, trained_r,
      {.settings = settings, .divisor = divisor, .chunk_tokens = chunk_tokens == 0 ? kChunkTokens : chunk_tokens});
  add_balance(outputs, at::scalar_tensor(static_cast<double>(trained_r.size(0)) / divisor, at::kFloat),
              settings.balance, losses);
  return losses;
}

CallContents causal_lm_example(std::int64_t sequences, std::int64_t tokens, const CausalLmLossSettings& settings) {
  const at::Tensor ids = at::zeros({sequences, tokens}, at::kLong);
  return {.inputs = {ids},
          .loss = causal_lm_loss(settings).name,
          .arguments = {ids, at::scalar_tensor(static_cast<double>(ids.numel()), at::kFloat)}};
}

std::string logit_cap_text(double cap) { return cat(kLogitCap, cap, ";"); }

Loss causal_lm_loss(const CausalLmLossSettings& settings) {
  std::string name(kCausalLmLoss);
  if (settings.logit_softcap != 0) name += logit_cap_text(settings.logit_softcap);
  if (settings.z_loss != 0) name += cat(" z_loss=", settings.z_loss, ";");
  if (settings.balance != 0) name += cat(" balance=", settings.balance, ";");
  return loss(std::move(name), [settings](const Tensors& outputs, const Tensors& arguments) {
    return causal_lm_loss_of(outputs, arguments, settings);
  });
}

CausalLmLosses causal_lm_losses(const std::vector<double>& numbers, const CausalLmLossSettings& settings) {
  const std::size_t with_experts = 1 + (settings.z_loss > 0 ? 1 : 0) + 3;
  CausalLmLosses losses{.cross_entropy = numbers.at(0)};
  if (settings.z_loss > 0) losses.z_loss = numbers.at(1);
  if (numbers.size() < with_experts) return losses;
  losses.experts = {.auxiliary_loss = numbers[with_experts - 3],
                    .most_loaded = numbers[with_experts - 2],
                    .least_loaded = numbers[with_experts - 1]};
  return losses;
}

}  // namespace rp::models
