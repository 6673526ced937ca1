#include "models/layers/attention/gpu_attention.h"

#include <ATen/ATen.h>
#include <ATen/SDPBackend.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "kernels/blocked_attention.h"
#include "models/layers/attention/blocked_attention.h"
#include "models/layers/documents.h"
#include "models/layers/kernel_call.h"
#include "models/layers/strict_determinism.h"

namespace rp::models {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Repeats each head `times` times: [b, t, m * times, d].
at::Tensor repeat_heads(const at::Tensor& x_btmd, std::int64_t times) {
  return x_btmd.unsqueeze(3).expand({-1, -1, -1, times, -1}).flatten(2, 3);
}

// Computes the complete scores, for cases in which LibTorch's kernels do not support a window or
// sinks.
at::Tensor by_whole_scores(const at::Tensor& q_btnd, const at::Tensor& k_btmd, const at::Tensor& v_btme,
                           const AttentionRule& rule) {
  const std::int64_t t = q_btnd.size(1), members = q_btnd.size(2) / k_btmd.size(2);
  const at::Tensor q = q_btnd.transpose(1, 2), k = repeat_heads(k_btmd, members).transpose(1, 2);
  const at::Tensor v = repeat_heads(v_btme, members).transpose(1, 2);
  const at::Tensor positions = at::arange(t, q.options().dtype(at::kLong));
  const at::Tensor distances = positions.unsqueeze(1) - positions;
  at::Tensor hidden = distances < 0;
  if (rule.window > 0) hidden = hidden.logical_or(distances >= rule.window);
  const at::ScalarType wide = at::promote_types(q.scalar_type(), at::kFloat);
  at::Tensor scores = (at::matmul(q, k.transpose(2, 3)).to(wide) * scale_of(rule, q_btnd.size(3)))
                          .masked_fill(hidden, -std::numeric_limits<double>::infinity());
  if (rule.sinks_n.defined()) {
    const at::Tensor sinks = rule.sinks_n.to(wide).view({1, -1, 1, 1}).expand({scores.size(0), -1, t, 1});
    scores = at::cat({scores, sinks}, -1);
  }
  const at::Tensor probabilities = scores.softmax(-1).narrow(-1, 0, t).to(v.scalar_type());
  return at::matmul(probabilities, v).transpose(1, 2);
}

at::Tensor of_whole_rows(const at::Tensor& q_btnd, const at::Tensor& k_btmd, const at::Tensor& v_btme,
                         const AttentionRule& rule) {
  if (rule.window > 0 || rule.sinks_n.defined()) return by_whole_scores(q_btnd, k_btmd, v_btme, rule);
  const std::int64_t members = q_btnd.size(2) / k_btmd.size(2);
  // LibTorch's kernels for fp32 on a GPU do not support groups: it would compute the complete
  // scores.
  const bool repeats = members > 1 && runs_on_gpu(q_btnd) && q_btnd.scalar_type() == at::kFloat;
  const at::Tensor k = repeats ? repeat_heads(k_btmd, members) : k_btmd;
  const at::Tensor v = repeats ? repeat_heads(v_btme, members) : v_btme;
  return at::scaled_dot_product_attention(q_btnd.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                          /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true, rule.scale,
                                          /*enable_gqa=*/q_btnd.size(2) != k.size(2))
      .transpose(1, 2);
}

at::Tensor of_each_document(const at::Tensor& q_btnd, const at::Tensor& k_btmd, const at::Tensor& v_btme,
                            const AttentionRule& rule) {
  const std::vector<std::vector<Document>> rows = documents_of_rows(rule.documents_bk, q_btnd.size(1));
  std::vector<at::Tensor> parts;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    for (const Document& document : rows[row]) {
      const auto part = [&](const at::Tensor& x) {
        return x.narrow(0, static_cast<std::int64_t>(row), 1).narrow(1, document.first, document.length);
      };
      parts.push_back(of_whole_rows(part(q_btnd), part(k_btmd), part(v_btme), rule));
    }
  }
  return at::cat(parts, 1).view({q_btnd.size(0), q_btnd.size(1), q_btnd.size(2), v_btme.size(3)});
}

