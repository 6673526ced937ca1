#include "models/layers/grouped_linear.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <vector>

#include "models/layers/kernel_call.h"
#include "models/layers/linear.h"

namespace rp::models {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Returns the dtype in which products of this tensor are computed.
at::ScalarType product_dtype(const at::Tensor& x) {
  return x.scalar_type() == at::kHalf && x.is_cpu() ? at::kFloat : x.scalar_type();
}

// Returns whether LibTorch has a kernel for all experts that supports these tensors and reads the
// numbers of rows from the GPU's memory.
bool takes_libtorchs(const at::Tensor& x_nh, const at::Tensor& weight_eoh) {
  return gpu_kernels().libtorch_groups_bf16 && x_nh.scalar_type() == at::kBFloat16 && x_nh.size(0) > 0 &&
         weight_eoh.size(1) % 8 == 0 && weight_eoh.size(2) % 8 == 0;
}

// The rows of one expert.
struct ExpertRows {
  std::int64_t expert, first, count;
};

// oneDNN generates code for each number of rows that it meets, which takes ten times as long as
// running an expert's product. So its products of bf16 have a multiple of this number of rows.
constexpr std::int64_t kRowStep = 32;

std::int64_t padded_count(const at::Tensor& rows, std::int64_t count) {
  return rows.scalar_type() == at::kBFloat16 ? (count + kRowStep - 1) / kRowStep * kRowStep : count;
}

// Computes y [count, o] = rows of x times weight [h, o]. Also computes rows of other experts to
// reach a padded number of rows.
void multiply_rows(const at::Tensor& x_nh, const ExpertRows& rows, const at::Tensor& weight_ho, at::Tensor y_no) {
  const std::int64_t padded = padded_count(x_nh, rows.count);
  if (padded == rows.count || padded > x_nh.size(0)) {
    at::mm_out(y_no, x_nh.narrow(0, rows.first, rows.count), weight_ho);
    return;
  }
  const std::int64_t first = std::min(rows.first, x_nh.size(0) - padded);
  y_no.copy_(at::mm(x_nh.narrow(0, first, padded), weight_ho).narrow(0, rows.first - first, rows.count));
}

// Returns these rows, followed by rows of zeros up to a padded number.
at::Tensor padded_rows(const at::Tensor& x_nh, const ExpertRows& rows) {
  const at::Tensor own = x_nh.narrow(0, rows.first, rows.count);
  const std::int64_t padded = padded_count(x_nh, rows.count);
  return padded == rows.count ? own : at::constant_pad_nd(own, {0, 0, 0, padded - rows.count});
}

// Calls visit(rows) for each expert that has rows. The experts are divided among LibTorch's
// threads, because the product of one expert is too small for several threads.
template <typename Visit>
void for_each_expert(const at::Tensor& counts_e, std::int64_t num_rows, const Visit& visit) {
  const at::Tensor counts = counts_e.to(at::kCPU).contiguous();
  std::vector<ExpertRows> experts;
  std::int64_t first = 0;
  for (std::int64_t expert = 0; expert < counts.numel(); ++expert) {
    const std::int64_t count = counts.const_data_ptr<std::int64_t>()[expert];
    TORCH_CHECK(count >= 0 && count <= num_rows - first, "grouped_linear: expert ", expert, " has ", count,
                " rows, but ", num_rows - first, " of ", num_rows, " are left");
    if (count > 0) experts.push_back({expert, first, count});
    first += count;
  }
  TORCH_CHECK(first == num_rows, "grouped_linear: the experts have ", first, " rows together, but there are ",
              num_rows);
  at::parallel_for(0, static_cast<std::int64_t>(experts.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    const c10::NoGradGuard no_grad;  // the mode is set for each thread separately
    for (std::int64_t i = begin; i < end; ++i) visit(experts[i]);
  });
}

// For the CPU: one product per expert.
struct ExpertByExpert {
  static at::Tensor prepared(const at::Tensor& /*x_nh*/, const at::Tensor& counts_e) { return counts_e; }

  static at::Tensor forward(const at::Tensor& x_nh, const at::Tensor& weight_eoh, const at::Tensor& counts_e) {
    const at::ScalarType dtype = product_dtype(x_nh);
    const at::Tensor y_no = at::empty({x_nh.size(0), weight_eoh.size(1)}, x_nh.options());
    for_each_expert(counts_e, x_nh.size(0), [&](const ExpertRows& rows) {
      const at::Tensor rows_no = y_no.narrow(0, rows.first, rows.count), weight_ho = weight_eoh[rows.expert].t();
      if (dtype == x_nh.scalar_type()) {
        multiply_rows(x_nh, rows, weight_ho, rows_no);
      } else {
        rows_no.copy_(at::mm(x_nh.narrow(0, rows.first, rows.count).to(dtype), weight_ho.to(dtype)));
      }
    });
    return y_no;
  }

