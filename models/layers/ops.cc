#include "models/layers/ops.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "models/layers/kernel_call.h"

namespace rp::models {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The number of rows of a normalisation whose weight gradients are added by one thread. It is
// fixed, so that the sum has a fixed order.
constexpr std::int64_t kRowsPerPartialSum = 64;

std::int64_t num_rows(const at::Tensor& x) { return x.numel() / x.size(-1); }

// Returns grad_x and, on the CPU if the weight is trained, the fp32 gradient of the weight. If
// grad_sum is defined, it is added to grad_x: on the CPU in a separate operation, so that the
// result is rounded twice, as by a separate addition; on a GPU before the only rounding.
variable_list cpu_rms_norm_grad(const at::Tensor& x, const at::Tensor& weight_h, const at::Tensor& rstd,
                                const at::Tensor& grad_y, const at::Tensor& grad_sum, NormKind kind, bool is_trained) {
  const std::int64_t columns = x.size(-1), rows = num_rows(x);
  const std::int64_t num_sums = (rows + kRowsPerPartialSum - 1) / kRowsPerPartialSum;
  const at::Tensor grad_x = at::empty_like(x);
  at::Tensor partial_sums;
  if (is_trained) partial_sums = at::zeros({std::max<std::int64_t>(num_sums, 1), columns}, rstd.options());
  const RmsNormGradRows call{grad_y.const_data_ptr(),
                             x.const_data_ptr(),
                             weight_h.const_data_ptr(),
                             rstd.const_data_ptr<float>(),
                             grad_x.mutable_data_ptr(),
                             nullptr,
                             columns,
                             kind};
  const DType dtype = kernel_dtype(x);
  float* sums = is_trained ? partial_sums.mutable_data_ptr<float>() : nullptr;
  at::parallel_for(0, num_sums, 1, [&](std::int64_t first, std::int64_t last) {
    RmsNormGradRows part = call;
    for (std::int64_t i = first; i < last; ++i) {
      if (is_trained) part.grad_weight = sums + i * columns;
      layer_kernels().rms_norm_grad(dtype, part, i * kRowsPerPartialSum, std::min(rows, (i + 1) * kRowsPerPartialSum));
    }
  });
  if (grad_sum.defined()) grad_x.add_(grad_sum);
  if (!is_trained) return {grad_x, at::Tensor()};
  for (std::int64_t i = 1; i < num_sums; ++i) partial_sums[0].add_(partial_sums[i]);
  return {grad_x, partial_sums[0]};
}

variable_list gpu_rms_norm_grad(const at::Tensor& x, const at::Tensor& weight_h, const at::Tensor& rstd,
                                const at::Tensor& grad_y, const at::Tensor& grad_sum, NormKind kind,
                                bool /*is_trained*/) {
  const std::int64_t columns = x.size(-1), rows = num_rows(x);
  const at::Tensor grad_x = at::empty_like(x), grad_weight_h = at::empty({columns}, rstd.options());
  const at::Tensor partial_sums = at::empty({num_row_sums(rows), columns}, rstd.options());
  gpu_kernels().rms_norm_grad(
      kernel_dtype(x),
      {grad_y.const_data_ptr(), grad_sum.defined() ? grad_sum.const_data_ptr() : nullptr, x.const_data_ptr(),
       weight_h.const_data_ptr(), rstd.const_data_ptr<float>(), grad_x.mutable_data_ptr(),
       grad_weight_h.mutable_data_ptr<float>(), partial_sums.mutable_data_ptr<float>(), columns, kind},
      rows, gpu_kernels().current_stream());
  return {grad_x, grad_weight_h};
}

variable_list rms_norm_grad(const AutogradContext* context, const at::Tensor& grad_y, const at::Tensor& grad_sum,
                            bool is_trained) {
  const variable_list saved = context->get_saved_variables();
  const auto kind = static_cast<NormKind>(context->saved_data.at("kind").toInt());
  return (runs_on_gpu(saved[0]) ? gpu_rms_norm_grad : cpu_rms_norm_grad)(
      saved[0], saved[1], saved[2], grad_y.contiguous(), grad_sum.defined() ? grad_sum.contiguous() : grad_sum, kind,
      is_trained);
}

// Computes y and rstd of RmsNormRows.
void run_rms_norm(const at::Tensor& x, const at::Tensor& weight_h, const at::Tensor& y, const at::Tensor& rstd,
                  double epsilon, NormKind kind) {
  const RmsNormRows call{x.const_data_ptr(),
                         weight_h.const_data_ptr(),
                         y.mutable_data_ptr(),
                         rstd.mutable_data_ptr<float>(),
                         x.size(-1),
                         static_cast<float>(epsilon),
                         kind};
  const DType dtype = kernel_dtype(x);
  if (runs_on_gpu(x)) return gpu_kernels().rms_norm(dtype, call, num_rows(x), gpu_kernels().current_stream());
  share_rows(num_rows(x), x.size(-1),
             [&](std::int64_t begin, std::int64_t end) { layer_kernels().rms_norm(dtype, call, begin, end); });
}

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_any, const at::Tensor& weight_h,
                            double epsilon, NormKind kind) {
    const at::Tensor x = x_any.contiguous();
    const at::Tensor y = at::empty_like(x);
    const at::Tensor rstd = at::empty({num_rows(x)}, x.options().dtype(at::kFloat));
    run_rms_norm(x, weight_h, y, rstd, epsilon, kind);
    context->save_for_backward({x, weight_h, rstd});
    context->saved_data["kind"] = static_cast<std::int64_t>(kind);
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list result = rms_norm_grad(context, grads[0], at::Tensor(), context->needs_input_grad(1));
    return {result[0], result[1], at::Tensor(), at::Tensor()};
  }
};

