#include "models/gpu_attention.h"

#include <ATen/ATen.h>
#include <ATen/SDPBackend.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <vector>

#include "models/documents.h"
#include "models/kernel_call.h"
#include "models/strict_determinism.h"

namespace rp::models {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Each head `times` times: [b, t, m * times, d].
at::Tensor repeat_heads(const at::Tensor& x_btmd, std::int64_t times) {
  return x_btmd.unsqueeze(3).expand({-1, -1, -1, times, -1}).flatten(2, 3);
}

at::Tensor of_whole_rows(const at::Tensor& q_btnd, const at::Tensor& k_btmd, const at::Tensor& v_btmd) {
  const std::int64_t members = q_btnd.size(2) / k_btmd.size(2);
  // LibTorch's kernels for fp32 on a GPU know no groups: it would form whole scores.
  const bool repeats = members > 1 && runs_on_gpu(q_btnd) && q_btnd.scalar_type() == at::kFloat;
  const at::Tensor k = repeats ? repeat_heads(k_btmd, members) : k_btmd;
  const at::Tensor v = repeats ? repeat_heads(v_btmd, members) : v_btmd;
  return at::scaled_dot_product_attention(q_btnd.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                          /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true,
                                          /*scale=*/std::nullopt, /*enable_gqa=*/q_btnd.size(2) != k.size(2))
      .transpose(1, 2);
}

at::Tensor of_each_document(const at::Tensor& q_btnd, const at::Tensor& k_btmd, const at::Tensor& v_btmd,
                            const at::Tensor& documents_bk) {
  const std::vector<std::vector<Document>> rows = documents_of_rows(documents_bk, q_btnd.size(1));
  std::vector<at::Tensor> parts;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    for (const Document& document : rows[row]) {
      const auto part = [&](const at::Tensor& x) {
        return x.narrow(0, static_cast<std::int64_t>(row), 1).narrow(1, document.first, document.length);
      };
      parts.push_back(of_whole_rows(part(q_btnd), part(k_btmd), part(v_btmd)));
    }
  }
  return at::cat(parts, 1).view(q_btnd.sizes());
}

// Whether LibTorch's flash kernel takes these tensors on this card.
bool takes_flash(const at::Tensor& q_btnd, const at::Tensor& k_btmd, const at::Tensor& v_btmd) {
  const std::int64_t d = q_btnd.size(3);
  if (!q_btnd.is_cuda() || q_btnd.scalar_type() == at::kFloat || d % 8 != 0 || d > 256) return false;
  const std::int64_t choice =
      at::_fused_sdp_choice(q_btnd.transpose(1, 2), k_btmd.transpose(1, 2), v_btmd.transpose(1, 2), /*attn_mask=*/{},
                            /*dropout_p=*/0.0, /*is_causal=*/true, /*scale=*/std::nullopt,
                            /*enable_gqa=*/q_btnd.size(2) != k_btmd.size(2));
  // cuDNN's, where LibTorch likes that better, runs on no card that flash does not run on.
  return choice == static_cast<std::int64_t>(at::SDPBackend::flash_attention) ||
         choice == static_cast<std::int64_t>(at::SDPBackend::cudnn_attention);
}

// LibTorch's attention as a graph of its own, so that its backward runs in strict deterministic mode.
struct GpuAttention : torch::autograd::Function<GpuAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const std::optional<at::Tensor>& documents_bk) {
    const c10::AutoGradMode with_grad(true);
    std::vector<at::Tensor> leaves;
    for (const at::Tensor& x : {q, k, v}) leaves.push_back(x.detach().requires_grad_(true));
    const at::Tensor out = attention_by_libtorch(leaves[0], leaves[1], leaves[2], documents_bk.value_or(at::Tensor()));
    context->saved_data["leaves"] = leaves;
    context->saved_data["out"] = out;
    return out.detach();
  }

  static variable_list backward(AutogradContext* context, const variable_list& grad_outputs) {
    TORCH_CHECK(context->saved_data.count("out") == 1, "causal_attention: a second backward is not possible on a GPU");
    const std::vector<at::Tensor> leaves = context->saved_data["leaves"].toTensorVector();
    const at::Tensor out = context->saved_data["out"].toTensor();
    context->saved_data.clear();  // what is not needed any more is released along with `leaves` and `out`
    const StrictDeterminism strict;
    variable_list grads = torch::autograd::grad({out}, leaves, {grad_outputs[0]});
    grads.resize(4);
    return grads;
  }
};

