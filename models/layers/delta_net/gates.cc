#include "models/layers/delta_net/gates.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "models/layers/delta_net/gpu_operators.h"
#include "models/layers/delta_net/token_runs.h"
#include "models/layers/kernel_call.h"

namespace rp::models {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kGates = "gate_and_beta";

// The number of tokens whose gradients of a_log and dt_bias are added by one thread. It is fixed,
// so that the sum has a fixed order.
constexpr std::int64_t kTokensPerGateSum = 64;

at::Tensor as_floats(const at::Tensor& tensor) { return tensor.detach().to(at::kFloat).contiguous(); }

// Returns {decay, beta}.
struct Gates : torch::autograd::Function<Gates> {
  static variable_list forward(AutogradContext* context, const at::Tensor& a_any, const at::Tensor& b_any,
                               const at::Tensor& a_log_h, const at::Tensor& dt_bias_h) {
    const at::Tensor a = a_any.contiguous(), b = b_any.contiguous();
    const at::Tensor a_log = as_floats(a_log_h), dt_bias = as_floats(dt_bias_h);
    const at::Tensor decay = at::empty(a.sizes(), a.options().dtype(at::kFloat)), beta = at::empty_like(b);
    const DeltaGates call{a.const_data_ptr(),
                          b.const_data_ptr(),
                          a_log.const_data_ptr<float>(),
                          dt_bias.const_data_ptr<float>(),
                          decay.mutable_data_ptr<float>(),
                          beta.mutable_data_ptr(),
                          a.size(2)};
    const DType dtype = kernel_dtype(a);
    share_rows(a.size(0) * a.size(1), a.size(2),
               [&](std::int64_t begin, std::int64_t end) { delta_kernels().gates(dtype, call, begin, end); });
    context->save_for_backward({a, b, a_log_h, dt_bias_h});
    return {decay, beta};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &a = saved[0], &b = saved[1], a_log = as_floats(saved[2]), dt_bias = as_floats(saved[3]);
    const at::Tensor grad_decay = grads[0].contiguous(), grad_beta = grads[1].contiguous();
    const at::Tensor grad_a = at::empty_like(a), grad_b = at::empty_like(b);
    const std::int64_t rows = a.size(0) * a.size(1), heads = a.size(2);
    const std::int64_t num_sums = (rows + kTokensPerGateSum - 1) / kTokensPerGateSum;
    const at::Tensor partial_sums = at::zeros({std::max<std::int64_t>(num_sums, 1), 2, heads}, a_log.options());
    const DeltaGatesGrad call{grad_decay.const_data_ptr<float>(),
                              grad_beta.const_data_ptr(),
                              a.const_data_ptr(),
                              b.const_data_ptr(),
                              a_log.const_data_ptr<float>(),
                              dt_bias.const_data_ptr<float>(),
                              grad_a.mutable_data_ptr(),
                              grad_b.mutable_data_ptr(),
                              nullptr,
                              nullptr,
                              heads};
    const DType dtype = kernel_dtype(a);
    float* sums = partial_sums.mutable_data_ptr<float>();
    share_rows(num_sums, kTokensPerGateSum * heads, [&](std::int64_t first, std::int64_t last) {
      DeltaGatesGrad part = call;
      for (std::int64_t i = first; i < last; ++i) {
        part.grad_a_log = sums + 2 * i * heads;
        part.grad_dt_bias = part.grad_a_log + heads;
        delta_kernels().gates_grad(dtype, part, i * kTokensPerGateSum, std::min(rows, (i + 1) * kTokensPerGateSum));
      }
    });
    const at::Tensor total = sum_in_order(partial_sums);
    return {grad_a, grad_b, total[0], total[1]};
  }
};

}  // namespace

DecayAndBeta gate_and_beta(const at::Tensor& a_bth, const at::Tensor& b_bth, const at::Tensor& a_log_h,
                           const at::Tensor& dt_bias_h) {
  check_device<4>(kGates, {a_bth, b_bth, a_log_h, dt_bias_h});
  TORCH_CHECK(a_bth.dim() == 3 && a_bth.sizes() == b_bth.sizes() && a_bth.scalar_type() == b_bth.scalar_type(), kGates,
              ": a ", a_bth.toString(), " ", a_bth.sizes(), " and b ", b_bth.toString(), " ", b_bth.sizes(),
              " must have one dtype and shape, [b, t, h]");
  for (const at::Tensor& of_heads : {a_log_h, dt_bias_h}) {
    TORCH_CHECK(of_heads.dim() == 1 && of_heads.size(0) == a_bth.size(2), kGates, ": a_log and dt_bias need one value ",
                "for each of ", a_bth.size(2), " heads, not ", of_heads.sizes());
  }
  if (runs_on_gpu(a_bth)) return gpu_gates(a_bth, b_bth, a_log_h, dt_bias_h);
  const variable_list result = Gates::apply(a_bth, b_bth, a_log_h, dt_bias_h);
  return {result[0], result[1]};
}

}  // namespace rp::models