// Returns {sum, y}.
struct AddRmsNorm : torch::autograd::Function<AddRmsNorm> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x_any, const at::Tensor& residual_any,
                               const at::Tensor& weight_h, double epsilon, NormKind kind) {
    const at::Tensor x = x_any.contiguous(), residual = residual_any.contiguous();
    TORCH_CHECK(x.sizes() == residual.sizes() && x.scalar_type() == residual.scalar_type(),
                "add_rms_norm: ", x.toString(), " ", x.sizes(), " and ", residual.toString(), " ", residual.sizes(),
                " do not fit");
    const at::Tensor sum = runs_on_gpu(x) ? at::empty_like(x) : x + residual;
    const at::Tensor y = at::empty_like(x);
    const at::Tensor rstd = at::empty({num_rows(x)}, x.options().dtype(at::kFloat));
    if (runs_on_gpu(x)) {
      gpu_kernels().add_rms_norm(
          kernel_dtype(x),
          {x.const_data_ptr(), residual.const_data_ptr(), weight_h.const_data_ptr(), sum.mutable_data_ptr(),
           y.mutable_data_ptr(), rstd.mutable_data_ptr<float>(), x.size(-1), static_cast<float>(epsilon), kind},
          num_rows(x), gpu_kernels().current_stream());
    } else {
      run_rms_norm(sum, weight_h, y, rstd, epsilon, kind);
    }
    context->save_for_backward({sum, weight_h, rstd});
    context->saved_data["kind"] = static_cast<std::int64_t>(kind);
    context->set_materialize_grads(false);
    return {sum, y};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    if (!grads[1].defined())
      return {grads[0], grads[0], at::Tensor(), at::Tensor(), at::Tensor()};  // only the sum was used
    const variable_list result = rms_norm_grad(context, grads[1], grads[0], context->needs_input_grad(2));
    return {result[0], result[0], result[1], at::Tensor(), at::Tensor()};
  }
};

