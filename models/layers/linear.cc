#include "models/layers/linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "models/layers/kernel_call.h"
#include "models/layers/lora.h"

namespace rp::models {

at::Tensor rows_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor plain_linear(const at::Tensor& x, const LinearWeights& weights) {
  return weights.bias_o.defined() ? at::linear(x, weights.weight_oi, weights.bias_o) : at::linear(x, weights.weight_oi);
}

// Replaces a product that no code reads.
at::Tensor any_values(const at::Tensor& x, const at::Tensor& weight_oi) {
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.back() = weight_oi.size(0);
  return at::empty(shape, x.options());
}

// Products of fp16 on the CPU. Keeps the operands in fp16, and widens them again in the backward
// pass, whose gradients of weight and bias remain fp32.
struct WidenedLinear : torch::autograd::Function<WidenedLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight_oi,
                            const std::optional<at::Tensor>& bias_o, bool is_read) {
    context->save_for_backward({x, weight_oi});
    context->saved_data["has_bias"] = bias_o.has_value();
    if (!is_read) return any_values(x, weight_oi);
    const std::optional<at::Tensor> bias = bias_o ? std::make_optional(bias_o->to(at::kFloat)) : std::nullopt;
    return at::linear(x.to(at::kFloat), weight_oi.to(at::kFloat), bias).to(x.scalar_type());
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight_oi = saved[1];
    const at::Tensor grad_no = grads[0].reshape({-1, weight_oi.size(0)}).to(at::kFloat);
    variable_list result(4);
    if (context->needs_input_grad(0))
      result[0] = at::mm(grad_no, weight_oi.to(at::kFloat)).view(x.sizes()).to(x.scalar_type());
    if (context->needs_input_grad(1)) result[1] = at::mm(grad_no.t(), x.reshape({-1, x.size(-1)}).to(at::kFloat));
    if (context->saved_data["has_bias"].toBool() && context->needs_input_grad(2)) result[2] = grad_no.sum(0);
    return result;
  }
};

// Products of bf16 on the CPU: LibTorch's products, with its bits. LibTorch's autograd would first
// widen the gradient of the weight and then add it to that of the leaf, which is one pass here. It
// would also compute products that no code reads.
struct Bf16Linear : torch::autograd::Function<Bf16Linear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight_oi,
                            const std::optional<at::Tensor>& bias_o, bool is_read) {
    context->save_for_backward({x, weight_oi});
    context->saved_data["has_bias"] = bias_o.has_value();
    if (!is_read) return any_values(x, weight_oi);
    return at::linear(x, weight_oi, bias_o);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight_oi = saved[1], grad_no = rows_of(grads[0]);
    variable_list result(4);
    if (context->needs_input_grad(0)) result[0] = at::mm(grad_no, weight_oi).view(x.sizes());
    if (context->needs_input_grad(1)) result[1] = weight_gradient(weight_oi, grad_no.t(), rows_of(x));
    if (context->saved_data["has_bias"].toBool() && context->needs_input_grad(2)) result[2] = grad_no.sum(0);
    return result;
  }
};

at::Tensor cpu_linear(const at::Tensor& x, const LinearWeights& weights, bool is_read) {
  const bool is_half = x.scalar_type() == at::kHalf, is_trained = weights.weight_oi.requires_grad();
  if (!is_half && (x.scalar_type() != at::kBFloat16 || (is_trained && !takes_gradient_in_place(weights.weight_oi)))) {
    return plain_linear(x, weights);
  }
  const std::optional<at::Tensor> bias_o = where_defined(weights.bias_o);
  return is_half ? WidenedLinear::apply(x, weights.weight_oi, bias_o, is_read)
                 : Bf16Linear::apply(x, weights.weight_oi, bias_o, is_read);
}

struct GpuLinears : torch::autograd::Function<GpuLinears> {
  // `bias_of`: for each weight the index of its bias in `biases`, or -1.
  static variable_list forward(AutogradContext* context, const at::Tensor& x, at::TensorList weights,
                               at::TensorList biases, const std::vector<std::int64_t>& bias_of, bool is_read) {
    variable_list saved = {x}, results;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      saved.push_back(weights[i]);
      if (!is_read) {
        results.push_back(any_values(x, weights[i]));
        continue;
      }
      results.push_back(plain_linear(x, {weights[i], bias_of[i] < 0 ? at::Tensor() : biases[bias_of[i]]}));
    }
    context->save_for_backward(saved);
    context->saved_data["bias_of"] = bias_of;
    context->set_materialize_grads(false);
    return results;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const std::vector<std::int64_t> bias_of = context->saved_data["bias_of"].toIntVector();
    const at::Tensor x_ni = rows_of(saved[0]);
    const std::size_t end_of_weights = 1 + bias_of.size();
    variable_list result(end_of_weights + bias_of.size() + 2);  // x, weights, at most as many biases, bias_of, is_read
    for (std::size_t i = grads.size(); i-- > 0;) {
      if (!grads[i].defined()) continue;
      const at::Tensor grad_no = rows_of(grads[i]);
      const at::Tensor& weight_oi = saved[1 + i];
      if (context->needs_input_grad(1 + i)) result[1 + i] = weight_gradient(weight_oi, grad_no.t(), x_ni);
      if (bias_of[i] >= 0) {
        const std::size_t bias = end_of_weights + static_cast<std::size_t>(bias_of[i]);
        if (context->needs_input_grad(bias)) result[bias] = at::sum(grad_no, 0, /*keepdim=*/false, at::kFloat);
      }
      if (!context->needs_input_grad(0)) continue;
      if (result[0].defined()) {
        result[0].addmm_(grad_no, weight_oi);
      } else {
        result[0] = at::mm(grad_no, weight_oi);
      }
    }
    if (result[0].defined()) result[0] = result[0].view(saved[0].sizes());
    return result;
  }
};