  static at::Tensor grad_x(const at::Tensor& grad_no, const at::Tensor& weight_eoh, const at::Tensor& counts_e) {
    return forward(grad_no, weight_eoh.transpose(1, 2), counts_e);
  }

  static at::Tensor grad_weight(const at::Tensor& grad_no, const at::Tensor& x_nh, const at::Tensor& weight_eoh,
                                const at::Tensor& counts_e) {
    const at::ScalarType dtype = product_dtype(x_nh);
    const at::Tensor grad_eoh = at::zeros(weight_eoh.sizes(), x_nh.options().dtype(dtype));
    for_each_expert(counts_e, x_nh.size(0), [&](const ExpertRows& rows) {
      at::Tensor grad_oh = grad_eoh[rows.expert];
      at::mm_out(grad_oh, padded_rows(grad_no, rows).to(dtype).t(), padded_rows(x_nh, rows).to(dtype));
    });
    return grad_eoh;
  }

  // Each product is rounded as in grad_weight() before it is added.
  static void add_grad_weight(const at::Tensor& total_eoh, const at::Tensor& grad_no, const at::Tensor& x_nh,
                              const at::Tensor& counts_e) {
    const at::ScalarType dtype = product_dtype(x_nh);
    for_each_expert(counts_e, x_nh.size(0), [&](const ExpertRows& rows) {
      add_to_floats(total_eoh[rows.expert],
                    at::mm(padded_rows(grad_no, rows).to(dtype).t(), padded_rows(x_nh, rows).to(dtype)));
    });
  }
};

// All experts in one call of LibTorch.
struct OfLibtorch {
  static at::Tensor prepared(const at::Tensor& /*x_nh*/, const at::Tensor& counts_e) { return counts_e; }

  static at::Tensor ends(const at::Tensor& counts_e) { return counts_e.cumsum(0).to(at::kInt); }

  static at::Tensor forward(const at::Tensor& x_nh, const at::Tensor& weight_eoh, const at::Tensor& counts_e) {
    return at::_grouped_mm(x_nh, weight_eoh.transpose(1, 2), ends(counts_e));
  }

  static at::Tensor grad_x(const at::Tensor& grad_no, const at::Tensor& weight_eoh, const at::Tensor& counts_e) {
    return at::_grouped_mm(grad_no, weight_eoh, ends(counts_e));
  }

  static at::Tensor grad_weight(const at::Tensor& grad_no, const at::Tensor& x_nh, const at::Tensor& /*weight_eoh*/,
                                const at::Tensor& counts_e) {
    at::Tensor grad_eoh = at::_grouped_mm(grad_no.t(), x_nh, ends(counts_e));
    // On some cards LibTorch does not write the gradient of an expert without rows (pytorch issue
    // 172439).
    return grad_eoh.masked_fill_(counts_e.eq(0).view({-1, 1, 1}), 0);
  }

  static void add_grad_weight(const at::Tensor& total_eoh, const at::Tensor& grad_no, const at::Tensor& x_nh,
                              const at::Tensor& counts_e) {
    total_eoh.add_(grad_weight(grad_no, x_nh, total_eoh, counts_e));
  }
};

// All experts in one call of our kernels.
struct OfKernels {
  static at::Tensor prepared(const at::Tensor& x_nh, const at::Tensor& counts_e) {
    const std::int64_t rows = x_nh.size(0), experts = counts_e.size(0);
    const at::Tensor counts = counts_e.contiguous(),
                     plan = at::empty({expert_plan_size(rows, experts)}, counts_e.options());
    gpu_kernels().plan_experts(
        {counts.const_data_ptr<std::int64_t>(), plan.mutable_data_ptr<std::int64_t>(), rows, experts},
        gpu_kernels().current_stream());
    return plan;
  }

  static GroupedProduct call_of(const at::Tensor& rows_in, at::IntArrayRef sizes_eoh, const at::Tensor& plan) {
    return {.rows_in = rows_in.const_data_ptr(),
            .plan = plan.const_data_ptr<std::int64_t>(),
            .rows = rows_in.size(0),
            .experts = sizes_eoh[0],
            .inputs = sizes_eoh[2],
            .outputs = sizes_eoh[1]};
  }

