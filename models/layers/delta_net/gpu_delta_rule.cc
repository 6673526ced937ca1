#include "models/layers/delta_net/gpu_delta_rule.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "kernels/gpu_kernels.h"
#include "models/layers/documents.h"
#include "models/layers/kernel_call.h"

namespace rp::models {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Returns x [b, t, heads, size], copied unless the heads of a token follow each other and all tokens
// do so at one stride.
at::Tensor with_even_tokens(const at::Tensor& x) {
  const bool heads_fit = (x.stride(3) == 1 || x.size(3) == 1) && (x.stride(2) == x.size(3) || x.size(2) == 1);
  const bool tokens_fit = x.stride(0) == x.size(1) * x.stride(1) || x.size(0) == 1;
  return heads_fit && tokens_fit ? x : x.contiguous();
}

// `tensors`: q, k, v, decay and beta as the kernels read them.
GpuDeltaInputs kernel_inputs(const variable_list& tensors, const at::Tensor& positions_bt) {
  const at::Tensor &q = tensors[0], &v = tensors[2];
  return {.q = q.const_data_ptr(),
          .k = tensors[1].const_data_ptr(),
          .v = v.const_data_ptr(),
          .decay = tensors[3].const_data_ptr<float>(),
          .beta = tensors[4].const_data_ptr(),
          .positions = positions_bt.defined() ? positions_bt.const_data_ptr<std::int64_t>() : nullptr,
          .q_stride = q.stride(1),
          .k_stride = tensors[1].stride(1),
          .v_stride = v.stride(1),
          .sequences = q.size(0),
          .length = q.size(1),
          .key_heads = q.size(2),
          .value_heads = v.size(2),
          .key_size = q.size(3),
          .value_size = v.size(3)};
}

struct GpuDeltaRuleNode : torch::autograd::Function<GpuDeltaRuleNode> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& decay, const at::Tensor& beta, const std::optional<at::Tensor>& documents,
                            bool is_kept) {
    const at::Tensor positions_bt = documents ? document_positions(*documents, q.size(1)) : at::Tensor();
    const variable_list tensors = {with_even_tokens(q), with_even_tokens(k), with_even_tokens(v), decay.contiguous(),
                                   beta.contiguous()};
    const GpuDeltaInputs in = kernel_inputs(tensors, positions_bt);
    const at::TensorOptions floats = decay.options();
    const at::Tensor o = at::empty(v.sizes(), v.options()), scratch = at::empty({delta_scratch_floats(in)}, floats);
    at::Tensor states;
    if (is_kept) states = at::empty({in.sequences, in.value_heads, in.chunks(), in.key_size, in.value_size}, floats);
    gpu_kernels().delta_rule(kernel_dtype(v),
                             {.in = in,
                              .o = o.mutable_data_ptr(),
                              .states = is_kept ? states.mutable_data_ptr<float>() : nullptr,
                              .scratch = scratch.mutable_data_ptr<float>()},
                             gpu_kernels().current_stream());
    context->save_for_backward({tensors[0], tensors[1], tensors[2], tensors[3], tensors[4], positions_bt, states});
    return o;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grad_outputs) {
    const variable_list saved = context->get_saved_variables();
    const variable_list tensors(saved.begin(), saved.begin() + 5);
    const GpuDeltaInputs in = kernel_inputs(tensors, saved[5]);
    const at::Tensor grad_o = grad_outputs[0].contiguous();
    const at::Tensor scratch = at::empty({delta_grad_scratch_floats(in)}, tensors[3].options());
    variable_list grads(7);
    for (std::size_t i = 0; i < tensors.size(); ++i) grads[i] = at::empty(tensors[i].sizes(), tensors[i].options());
    gpu_kernels().delta_rule_grad(kernel_dtype(grad_o),
                                  {.in = in,
                                   .states = saved[6].const_data_ptr<float>(),
                                   .grad_o = grad_o.const_data_ptr(),
                                   .grad_q = grads[0].mutable_data_ptr(),
                                   .grad_k = grads[1].mutable_data_ptr(),
                                   .grad_v = grads[2].mutable_data_ptr(),
                                   .grad_decay = grads[3].mutable_data_ptr<float>(),
                                   .grad_beta = grads[4].mutable_data_ptr(),
                                   .scratch = scratch.mutable_data_ptr<float>()},
                                  gpu_kernels().current_stream());
    return grads;
  }
};

}  // namespace

at::Tensor gpu_delta_rule(const DeltaRuleInputs& in, bool is_kept) {
  return GpuDeltaRuleNode::apply(in.q_btkd, in.k_btkd, in.v_bthe, in.decay_bth, in.beta_bth,
                                 where_defined(in.documents_bk), is_kept);
}

}  // namespace rp::models