// Computes the products without LoRA pairs.
std::vector<at::Tensor> products(const at::Tensor& x, const std::vector<LinearWeights>& weights, bool is_read) {
  if (!runs_on_gpu(x)) {
    std::vector<at::Tensor> results;
    for (const LinearWeights& one : weights) results.push_back(cpu_linear(x, one, is_read));
    return results;
  }
  std::vector<at::Tensor> factors, biases;
  std::vector<std::int64_t> bias_of;
  for (const LinearWeights& one : weights) {
    factors.push_back(one.weight_oi);
    bias_of.push_back(one.bias_o.defined() ? static_cast<std::int64_t>(biases.size()) : -1);
    if (one.bias_o.defined()) biases.push_back(one.bias_o);
  }
  return GpuLinears::apply(x, at::TensorList(factors), at::TensorList(biases), bias_of, is_read);
}

// Widens a weight. Its gradient stays fp32, so that it is added to the leaf's unrounded.
struct WidenedWeight : torch::autograd::Function<WidenedWeight> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& weight) { return weight.to(at::kFloat); }
  static variable_list backward(AutogradContext*, const variable_list& grads) { return grads; }
};

at::Tensor in_fp32(const at::Tensor& weight) {
  return weight.defined() && weight.scalar_type() != at::kFloat ? WidenedWeight::apply(weight) : weight;
}

}  // namespace

at::Tensor linear(const at::Tensor& x, const LinearWeights& weights, bool is_read) {
  return linears(x, {weights}, is_read)[0];
}

at::Tensor linear_in_fp32(const at::Tensor& x, const LinearWeights& weights) {
  LinearWeights wide = weights;
  for (at::Tensor* tensor : {&wide.weight_oi, &wide.bias_o, &wide.lora.a_ri, &wide.lora.b_or, &wide.lora.magnitude_o})
    *tensor = in_fp32(*tensor);
  return linear(x.to(at::kFloat), wide);
}

std::vector<at::Tensor> linears(const at::Tensor& x, const std::vector<LinearWeights>& weights, bool is_read) {
  if (takes_adapted_linears(x, weights)) return adapted_linears(x, weights, is_read);
  // The gradient of DoRA's lengths is computed from the product.
  const auto has_lengths = [](const LinearWeights& one) { return one.lora.magnitude_o.defined(); };
  std::vector<at::Tensor> results = products(x, weights, is_read || std::ranges::any_of(weights, has_lengths));
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (weights[i].lora.a_ri.defined()) results[i] = adapted(results[i], x, weights[i], is_read);
  }
  return results;
}

bool takes_gradient_in_place(const at::Tensor& weight) {
  if (!weight.is_leaf()) return false;
  const at::Tensor& grad = weight.grad();
  return grad.defined() && grad.scalar_type() == at::kFloat && grad.layout() == at::kStrided && grad.is_contiguous() &&
         grad.device() == weight.device();
}

at::Tensor widened(const at::Tensor& x) { return x.scalar_type() == at::kHalf && !x.is_cuda() ? x.to(at::kFloat) : x; }

void add_product(at::Tensor total, const at::Tensor& a, const at::Tensor& b) {
  const bool in_fp16 = a.scalar_type() == at::kHalf && at::globalContext().allowFP16AccumulationCuBLAS();
  if (a.scalar_type() == at::kFloat) {
    total.addmm_(a, b);
  } else if (a.is_cuda() && !in_fp16 && total.size(0) > 1) {  // LibTorch treats a single row as a bias
    at::addmm_out(total, total, a, b, at::kFloat);
  } else {
    add_to_floats(total, at::mm(a, b));
  }
}

void add_to_floats(at::Tensor total, const at::Tensor& addend) {
  if (addend.is_cuda() || !addend.is_contiguous()) {
    total.add_(addend);
    return;
  }
  const AddToFloats call{addend.const_data_ptr(), total.mutable_data_ptr<float>()};
  share_elements(addend.numel(), [&, dtype = kernel_dtype(addend)](std::int64_t begin, std::int64_t end) {
    layer_kernels().add(dtype, call, begin, end);
  });
}

at::Tensor weight_gradient(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b) {
  if (!takes_gradient_in_place(weight)) return at::mm(a, b);
  add_product(weight.grad(), a, b);
  return {};
}

}  // namespace rp::models
