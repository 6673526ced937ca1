#include "models/ops.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "common/text.h"
#include "models/kernel_call.h"
#include "roundpipe/error.h"

namespace rp::models {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Rows of a normalisation whose weight gradients are added by one thread: fixed, so that the sum has one order.
constexpr std::int64_t kRowsPerPartialSum = 64;

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_any, const at::Tensor& weight_h,
                            double epsilon) {
    const at::Tensor x = x_any.contiguous();
    const std::int64_t rows = x.numel() / x.size(-1);
    const at::Tensor y = at::empty_like(x);
    const at::Tensor rstd = at::empty({rows}, x.options().dtype(at::kFloat));
    const RmsNormRows call{x.const_data_ptr(), weight_h.const_data_ptr(), y.mutable_data_ptr(),
                           rstd.mutable_data_ptr<float>(), x.size(-1), static_cast<float>(epsilon)};
    const Element element = element_of(x);
    share_rows(rows, x.size(-1), [&](std::int64_t begin, std::int64_t end) {
      kernels().rms_norm(element, call, begin, end);
    });
    context->save_for_backward({x, weight_h, rstd});
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight_h = saved[1], &rstd = saved[2];
    const at::Tensor grad_y = grads[0].contiguous();
    const std::int64_t columns = x.size(-1);
    const std::int64_t rows = x.numel() / columns;
    const std::int64_t num_sums = (rows + kRowsPerPartialSum - 1) / kRowsPerPartialSum;
    const at::Tensor grad_x = at::empty_like(x);
    const at::Tensor partial_sums = at::zeros({std::max<std::int64_t>(num_sums, 1), columns}, rstd.options());
    RmsNormGradRows call{grad_y.const_data_ptr(), x.const_data_ptr(), weight_h.const_data_ptr(),
                         rstd.const_data_ptr<float>(), grad_x.mutable_data_ptr(), nullptr, columns};
    const Element element = element_of(x);
    float* sums = partial_sums.mutable_data_ptr<float>();
    at::parallel_for(0, num_sums, 1, [&](std::int64_t first, std::int64_t last) {
      RmsNormGradRows part = call;
      for (std::int64_t i = first; i < last; ++i) {
        part.grad_weight = sums + i * columns;
        kernels().rms_norm_grad(element, part, i * kRowsPerPartialSum, std::min(rows, (i + 1) * kRowsPerPartialSum));
      }
    });
    for (std::int64_t i = 1; i < num_sums; ++i) partial_sums[0].add_(partial_sums[i]);
    return {grad_x, partial_sums[0], at::Tensor()};
  }
};

struct Rotate : torch::autograd::Function<Rotate> {
  static at::Tensor run(const at::Tensor& x_any, const at::Tensor& cosine, const at::Tensor& sine, bool back) {
    const at::Tensor x = x_any.contiguous();
    const at::Tensor y = at::empty_like(x);
    const RotateRows call{x.const_data_ptr(), y.mutable_data_ptr(), cosine.const_data_ptr<float>(),
                          sine.const_data_ptr<float>(), x.size(1), x.size(2), x.size(3), back};
    const Element element = element_of(x);
    share_rows(x.size(0) * x.size(1), x.size(2) * x.size(3), [&](std::int64_t begin, std::int64_t end) {
      kernels().rotate(element, call, begin, end);
    });
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

struct Swiglu : torch::autograd::Function<Swiglu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate_any, const at::Tensor& up_any) {
    const at::Tensor gate = gate_any.contiguous(), up = up_any.contiguous();
    const at::Tensor y = at::empty_like(gate);
    const SwiGlu call{gate.const_data_ptr(), up.const_data_ptr(), y.mutable_data_ptr()};
    const Element element = element_of(gate);
    share_elements(gate.numel(), [&](std::int64_t begin, std::int64_t end) {
      kernels().swiglu(element, call, begin, end);
    });
    context->save_for_backward({gate, up});
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor grad_y = grads[0].contiguous();
    const at::Tensor grad_gate = at::empty_like(saved[0]), grad_up = at::empty_like(saved[1]);
    const SwiGluGrad call{grad_y.const_data_ptr(), saved[0].const_data_ptr(), saved[1].const_data_ptr(),
                          grad_gate.mutable_data_ptr(), grad_up.mutable_data_ptr()};
    const Element element = element_of(grad_y);
    share_elements(grad_y.numel(), [&](std::int64_t begin, std::int64_t end) {
      kernels().swiglu_grad(element, call, begin, end);
    });
    return {grad_gate, grad_up};
  }
};

