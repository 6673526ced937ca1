#include "models/layers/delta_net/convolution.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>

#include "models/layers/delta_net/gpu_operators.h"
#include "models/layers/delta_net/token_runs.h"
#include "models/layers/kernel_call.h"

namespace rp::models {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kConvolution = "causal_convolution";

// The number of channels that a thread processes at a time, so that the tokens that its sums share
// stay in the cache.
constexpr std::int64_t kChannelsPerTask = 256;

// The weight as the kernels read it: fp32 [taps, channels].
at::Tensor kernel_weight(const at::Tensor& weight_cj) {
  return weight_cj.detach().flatten(1).t().to(at::kFloat).contiguous();
}

// Calls run(row, document, first channel, end) for all rows and parts of the channels, in several
// threads. The documents of a row and part follow each other in one thread.
template <typename Run>
void for_each_document(const at::Tensor& y_btc, const at::Tensor& documents_bk, const Run& run) {
  const auto rows = token_runs(kConvolution, documents_bk, y_btc.size(0), y_btc.size(1));
  const std::int64_t channels = y_btc.size(2), parts = (channels + kChannelsPerTask - 1) / kChannelsPerTask;
  at::parallel_for(0, y_btc.size(0) * parts, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = i / parts, first = i % parts * kChannelsPerTask;
      for (const Document& document : rows[row]) {
        run(row, document, first, std::min(channels, first + kChannelsPerTask));
      }
    }
  });
}

struct CausalConvolution : torch::autograd::Function<CausalConvolution> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& y_any, const at::Tensor& weight_cj,
                            const std::optional<at::Tensor>& documents) {
    const at::Tensor y = y_any.contiguous(), documents_bk = documents.value_or(at::Tensor());
    const at::Tensor x = at::empty_like(y), weight = kernel_weight(weight_cj);
    const std::int64_t t = y.size(1), channels = y.size(2);
    const DType dtype = kernel_dtype(y);
    const auto* from = static_cast<const char*>(y.const_data_ptr());
    auto* to = static_cast<char*>(x.mutable_data_ptr());
    for_each_document(
        y, documents_bk, [&](std::int64_t row, const Document& document, std::int64_t first, std::int64_t end) {
          const std::int64_t at = (row * t + document.first) * channels * y.element_size();
          delta_kernels().convolution(
              dtype, {from + at, weight.const_data_ptr<float>(), to + at, document.length, channels, weight.size(0)},
              first, end);
        });
    context->save_for_backward({y, weight_cj, documents_bk});
    return x;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &y = saved[0], grad_x = grads[0].contiguous();
    const at::Tensor grad_y = at::empty_like(y), weight = kernel_weight(saved[1]);
    const std::int64_t b = y.size(0), t = y.size(1), channels = y.size(2), taps = weight.size(0);
    // The gradients of the weight by each row.
    const bool is_trained = context->needs_input_grad(1);
    const at::Tensor grad_weights =
        is_trained ? at::zeros({std::max<std::int64_t>(b, 1), taps, channels}, weight.options()) : at::Tensor();
    const DType dtype = kernel_dtype(y);
    for_each_document(y, saved[2],
                      [&](std::int64_t row, const Document& document, std::int64_t first, std::int64_t end) {
                        const std::int64_t at = (row * t + document.first) * channels * y.element_size();
                        const ConvolutionGrad call{
                            static_cast<const char*>(grad_x.const_data_ptr()) + at,
                            static_cast<const char*>(y.const_data_ptr()) + at,
                            weight.const_data_ptr<float>(),
                            static_cast<char*>(grad_y.mutable_data_ptr()) + at,
                            is_trained ? grad_weights.mutable_data_ptr<float>() + row * taps * channels : nullptr,
                            document.length,
                            channels,
                            taps};
                        delta_kernels().convolution_grad(dtype, call, first, end);
                      });
    return {grad_y, is_trained ? sum_in_order(grad_weights).t().contiguous().view(saved[1].sizes()) : at::Tensor(),
            at::Tensor()};
  }
};

}  // namespace

at::Tensor causal_convolution(const at::Tensor& y_btc, const at::Tensor& weight_cj, const at::Tensor& documents_bk) {
  check_device<2>(kConvolution, {y_btc, weight_cj});
  const bool is_matrix = weight_cj.dim() == 2 || (weight_cj.dim() == 3 && weight_cj.size(1) == 1);
  TORCH_CHECK(y_btc.dim() == 3 && is_matrix && y_btc.size(2) == weight_cj.size(0), kConvolution, ": y ", y_btc.sizes(),
              " and weight ", weight_cj.sizes(), " do not fit [b, t, c] and [c, taps]");
  TORCH_CHECK(weight_cj.size(-1) >= 1 && weight_cj.size(-1) <= kMaxConvolutionTaps, kConvolution, ": supports 1 to ",
              kMaxConvolutionTaps, " taps, not ", weight_cj.size(-1));
  if (runs_on_gpu(y_btc)) return gpu_convolution(y_btc, weight_cj, documents_bk);
  return CausalConvolution::apply(y_btc, weight_cj, where_defined(documents_bk));
}

}  // namespace rp::models