// The flash kernel over all documents of a batch at once: [b t, heads, d] and the bounds of the documents in it. No document
// is longer than a row, which is all that the launch has to know of their lengths.
struct PackedFlashAttention : torch::autograd::Function<PackedFlashAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q_btnd, const at::Tensor& k_btmd,
                            const at::Tensor& v_btmd, const at::Tensor& documents_bk) {
    const std::int64_t t = q_btnd.size(1);
    const at::Tensor bounds = document_bounds(documents_bk, t);
    const auto flat = [](const at::Tensor& x) { return x.contiguous().flatten(0, 1); };
    const at::Tensor q = flat(q_btnd), k = flat(k_btmd), v = flat(v_btmd);
    const auto [out, log_sums, random_state, unused, debug_mask] = at::_flash_attention_forward(
        q, k, v, bounds, bounds, t, t, /*dropout_p=*/0.0, /*is_causal=*/true, /*return_debug_mask=*/false);
    context->save_for_backward({q, k, v, out, log_sums, bounds, random_state, unused});
    context->saved_data["t"] = t;
    return out.view(q_btnd.sizes());
  }

  static variable_list backward(AutogradContext* context, const variable_list& grad_outputs) {
    const variable_list saved = context->get_saved_variables();
    const std::int64_t t = context->saved_data["t"].toInt();
    const at::Tensor& bounds = saved[5];
    const StrictDeterminism strict;
    const auto [grad_q, grad_k, grad_v] = at::_flash_attention_backward(
        grad_outputs[0].contiguous().flatten(0, 1), saved[0], saved[1], saved[2], saved[3], saved[4], bounds, bounds, t, t,
        /*dropout_p=*/0.0, /*is_causal=*/true, saved[6], saved[7]);
    const auto rows = [t](const at::Tensor& grad) { return grad.unflatten(0, {-1, t}); };
    return {rows(grad_q), rows(grad_k), rows(grad_v), at::Tensor()};
  }
};

}  // namespace

at::Tensor attention_by_libtorch(const at::Tensor& q_btnd, const at::Tensor& k_btmd, const at::Tensor& v_btmd,
                                 const at::Tensor& documents_bk) {
  return documents_bk.defined() ? of_each_document(q_btnd, k_btmd, v_btmd, documents_bk)
                                : of_whole_rows(q_btnd, k_btmd, v_btmd);
}

at::Tensor gpu_attention(const at::Tensor& q_btnd, const at::Tensor& k_btmd, const at::Tensor& v_btmd,
                         const at::Tensor& documents_bk) {
  // A row of one position has no second document. (The flash kernel's way for single queries does not take empty documents.)
  if (documents_bk.defined() && q_btnd.size(1) > 1 && takes_flash(q_btnd, k_btmd, v_btmd)) {
    return PackedFlashAttention::apply(q_btnd, k_btmd, v_btmd, documents_bk);
  }
  const bool has_gradient =
      c10::GradMode::is_enabled() && (q_btnd.requires_grad() || k_btmd.requires_grad() || v_btmd.requires_grad());
  if (!has_gradient) return attention_by_libtorch(q_btnd, k_btmd, v_btmd, documents_bk);
  return GpuAttention::apply(q_btnd, k_btmd, v_btmd, documents_bk.defined() ? std::make_optional(documents_bk) : std::nullopt);
}

}  // namespace rp::models
