#include "models/layers/gpu_causal_lm_loss.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "models/layers/kernel_call.h"
#include "models/layers/linear.h"
#include "models/layers/logit_cap.h"

namespace rp::models {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct WantedGradients {
  bool hidden = false;
  bool weight = false;
  [[nodiscard]] bool any() const { return hidden || weight; }
};

// Computes the cross entropy of chunks of tokens.
class ChunkedLoss {
 public:
  // `gradient_divisor`: null if gradients are not to be divided.
  ChunkedLoss(const at::Tensor& hidden_nh, const at::Tensor& weight_vh, const at::Tensor& labels_n,
              const double* gradient_divisor, const CausalLmLossSettings& settings, std::int64_t step,
              bool with_gradient)
      : hidden_nh_(hidden_nh),
        weight_vh_(weight_vh),
        labels_n_(labels_n),
        gradient_divisor_(gradient_divisor),
        settings_(settings),
        cap_(settings.logit_softcap),
        with_gradient_(with_gradient),
        losses_n_(at::empty({hidden_nh.size(0)}, hidden_nh.options().dtype(at::kFloat))),
        log_sums_n_(settings.z_loss > 0 ? at::empty_like(losses_n_) : at::Tensor()),
        logits_(at::empty({std::min(step, hidden_nh.size(0)), weight_vh.size(0)}, hidden_nh.options())) {}

  // Computes the losses of a chunk's tokens. Returns the gradient of its logits or, without
  // gradients, the logits themselves; the tensor is valid until the next call.
  at::Tensor run(std::int64_t begin, std::int64_t count) {
    at::Tensor logits_cv = logits_.narrow(0, 0, count);
    at::mm_out(logits_cv, hidden_nh_.narrow(0, begin, count), weight_vh_.t());
    cap_.apply(logits_cv);
    gpu_kernels().cross_entropy(
        kernel_dtype(hidden_nh_),
        {.logits = logits_cv.mutable_data_ptr(),
         .labels = labels_n_.const_data_ptr<std::int64_t>() + begin,
         .losses = losses_n_.mutable_data_ptr<float>() + begin,
         .divisor = gradient_divisor_,
         .columns = weight_vh_.size(0),
         .with_gradient = with_gradient_,
         .z_loss = static_cast<float>(settings_.z_loss),
         .log_sums = log_sums_n_.defined() ? log_sums_n_.mutable_data_ptr<float>() + begin : nullptr},
        count, gpu_kernels().current_stream());
    if (with_gradient_) cap_.apply_gradient(logits_cv);
    return logits_cv;
  }

  // Returns the loss and, if the settings have one, the z-loss.
  [[nodiscard]] variable_list losses(AutogradContext* context, const double* divisor) const {
    const at::Tensor loss = divided_sum(losses_n_, divisor);
    if (!log_sums_n_.defined()) return {loss};
    const at::Tensor z_loss = divided_sum(log_sums_n_.square(), divisor).mul_(settings_.z_loss);
    context->mark_non_differentiable({z_loss});
    return {loss, z_loss};
  }

 private:
  static at::Tensor divided_sum(const at::Tensor& numbers_n, const double* divisor) {
    at::Tensor result = at::empty({}, numbers_n.options());
    gpu_kernels().sum_losses(
        {numbers_n.const_data_ptr<float>(), numbers_n.numel(), divisor, result.mutable_data_ptr<float>()},
        gpu_kernels().current_stream());
    return result;
  }