  static at::Tensor forward(const at::Tensor& x_nh, const at::Tensor& weight_eoh, const at::Tensor& plan) {
    const at::Tensor y_no = at::empty({x_nh.size(0), weight_eoh.size(1)}, x_nh.options());
    GroupedProduct call = call_of(x_nh, weight_eoh.sizes(), plan);
    call.weight = weight_eoh.const_data_ptr();
    call.result = y_no.mutable_data_ptr();
    gpu_kernels().grouped_linear(kernel_dtype(x_nh), call, gpu_kernels().current_stream());
    return y_no;
  }

  static at::Tensor grad_x(const at::Tensor& grad_no, const at::Tensor& weight_eoh, const at::Tensor& plan) {
    const at::Tensor grad_nh = at::empty({grad_no.size(0), weight_eoh.size(2)}, grad_no.options());
    GroupedProduct call = call_of(grad_no, weight_eoh.sizes(), plan);
    call.weight = weight_eoh.const_data_ptr();
    call.result = grad_nh.mutable_data_ptr();
    gpu_kernels().grouped_linear_grad(kernel_dtype(grad_no), call, gpu_kernels().current_stream());
    return grad_nh;
  }

  static at::Tensor grad_weight(const at::Tensor& grad_no, const at::Tensor& x_nh, const at::Tensor& weight_eoh,
                                const at::Tensor& plan) {
    const at::Tensor grad_eoh = at::empty(weight_eoh.sizes(), x_nh.options());
    GroupedProduct call = call_of(grad_no, grad_eoh.sizes(), plan);
    call.other_rows_in = x_nh.const_data_ptr();
    call.result = grad_eoh.mutable_data_ptr();
    gpu_kernels().grouped_weight_grad(kernel_dtype(x_nh), call, gpu_kernels().current_stream());
    return grad_eoh;
  }

  static void add_grad_weight(const at::Tensor& total_eoh, const at::Tensor& grad_no, const at::Tensor& x_nh,
                              const at::Tensor& plan) {
    GroupedProduct call = call_of(grad_no, total_eoh.sizes(), plan);
    call.other_rows_in = x_nh.const_data_ptr();
    call.add_to = total_eoh.mutable_data_ptr<float>();
    gpu_kernels().grouped_weight_grad(kernel_dtype(x_nh), call, gpu_kernels().current_stream());
  }
};

// `prepared` is what a variant computes from the numbers of rows, once for all products with them.
template <typename Way>
struct GroupedLinear : torch::autograd::Function<GroupedLinear<Way>> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_any, const at::Tensor& weight_any,
                            const at::Tensor& counts_e) {
    const at::Tensor x_nh = x_any.contiguous(), weight_eoh = weight_any.contiguous(),
                     prepared = Way::prepared(x_nh, counts_e);
    context->save_for_backward({x_nh, weight_eoh, prepared});
    return Way::forward(x_nh, weight_eoh, prepared);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x_nh = saved[0], &weight_eoh = saved[1], &prepared = saved[2], grad_no = grads[0].contiguous();
    variable_list result(3);
    if (context->needs_input_grad(0)) result[0] = Way::grad_x(grad_no, weight_eoh, prepared);
    if (!context->needs_input_grad(1)) return result;
    if (takes_gradient_in_place(weight_eoh)) {
      Way::add_grad_weight(weight_eoh.grad(), grad_no, x_nh, prepared);
      return result;
    }
    result[1] = Way::grad_weight(grad_no, x_nh, weight_eoh, prepared);
    return result;
  }
};

}  // namespace

at::Tensor grouped_linear(const at::Tensor& x_nh, const at::Tensor& weight_eoh, const at::Tensor& counts_e) {
  TORCH_CHECK(x_nh.dim() == 2 && weight_eoh.dim() == 3 && x_nh.size(1) == weight_eoh.size(2) &&
                  x_nh.scalar_type() == weight_eoh.scalar_type(),
              "grouped_linear: rows ", x_nh.toString(), " ", x_nh.sizes(), " do not fit weights ",
              weight_eoh.toString(), " ", weight_eoh.sizes());
  TORCH_CHECK(counts_e.scalar_type() == at::kLong && counts_e.dim() == 1 && counts_e.size(0) == weight_eoh.size(0),
              "grouped_linear: needs a number of rows of int64 for each of ", weight_eoh.size(0), " experts, not ",
              counts_e.toString(), " ", counts_e.sizes());
  if (!runs_on_gpu(x_nh)) return GroupedLinear<ExpertByExpert>::apply(x_nh, weight_eoh, counts_e);
  return takes_libtorchs(x_nh, weight_eoh) ? GroupedLinear<OfLibtorch>::apply(x_nh, weight_eoh, counts_e)
                                           : GroupedLinear<OfKernels>::apply(x_nh, weight_eoh, counts_e);
}

}  // namespace rp::models
