#include "models/layers/embedding.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "common/text.h"
#include "models/layers/kernel_call.h"
#include "models/layers/linear.h"
#include "roundpipe/error.h"

namespace rp::models {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Returns the positions of `ids` sorted by id; those with equal ids remain in order.
std::vector<std::int64_t> places_by_id(const at::Tensor& ids) {
  std::vector<std::int64_t> places(ids.numel());
  std::iota(places.begin(), places.end(), 0);
  const std::int64_t* id = ids.const_data_ptr<std::int64_t>();
  std::stable_sort(places.begin(), places.end(), [id](std::int64_t a, std::int64_t b) { return id[a] < id[b]; });
  return places;
}

struct EmbedOnCpu : torch::autograd::Function<EmbedOnCpu> {
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
    // One row for each distinct id. The rows of its positions are added in order of position.
    std::vector<std::int64_t> distinct;
    std::vector<std::int64_t> row_of(places.size(), -1);
    for (const std::int64_t place : places) {
      if (id[place] == padding_id) continue;
      if (distinct.empty() || distinct.back() != id[place]) distinct.push_back(id[place]);
      row_of[place] = static_cast<std::int64_t>(distinct.size()) - 1;
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

struct EmbedOnGpu : torch::autograd::Function<EmbedOnGpu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& weight_vh, const at::Tensor& ids_bt,
                            std::int64_t padding_id) {
    TORCH_CHECK(weight_vh.is_contiguous() && ids_bt.scalar_type() == at::kLong && ids_bt.device() == weight_vh.device(),
                "embed: needs ids of int64 where the weight is, not ", ids_bt.toString());
    const at::Tensor ids = ids_bt.contiguous();
    const at::Tensor y =
        at::empty({ids.size(0), ids.size(1), weight_vh.size(1)}, weight_vh.options().requires_grad(false));
    gpu_kernels().embed(kernel_dtype(weight_vh),
                        {weight_vh.const_data_ptr(), ids.const_data_ptr<std::int64_t>(), y.mutable_data_ptr(),
                         weight_vh.size(0), weight_vh.size(1)},
                        ids.numel(), gpu_kernels().current_stream());
    context->save_for_backward({ids});
    context->saved_data["weight"] = weight_vh;
    context->saved_data["padding_id"] = padding_id;
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const at::Tensor ids = context->get_saved_variables()[0].view({-1}), grad_y = grads[0].contiguous();
    const at::Tensor weight_vh = context->saved_data["weight"].toTensor();
    const bool adds_rows = takes_gradient_in_place(weight_vh);
    const at::Tensor grad_vh =
        adds_rows ? weight_vh.grad()
                  : at::zeros(weight_vh.sizes(), weight_vh.options().dtype(at::kFloat).requires_grad(false));
    const auto [sorted_ids, places] = at::sort(ids, /*stable=*/true, /*dim=*/0, /*descending=*/false);
    gpu_kernels().embed_grad(kernel_dtype(grad_y),
                             {grad_y.const_data_ptr(), sorted_ids.const_data_ptr<std::int64_t>(),
                              places.const_data_ptr<std::int64_t>(), grad_vh.mutable_data_ptr<float>(),
                              weight_vh.size(0), weight_vh.size(1), context->saved_data["padding_id"].toInt()},
                             ids.numel(), gpu_kernels().current_stream());
    return {adds_rows ? at::Tensor() : grad_vh, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor embed(const at::Tensor& weight_vh, const at::Tensor& ids_bt, std::int64_t padding_id) {
  if (runs_on_gpu(weight_vh)) return EmbedOnGpu::apply(weight_vh, ids_bt, padding_id);
  const std::int64_t lowest = ids_bt.numel() == 0 ? 0 : ids_bt.min().item<std::int64_t>();
  const std::int64_t highest = ids_bt.numel() == 0 ? 0 : ids_bt.max().item<std::int64_t>();
  if (lowest < 0 || highest >= weight_vh.size(0)) {
    throw Error(ExitCode::kUserError,
                cat("token id ", lowest < 0 ? lowest : highest, " is outside the model's vocabulary of ",
                    weight_vh.size(0), " tokens: prepare the data with this model's tokenizer"));
  }
  return EmbedOnCpu::apply(weight_vh, ids_bt, padding_id);
}

double rounded_scale(double scale, at::ScalarType dtype) {
  return at::scalar_tensor(scale, at::kDouble).to(dtype).item<double>();
}

}  // namespace rp::models