// The places of `ids` sorted by id, equal ids in order of place.
std::vector<std::int64_t> places_by_id(const at::Tensor& ids) {
  std::vector<std::int64_t> places(static_cast<std::size_t>(ids.numel()));
  std::iota(places.begin(), places.end(), 0);
  const std::int64_t* id = ids.const_data_ptr<std::int64_t>();
  std::stable_sort(places.begin(), places.end(), [id](std::int64_t a, std::int64_t b) { return id[a] < id[b]; });
  return places;
}

struct Embed : torch::autograd::Function<Embed> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& weight_vh, const at::Tensor& ids_bt,
                            std::int64_t padding_id) {
    const at::Tensor ids = ids_bt.contiguous();
    context->save_for_backward({ids});
    context->saved_data["vocabulary"] = weight_vh.size(0);
    context->saved_data["padding_id"] = padding_id;
    return weight_vh.index_select(0, ids.reshape({-1})).view({ids.size(0), ids.size(1), weight_vh.size(1)});
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const at::Tensor ids = context->get_saved_variables()[0];
    const std::int64_t hidden = grads[0].size(-1);
    const at::Tensor grad_y = grads[0].to(at::kFloat).contiguous();
    const std::int64_t* id = ids.const_data_ptr<std::int64_t>();
    const std::vector<std::int64_t> places = places_by_id(ids);
    const std::int64_t padding_id = context->saved_data["padding_id"].toInt();
    // One row per distinct id; the rows of its positions are added in order of position.
    std::vector<std::int64_t> distinct;
    std::vector<std::int64_t> row_of(places.size(), -1);
    for (const std::int64_t place : places) {
      if (id[place] == padding_id) continue;
      if (distinct.empty() || distinct.back() != id[place]) distinct.push_back(id[place]);
      row_of[static_cast<std::size_t>(place)] = static_cast<std::int64_t>(distinct.size()) - 1;
    }
    const auto num_rows = static_cast<std::int64_t>(distinct.size());
    const at::Tensor values = at::zeros({num_rows, hidden}, grad_y.options());
    const float* from = grad_y.const_data_ptr<float>();
    float* to = values.mutable_data_ptr<float>();
    at::parallel_for(0, hidden, 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::size_t place = 0; place < row_of.size(); ++place) {
        if (row_of[place] < 0) continue;
        const float* source = from + static_cast<std::int64_t>(place) * hidden;
        float* target = to + row_of[place] * hidden;
        for (std::int64_t i = begin; i < end; ++i) target[i] += source[i];
      }
    });
    const at::Tensor rows = at::tensor(distinct, at::kLong).view({1, num_rows});
    const std::int64_t vocabulary = context->saved_data["vocabulary"].toInt();
    return {at::_sparse_coo_tensor_unsafe(rows, values, {vocabulary, hidden}, values.options().layout(at::kSparse),
                                          /*is_coalesced=*/true),
            at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight_h, double epsilon) {
  return RmsNorm::apply(x, weight_h, epsilon);
}

at::Tensor rotate_heads(const at::Tensor& x_btnd, const RotaryTable& table) {
  return Rotate::apply(x_btnd, table.cosine_td2, table.sine_td2);
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) { return Swiglu::apply(gate, up); }

at::Tensor embed(const at::Tensor& weight_vh, const at::Tensor& ids_bt, std::int64_t padding_id) {
  const std::int64_t lowest = ids_bt.numel() == 0 ? 0 : ids_bt.min().item<std::int64_t>();
  const std::int64_t highest = ids_bt.numel() == 0 ? 0 : ids_bt.max().item<std::int64_t>();
  if (lowest < 0 || highest >= weight_vh.size(0)) {
    throw Error(ExitCode::kUserError,
                cat("token id ", lowest < 0 ? lowest : highest, " is outside the model's vocabulary of ",
                    weight_vh.size(0), " tokens: prepare the data with this model's tokenizer"));
  }
  return Embed::apply(weight_vh, ids_bt, padding_id);
}

}  // namespace rp::models