// Returns whether LibTorch's flash kernel supports these tensors on this card.
bool takes_flash(const at::Tensor& q_btnd, const at::Tensor& k_btmd, const at::Tensor& v_btmd) {
  const std::int64_t d = q_btnd.size(3);
  if (!q_btnd.is_cuda() || q_btnd.scalar_type() == at::kFloat || d % 8 != 0 || d > kLargestFlashHead) return false;
  const std::int64_t choice =
      at::_fused_sdp_choice(q_btnd.transpose(1, 2), k_btmd.transpose(1, 2), v_btmd.transpose(1, 2), /*attn_mask=*/{},
                            /*dropout_p=*/0.0, /*is_causal=*/true, /*scale=*/std::nullopt,
                            /*enable_gqa=*/q_btnd.size(2) != k_btmd.size(2));
  // cuDNN's kernel, which LibTorch may prefer, runs only on cards on which the flash kernel runs,
  // too.
  return choice == static_cast<std::int64_t>(at::SDPBackend::flash_attention) ||
         choice == static_cast<std::int64_t>(at::SDPBackend::cudnn_attention);
}

// Runs LibTorch's attention as a graph of its own, so that its backward runs in strict
// deterministic mode.
struct GpuAttention : torch::autograd::Function<GpuAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const std::optional<at::Tensor>& sinks_n, const std::optional<at::Tensor>& documents_bk,
                            std::optional<double> scale, std::int64_t window) {
    const c10::AutoGradMode with_grad(true);
    std::vector<at::Tensor> leaves;
    for (const at::Tensor& x : {q, k, v}) leaves.push_back(x.detach().requires_grad_(true));
    AttentionRule rule{.scale = scale, .window = window, .documents_bk = documents_bk.value_or(at::Tensor())};
    if (sinks_n) leaves.push_back(rule.sinks_n = sinks_n->detach().to(at::kFloat).requires_grad_(true));
    const at::Tensor out = attention_by_libtorch(leaves[0], leaves[1], leaves[2], rule);
    context->saved_data["leaves"] = leaves;
    context->saved_data["out"] = out;
    return out.detach();
  }

  static variable_list backward(AutogradContext* context, const variable_list& grad_outputs) {
    TORCH_CHECK(context->saved_data.count("out") == 1, "causal_attention: a second backward is not possible on a GPU");
    const std::vector<at::Tensor> leaves = context->saved_data["leaves"].toTensorVector();
    const at::Tensor out = context->saved_data["out"].toTensor();
    context->saved_data.clear();  // data that is not needed any more is released together with `leaves` and `out`
    const StrictDeterminism strict;
    variable_list grads = torch::autograd::grad({out}, leaves, {grad_outputs[0]});
    grads.resize(7);
    return grads;
  }
};

// Runs the flash kernel for one document in each row (`bounds` is undefined), or for all documents
// of a batch at once: [b t, heads, d], and the bounds of the documents in it. No document is longer
// than a row, and the launch needs to know no more about their lengths.
struct FlashAttention : torch::autograd::Function<FlashAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q_btnd, const at::Tensor& k_btmd,
                            const at::Tensor& v_btmd, const std::optional<at::Tensor>& sinks_n,
                            const std::optional<at::Tensor>& documents_bk, double scale, std::int64_t window) {
    const std::int64_t t = q_btnd.size(1);
    const at::Tensor bounds = documents_bk ? document_bounds(*documents_bk, t) : at::Tensor();
    const auto rows = [&](const at::Tensor& x) {
      return bounds.defined() ? x.contiguous().flatten(0, 1) : x.contiguous();
    };
    const at::Tensor q = rows(q_btnd), k = rows(k_btmd), v = rows(v_btmd);
    auto [out, log_sums, random_state, unused, debug_mask] = at::_flash_attention_forward(
        q, k, v, where_defined(bounds), where_defined(bounds), t, t, /*dropout_p=*/0.0, /*is_causal=*/true,
        /*return_debug_mask=*/false, scale, left_of(window), right_of(window));
    at::Tensor of_sinks;
    if (sinks_n) {
      // If the sink is one more score, the remaining share of a query's probability is 1 - exp(sink
      // - log_sum).
      const at::Tensor sinks = sinks_n->detach().to(at::kFloat).unsqueeze(-1);  // [n, 1] next to [b, n, t] or [n, b t]
      const at::Tensor all_sums = at::logaddexp(log_sums, sinks);
      out = (out * by_head(at::exp(log_sums - all_sums), out)).to(out.scalar_type());
      of_sinks = at::exp(sinks - all_sums);
      log_sums = all_sums;
    }
    context->save_for_backward({q, k, v, out, log_sums, bounds, random_state, unused, of_sinks});
    context->saved_data["t"] = t;
    context->saved_data["scale"] = scale;
    context->saved_data["window"] = window;
    return out.view(q_btnd.sizes());
  }

  static variable_list backward(AutogradContext* context, const variable_list& grad_outputs) {
    const variable_list saved = context->get_saved_variables();
    const std::int64_t t = context->saved_data["t"].toInt(), window = context->saved_data["window"].toInt();
    const at::Tensor &bounds = saved[5], &of_sinks = saved[8];
    const at::Tensor grad_out = grad_outputs[0].contiguous().view(saved[3].sizes());
    const StrictDeterminism strict;
    auto [grad_q, grad_k, grad_v] =
        at::_flash_attention_backward(grad_out, saved[0], saved[1], saved[2], saved[3], saved[4], bounds, bounds, t, t,
                                      /*dropout_p=*/0.0, /*is_causal=*/true, saved[6], saved[7],
                                      context->saved_data["scale"].toDouble(), left_of(window), right_of(window));
    at::Tensor grad_sinks_n;
    if (of_sinks.defined()) {
      // The sink has no value. So the gradient of its score is its probability times the negative
      // of the term that the gradients of all scores have in common.
      const at::Tensor deltas = (grad_out.to(at::kFloat) * saved[3].to(at::kFloat)).sum(-1);
      const at::Tensor products = of_sinks * deltas.transpose(-1, -2);
      grad_sinks_n = -(products.dim() == 3 ? products.sum(at::IntArrayRef{0, 2}) : products.sum(1));
    }
    const auto rows = [&](const at::Tensor& grad) { return bounds.defined() ? grad.unflatten(0, {-1, t}) : grad; };
    return {rows(grad_q), rows(grad_k), rows(grad_v), grad_sinks_n, at::Tensor(), at::Tensor(), at::Tensor()};
  }

 private:
  // Return the numbers of neighbours on the left and on the right that a position sees.
  static std::optional<std::int64_t> left_of(std::int64_t window) {
    return window > 0 ? std::make_optional(window - 1) : std::nullopt;
  }
  static std::optional<std::int64_t> right_of(std::int64_t window) {
    return window > 0 ? std::make_optional(std::int64_t{0}) : std::nullopt;
  }
  // Expands [b, n, t] or [n, b t] to a factor of [b, t, n, d] or [b t, n, d].
  static at::Tensor by_head(const at::Tensor& factors, const at::Tensor& out) {
    return factors.transpose(-1, -2).unsqueeze(-1).expand({out.sizes()});
  }
};

}  // namespace

