#include "models/layers/delta_net/gated_norm.h"

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

constexpr const char* kGatedNorm = "gated_rms_norm";

// The number of rows whose gradients of the weight are added by one thread. It is fixed, so that
// the sum has a fixed order.
constexpr std::int64_t kRowsPerNormSum = 256;

std::int64_t norm_rows_of(const at::Tensor& o) { return o.numel() / std::max<std::int64_t>(1, o.size(-1)); }

struct GatedRmsNorm : torch::autograd::Function<GatedRmsNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& o_any, const at::Tensor& z_any,
                            const at::Tensor& weight_e, double epsilon) {
    const at::Tensor o = o_any.contiguous(), z = z_any.contiguous(), weight = weight_e.contiguous();
    const std::int64_t rows = norm_rows_of(o);
    const at::Tensor y = at::empty_like(o), rstd = at::empty({rows}, o.options().dtype(at::kFloat));
    const GatedNorm call{o.const_data_ptr(),
                         z.const_data_ptr(),
                         weight.const_data_ptr(),
                         y.mutable_data_ptr(),
                         rstd.mutable_data_ptr<float>(),
                         o.size(-1),
                         static_cast<float>(epsilon)};
    const DType dtype = kernel_dtype(o);
    share_rows(rows, o.size(-1),
               [&](std::int64_t begin, std::int64_t end) { delta_kernels().gated_norm(dtype, call, begin, end); });
    context->save_for_backward({o, z, weight_e, rstd});
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &o = saved[0], &z = saved[1], weight = saved[2].contiguous();
    const at::Tensor grad_y = grads[0].contiguous(), grad_o = at::empty_like(o), grad_z = at::empty_like(z);
    const std::int64_t rows = norm_rows_of(o), columns = o.size(-1);
    const std::int64_t num_sums = (rows + kRowsPerNormSum - 1) / kRowsPerNormSum;
    const at::Tensor partial_sums = at::zeros({std::max<std::int64_t>(num_sums, 1), columns}, saved[3].options());
    const GatedNormGrad call{grad_y.const_data_ptr(),
                             o.const_data_ptr(),
                             z.const_data_ptr(),
                             weight.const_data_ptr(),
                             saved[3].const_data_ptr<float>(),
                             grad_o.mutable_data_ptr(),
                             grad_z.mutable_data_ptr(),
                             nullptr,
                             columns};
    const DType dtype = kernel_dtype(o);
    float* sums = partial_sums.mutable_data_ptr<float>();
    share_rows(num_sums, kRowsPerNormSum * columns, [&](std::int64_t first, std::int64_t last) {
      GatedNormGrad part = call;
      for (std::int64_t i = first; i < last; ++i) {
        part.grad_weight = sums + i * columns;
        delta_kernels().gated_norm_grad(dtype, part, i * kRowsPerNormSum, std::min(rows, (i + 1) * kRowsPerNormSum));
      }
    });
    return {grad_o, grad_z, sum_in_order(partial_sums), at::Tensor()};
  }
};

}  // namespace

at::Tensor gated_rms_norm(const at::Tensor& o_bthe, const at::Tensor& z_bthe, const at::Tensor& weight_e,
                          double epsilon) {
  check_device<3>(kGatedNorm, {o_bthe, z_bthe, weight_e});
  TORCH_CHECK(o_bthe.dim() >= 1 && o_bthe.sizes() == z_bthe.sizes() && weight_e.dim() == 1 &&
                  weight_e.size(0) == o_bthe.size(-1),
              kGatedNorm, ": o ", o_bthe.sizes(), ", z ", z_bthe.sizes(), " and weight ", weight_e.sizes(),
              " do not fit");
  TORCH_CHECK(o_bthe.scalar_type() == z_bthe.scalar_type() && o_bthe.scalar_type() == weight_e.scalar_type(),
              kGatedNorm, ": needs one dtype, not ", o_bthe.toString(), ", ", z_bthe.toString(), " and ",
              weight_e.toString());
  if (runs_on_gpu(o_bthe)) return gpu_gated_norm(o_bthe, z_bthe, weight_e, epsilon);
  return GatedRmsNorm::apply(o_bthe, z_bthe, weight_e, epsilon);
}

}  // namespace rp::models