  const at::Tensor hidden_nh_, weight_vh_, labels_n_;
  const double* const gradient_divisor_;
  const CausalLmLossSettings settings_;
  LogitCap cap_;
  const bool with_gradient_;
  const at::Tensor losses_n_;
  const at::Tensor log_sums_n_;  // undefined without a z-loss
  const at::Tensor logits_;
};

void scale(const at::Tensor& values, const at::Tensor& factor) {
  gpu_kernels().scale(kernel_dtype(values), {values.mutable_data_ptr(), values.numel(), factor.const_data_ptr<float>()},
                      gpu_kernels().current_stream());
}

// Refuses a second backward pass, because the first one overwrites the data that was kept for it.
void use_up(AutogradContext* context) {
  TORCH_CHECK(!context->saved_data["is_used"].toBool(),
              "causal_lm_loss: a second backward through the same loss is not possible on a GPU");
  context->saved_data["is_used"] = true;
}

// Computes the loss if all tokens fit in one chunk. Only the gradient of the logits is computed and
// kept; the backward pass computes the other gradients from it, and adds the weight's directly to
// that of the leaf.
struct OneChunkLoss : torch::autograd::Function<OneChunkLoss> {
  static variable_list forward(AutogradContext* context, const at::Tensor& hidden_any, const at::Tensor& weight_vh,
                               const at::Tensor& labels_n, const at::Tensor& divisor,
                               const CausalLmLossSettings& settings, WantedGradients wanted) {
    const at::Tensor hidden_nh = hidden_any.contiguous();
    const double* of_loss = divisor.const_data_ptr<double>();
    ChunkedLoss chunks(hidden_nh, weight_vh, labels_n, of_loss, settings, hidden_nh.size(0), wanted.any());
    const at::Tensor grad_logits_nv = chunks.run(0, hidden_nh.size(0));
    context->save_for_backward({hidden_nh, weight_vh, wanted.any() ? grad_logits_nv : at::Tensor()});
    context->saved_data["is_used"] = false;
    return chunks.losses(context, of_loss);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    use_up(context);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &hidden_nh = saved[0], &weight_vh = saved[1], &grad_logits_nv = saved[2];
    scale(grad_logits_nv, grads[0].to(at::kFloat));
    variable_list gradients(6);
    if (context->needs_input_grad(1)) gradients[1] = weight_gradient(weight_vh, grad_logits_nv.t(), hidden_nh);
    if (context->needs_input_grad(0)) gradients[0] = at::mm(grad_logits_nv, weight_vh);
    return gradients;
  }
};

// Computes the loss of several chunks, and of fp16, whose gradients are divided only in the
// backward pass. The gradients of the hidden states and of the weight are computed together with
// the loss.
struct ManyChunksLoss : torch::autograd::Function<ManyChunksLoss> {
  static variable_list forward(AutogradContext* context, const at::Tensor& hidden_any, const at::Tensor& weight_vh,
                               const at::Tensor& labels_n, const at::Tensor& divisor,
                               const CausalLmLossSettings& settings, WantedGradients wanted, std::int64_t step) {
    const at::Tensor hidden_nh = hidden_any.contiguous();
    const bool divides_late = hidden_nh.scalar_type() == at::kHalf;
    const double* of_loss = divisor.const_data_ptr<double>();
    const std::int64_t tokens = hidden_nh.size(0);
    ChunkedLoss chunks(hidden_nh, weight_vh, labels_n, divides_late ? nullptr : of_loss, settings, step, wanted.any());
    at::Tensor grad_hidden_nh, grad_weight_vh;
    if (wanted.hidden) grad_hidden_nh = at::empty_like(hidden_nh);
    if (wanted.weight) grad_weight_vh = at::zeros(weight_vh.sizes(), hidden_nh.options().dtype(at::kFloat));
    for (std::int64_t begin = 0; begin < tokens; begin += step) {
      const std::int64_t count = std::min(step, tokens - begin);
      const at::Tensor grad_logits_cv = chunks.run(begin, count);
      if (wanted.hidden) {
        at::Tensor grad_ch = grad_hidden_nh.narrow(0, begin, count);
        at::mm_out(grad_ch, grad_logits_cv, weight_vh);
      }
      if (wanted.weight) add_product(grad_weight_vh, grad_logits_cv.t(), hidden_nh.narrow(0, begin, count));
    }
    context->save_for_backward({grad_hidden_nh, grad_weight_vh, divides_late ? divisor : at::Tensor()});
    context->saved_data["is_used"] = false;
    return chunks.losses(context, of_loss);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    use_up(context);
    const variable_list saved = context->get_saved_variables();
    at::Tensor factor = grads[0];
    if (saved[2].defined()) factor = at::where(saved[2] > 0, factor / saved[2], at::zeros_like(saved[2]));
    factor = factor.to(at::kFloat);
    for (const at::Tensor& gradient : {saved[0], saved[1]}) {
      if (gradient.defined()) scale(gradient, factor);
    }
    variable_list gradients = {saved[0], saved[1]};
    gradients.resize(7);  // no gradients for the other arguments
    return gradients;
  }
};

}  // namespace

Tensors gpu_causal_lm_loss(const at::Tensor& hidden_nh, const at::Tensor& weight_vh, const at::Tensor& labels_n,
                           const at::Tensor& divisor, const CausalLmLossSettings& settings, std::int64_t chunk_tokens) {
  TORCH_CHECK(labels_n.scalar_type() == at::kLong && labels_n.device() == hidden_nh.device(),
              "causal_lm_loss: needs int64 labels on the device of the hidden states, not ", labels_n.toString());
  TORCH_CHECK(divisor.numel() == 1, "causal_lm_loss: the divisor has ", divisor.numel(), " elements, not one");
  const auto options = hidden_nh.options().dtype(at::kDouble).requires_grad(false);
  // A scalar on the CPU becomes the argument of a kernel, which writes it to the GPU's memory,
  // because a copy might wait for the GPU.
  const at::Tensor divisor_there = divisor.is_cpu() && hidden_nh.is_cuda()
                                       ? at::full({}, divisor.item<double>(), options)
                                       : divisor.detach().reshape({}).to(at::kDouble);
  const bool with_gradient = c10::GradMode::is_enabled();
  const WantedGradients wanted{with_gradient && hidden_nh.requires_grad(), with_gradient && weight_vh.requires_grad()};
  if (hidden_nh.size(0) <= chunk_tokens && hidden_nh.scalar_type() != at::kHalf) {
    return OneChunkLoss::apply(hidden_nh, weight_vh, labels_n.contiguous(), divisor_there, settings, wanted);
  }
  return ManyChunksLoss::apply(hidden_nh, weight_vh, labels_n.contiguous(), divisor_there, settings, wanted,
                               chunk_tokens);
}

}  // namespace rp::models