at::Tensor attention_by_libtorch(const at::Tensor& q_btnd, const at::Tensor& k_btmd, const at::Tensor& v_btme,
                                 const AttentionRule& rule) {
  return rule.documents_bk.defined() ? of_each_document(q_btnd, k_btmd, v_btme, rule)
                                     : of_whole_rows(q_btnd, k_btmd, v_btme, rule);
}

at::Tensor gpu_attention(const at::Tensor& q_btnd, const at::Tensor& k_btmd, const at::Tensor& v_btme,
                         const AttentionRule& rule) {
  const std::int64_t t = q_btnd.size(1), d = q_btnd.size(3), e = v_btme.size(3);
  if (std::max(d, e) > kLargestFlashHead && !rule.sinks_n.defined())
    return blocked_attention(q_btnd, k_btmd, v_btme, rule);
  if (d != e) {
    const auto padded = [size = std::max(d, e)](const at::Tensor& x) {
      return x.size(3) == size ? x : at::constant_pad_nd(x, {0, size - x.size(3)});
    };
    AttentionRule same_scale = rule;
    same_scale.scale = scale_of(rule, d);
    return gpu_attention(padded(q_btnd), padded(k_btmd), padded(v_btme), same_scale).narrow(3, 0, e);
  }
  // A row of one position has no second document. (The flash kernel's variant for single queries
  // does not support empty documents.)
  const bool has_documents = rule.documents_bk.defined() && t > 1;
  const std::int64_t window = rule.window < t ? rule.window : 0;
  const std::optional<at::Tensor> sinks = where_defined(rule.sinks_n);
  const std::optional<at::Tensor> documents = has_documents ? std::make_optional(rule.documents_bk) : std::nullopt;
  if ((has_documents || window > 0 || sinks) && takes_flash(q_btnd, k_btmd, v_btme)) {
    return FlashAttention::apply(q_btnd, k_btmd, v_btme, sinks, documents, scale_of(rule, d), window);
  }
  const bool has_gradient =
      c10::GradMode::is_enabled() &&
      (q_btnd.requires_grad() || k_btmd.requires_grad() || v_btme.requires_grad() || (sinks && sinks->requires_grad()));
  if (!has_gradient) return attention_by_libtorch(q_btnd, k_btmd, v_btme, rule);
  return GpuAttention::apply(q_btnd, k_btmd, v_btme, sinks, where_defined(rule.documents_bk), rule.scale, rule.window);
}

}  // namespace rp::models