struct Rotate : torch::autograd::Function<Rotate> {
  static at::Tensor run(const at::Tensor& x_any, const at::Tensor& cosine, const at::Tensor& sine, bool back) {
    const at::Tensor x = x_any.contiguous();
    const at::Tensor y = at::empty_like(x);
    TORCH_CHECK(cosine.device() == x.device(), "rotate_heads: the table is on ", cosine.device(), ", x on ",
                x.device());
    TORCH_CHECK(cosine.size(0) == x.size(1) || cosine.size(0) == x.size(0) * x.size(1), "rotate_heads: a table of ",
                cosine.size(0), " rows does not fit ", x.sizes());
    TORCH_CHECK(2 * cosine.size(1) <= x.size(3), "rotate_heads: a table for ", 2 * cosine.size(1),
                " elements does not fit heads of ", x.size(3));
    const RotateRows call{x.const_data_ptr(),
                          y.mutable_data_ptr(),
                          cosine.const_data_ptr<float>(),
                          sine.const_data_ptr<float>(),
                          cosine.size(0),
                          x.size(2),
                          x.size(3),
                          2 * cosine.size(1),
                          back};
    const DType dtype = kernel_dtype(x);
    if (runs_on_gpu(x)) {
      gpu_kernels().rotate(dtype, call, x.size(0) * x.size(1), gpu_kernels().current_stream());
      return y;
    }
    share_rows(x.size(0) * x.size(1), x.size(2) * x.size(3),
               [&](std::int64_t begin, std::int64_t end) { layer_kernels().rotate(dtype, call, begin, end); });
    return y;
  }

  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_btnd, const at::Tensor& cosine,
                            const at::Tensor& sine) {
    context->save_for_backward({cosine, sine});
    return run(x_btnd, cosine, sine, /*back=*/false);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    return {run(grads[0], saved[0], saved[1], /*back=*/true), at::Tensor(), at::Tensor()};
  }
};

struct GatedUnit : torch::autograd::Function<GatedUnit> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate_any, const at::Tensor& up_any,
                            Activation activation) {
    const at::Tensor gate = gate_any.contiguous(), up = up_any.contiguous();
    const at::Tensor y = at::empty_like(gate);
    const Glu call{gate.const_data_ptr(), up.const_data_ptr(), y.mutable_data_ptr(), activation};
    const DType dtype = kernel_dtype(gate);
    context->save_for_backward({gate, up});
    context->saved_data["activation"] = static_cast<std::int64_t>(activation);
    if (runs_on_gpu(gate)) {
      gpu_kernels().glu(dtype, call, gate.numel(), gpu_kernels().current_stream());
      return y;
    }
    share_elements(gate.numel(),
                   [&](std::int64_t begin, std::int64_t end) { layer_kernels().glu(dtype, call, begin, end); });
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor grad_y = grads[0].contiguous();
    const at::Tensor grad_gate = at::empty_like(saved[0]), grad_up = at::empty_like(saved[1]);
    const GluGrad call{grad_y.const_data_ptr(),    saved[0].const_data_ptr(),
                       saved[1].const_data_ptr(),  grad_gate.mutable_data_ptr(),
                       grad_up.mutable_data_ptr(), static_cast<Activation>(context->saved_data["activation"].toInt())};
    const DType dtype = kernel_dtype(grad_y);
    if (runs_on_gpu(grad_y)) {
      gpu_kernels().glu_grad(dtype, call, grad_y.numel(), gpu_kernels().current_stream());
      return {grad_gate, grad_up, at::Tensor()};
    }
    share_elements(grad_y.numel(),
                   [&](std::int64_t begin, std::int64_t end) { layer_kernels().glu_grad(dtype, call, begin, end); });
    return {grad_gate, grad_up, at::Tensor()};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight_h, double epsilon, NormKind kind) {
  return RmsNorm::apply(x, weight_h, epsilon, kind);
}

NormalisedSum add_rms_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight_h, double epsilon,
                           NormKind kind) {
  const variable_list result = AddRmsNorm::apply(x, residual, weight_h, epsilon, kind);
  return {result[0], result[1]};
}

at::Tensor rotate_heads(const at::Tensor& x_btnd, const RotaryTable& table) {
  return Rotate::apply(x_btnd, table.cosine_tr2, table.sine_tr2);
}

at::Tensor glu(const at::Tensor& gate, const at::Tensor& up, Activation activation) {
  return GatedUnit::apply(gate, up, activation);
}

}  // namespace rp::models
