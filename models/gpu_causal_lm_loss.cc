#include "models/gpu_causal_lm_loss.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "models/kernel_call.h"

namespace rp::models {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// total_vh += a b, in fp32. On a GPU the product of 16-bit matrices is added by the product itself.
void add_product(at::Tensor& total_vh, const at::Tensor& a, const at::Tensor& b) {
  if (a.is_cuda() && a.scalar_type() != at::kFloat) {
    at::addmm_out(total_vh, total_vh, a, b, at::kFloat);
  } else {
    total_vh.add_(at::mm(a, b));
  }
}

struct WantedGradients {
  bool hidden = false;
  bool weight = false;
  [[nodiscard]] bool any() const { return hidden || weight; }
};

struct LossAndGradients {
  at::Tensor loss;
  at::Tensor grad_hidden_nh;  // undefined where not wanted
  at::Tensor grad_weight_vh;  // likewise; fp32 if there are several chunks, or of fp16
};

// `gradient_divisor`: null for gradients that are not divided.
LossAndGradients cross_entropy(const at::Tensor& hidden_nh, const at::Tensor& weight_vh, const at::Tensor& labels_n,
                               const double* divisor, const double* gradient_divisor, std::int64_t step,
                               WantedGradients wanted) {
  const GpuKernels& gpu = gpu_kernels();
  void* stream = gpu.current_stream();
  const Element element = element_of(hidden_nh);
  const std::int64_t tokens = hidden_nh.size(0), vocabulary = weight_vh.size(0);
  const at::Tensor losses_n = at::empty({tokens}, hidden_nh.options().dtype(at::kFloat));
  const at::Tensor logits = at::empty({std::min(step, tokens), vocabulary}, hidden_nh.options());
  const bool sums_in_fp32 = tokens > step || element == Element::kFp16;
  LossAndGradients result;
  if (wanted.hidden) result.grad_hidden_nh = at::empty_like(hidden_nh);
  if (wanted.weight && sums_in_fp32) result.grad_weight_vh = at::zeros(weight_vh.sizes(), losses_n.options());
  for (std::int64_t begin = 0; begin < tokens; begin += step) {
    const std::int64_t count = std::min(step, tokens - begin);
    const at::Tensor hidden_ch = hidden_nh.narrow(0, begin, count);
    at::Tensor logits_cv = logits.narrow(0, 0, count);
    at::mm_out(logits_cv, hidden_ch, weight_vh.t());
    gpu.cross_entropy(element,
                      {logits_cv.mutable_data_ptr(), labels_n.const_data_ptr<std::int64_t>() + begin,
                       losses_n.mutable_data_ptr<float>() + begin, gradient_divisor, vocabulary, wanted.any()},
                      count, stream);
    if (wanted.hidden) {
      at::Tensor grad_ch = result.grad_hidden_nh.narrow(0, begin, count);
      at::mm_out(grad_ch, logits_cv, weight_vh);
    }
    if (!wanted.weight) continue;
    if (sums_in_fp32) {
      add_product(result.grad_weight_vh, logits_cv.t(), hidden_ch);
    } else {
      result.grad_weight_vh = at::mm(logits_cv.t(), hidden_ch);
    }
  }
  result.loss = at::empty({}, losses_n.options());
  gpu.sum_losses({losses_n.const_data_ptr<float>(), tokens, divisor, result.loss.mutable_data_ptr<float>()}, stream);
  return result;
}

struct GpuCausalLmLoss : torch::autograd::Function<GpuCausalLmLoss> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden_any, const at::Tensor& weight_vh,
                            const at::Tensor& labels_n, const at::Tensor& divisor, std::int64_t step,
                            bool wants_hidden, bool wants_weight) {
    const at::Tensor hidden_nh = hidden_any.contiguous();
    const bool divides_late = hidden_nh.scalar_type() == at::kHalf;
    const double* of_loss = divisor.const_data_ptr<double>();
    const LossAndGradients result = cross_entropy(hidden_nh, weight_vh, labels_n, of_loss, divides_late ? nullptr : of_loss,
                                                  step, {wants_hidden, wants_weight});
    context->save_for_backward(
        {result.grad_hidden_nh, result.grad_weight_vh, divides_late ? divisor : at::Tensor()});
    context->saved_data["is_used"] = false;
    return result.loss;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    TORCH_CHECK(!context->saved_data["is_used"].toBool(),
                "causal_lm_loss: a second backward through the same loss is not possible on a GPU");
    context->saved_data["is_used"] = true;
    const variable_list saved = context->get_saved_variables();
    at::Tensor factor = grads[0];
    if (saved[2].defined()) factor = at::where(saved[2] > 0, factor / saved[2], at::zeros_like(saved[2]));
    factor = factor.to(at::kFloat);
    for (const at::Tensor& gradient : {saved[0], saved[1]}) {
      if (!gradient.defined()) continue;
      gpu_kernels().scale(element_of(gradient),
                          {gradient.mutable_data_ptr(), gradient.numel(), factor.const_data_ptr<float>()},
                          gpu_kernels().current_stream());
    }
    variable_list gradients = {saved[0], saved[1]};
    gradients.resize(7);  // nothing for the other arguments
    return gradients;
  }
};

}  // namespace

at::Tensor gpu_causal_lm_loss(const at::Tensor& hidden_nh, const at::Tensor& weight_vh, const at::Tensor& labels_n,
                              const at::Tensor& divisor, std::int64_t chunk_tokens) {
  TORCH_CHECK(labels_n.scalar_type() == at::kLong && labels_n.device() == hidden_nh.device(),
              "causal_lm_loss: needs labels of int64 where the hidden states are, not ", labels_n.toString());
  TORCH_CHECK(divisor.numel() == 1, "causal_lm_loss: the divisor has ", divisor.numel(), " elements, not one");
  const auto options = hidden_nh.options().dtype(at::kDouble).requires_grad(false);
  // A scalar of the CPU is written by a kernel that has it as its argument: a copy might wait.
  const at::Tensor divisor_there = divisor.is_cpu() && hidden_nh.is_cuda()
                                       ? at::full({}, divisor.item<double>(), options)
                                       : divisor.detach().reshape({}).to(at::kDouble);
  const bool with_gradient = c10::GradMode::is_enabled();
  return GpuCausalLmLoss::apply(hidden_nh, weight_vh, labels_n.contiguous(), divisor_there, chunk_tokens,
                                with_gradient && hidden_nh.requires_grad(), with_gradient && weight_vh.requires_grad());
}

}  // namespace rp::models
