#include <ATen/ATen.h>

#include "models/layers/attention/attention.h"
#include "models/layers/documents.h"
#include "models/layers/rotary.h"
#include "models/token_mixer.h"

namespace rp::models {

namespace {

// Shapes: n heads, p plain and r rotated elements of a query or key, d = p + r, e elements of a
// value, q and l elements of the rows from which queries, and keys and values, are computed.
class LatentAttention : public TokenMixer {
 public:
  LatentAttention(const LatentAttentionConfig& config, const Norm& norm, const LayerParameters& parameters)
      : config_(config),
        norm_{.epsilon = config.norm_epsilon, .kind = norm.kind},
        inputs_{parameters.linear(config.query_rank > 0 ? "self_attn.q_a_proj" : "self_attn.q_proj"),
                parameters.linear("self_attn.kv_a_proj_with_mqa")},
        queries_(parameters.linear("self_attn.q_b_proj")),
        keys_and_values_(parameters.linear("self_attn.kv_b_proj")),
        output_(parameters.linear("self_attn.o_proj")),
        query_norm_q_(parameters.tensor("self_attn.q_a_layernorm.weight")),
        kv_norm_l_(parameters.tensor("self_attn.kv_a_layernorm.weight")),
        tables_(config.rope, config.rotated_dim) {}

  void set_dropout(double dropout) override {
    for (LinearWeights* weights : {&inputs_[0], &inputs_[1], &queries_, &keys_and_values_, &output_})
      weights->lora.dropout = dropout;
  }

  at::Tensor forward(const at::Tensor& x_bth, const at::Tensor& documents_bk, KeysAndValues* /*shared*/) override {
    RotaryTable table = tables_.of(x_bth);
    if (documents_bk.defined()) table = rotary_table_at(table, document_positions(documents_bk, x_bth.size(1)));
    const std::vector<at::Tensor> projected = linears(x_bth, inputs_);
    const at::Tensor q_btnd = queries(projected[0], table);
    const auto [k_btnd, v_btne] = keys_and_values(projected[1], table);
    const AttentionRule rule{.scale = config_.scale, .documents_bk = documents_bk};
    return linear(causal_attention(q_btnd, k_btnd, v_btne, rule).flatten(2), output_);
  }

 private:
  // `projected`: [b, t, q], or [b, t, n d] if queries are computed from the layer's input.
  [[nodiscard]] at::Tensor queries(const at::Tensor& projected, const RotaryTable& table) const {
    const at::Tensor all = config_.query_rank > 0 ? linear(norm_(projected, query_norm_q_), queries_) : projected;
    const std::vector<at::Tensor> parts = heads(all, config_.plain_dim, config_.rotated_dim);
    return at::cat({parts[0], rotated(parts[1], table)}, -1);
  }

  // `projected`: [b, t, l + r]. The gradient of the rotated part, which the heads share, is a sum over
  // the heads in fp32.
  [[nodiscard]] std::pair<at::Tensor, at::Tensor> keys_and_values(const at::Tensor& projected,
                                                                  const RotaryTable& table) const {
    const std::vector<at::Tensor> rows = projected.split_with_sizes({config_.kv_rank, config_.rotated_dim}, -1);
    const at::Tensor shared_bt1r = rotated(rows[1].unsqueeze(2), table);
    const std::vector<at::Tensor> parts =
        heads(linear(norm_(rows[0], kv_norm_l_), keys_and_values_), config_.plain_dim, config_.value_dim);
    return {at::cat({parts[0], shared_bt1r.expand({-1, -1, config_.num_heads, -1})}, -1), parts[1]};
  }

  // Splits each head of x [b, t, n (first + second)]: [b, t, n, first] and [b, t, n, second].
  [[nodiscard]] std::vector<at::Tensor> heads(const at::Tensor& x, std::int64_t first, std::int64_t second) const {
    return x.unflatten(-1, {config_.num_heads, first + second}).split_with_sizes({first, second}, -1);
  }

  // Rotates x [b, t, heads, r]. Pairs of neighbours become the halves that rotate_heads() rotates;
  // queries and keys then have the same order, so the scores do not change.
  [[nodiscard]] at::Tensor rotated(const at::Tensor& x, const RotaryTable& table) const {
    return rotate_heads(config_.pairs_neighbours ? x.unflatten(-1, {-1, 2}).transpose(-1, -2).flatten(-2) : x, table);
  }

  const LatentAttentionConfig config_;
  const Norm norm_;
  std::vector<LinearWeights> inputs_;  // of queries, and of keys and values
  LinearWeights queries_;              // unused if there is no row of queries
  LinearWeights keys_and_values_, output_;
  at::Tensor query_norm_q_, kv_norm_l_;
  RotaryTables tables_;
};

}  // namespace

std::unique_ptr<TokenMixer> make_latent_attention(const LatentAttentionConfig& config, const Norm& norm,
                                                  const LayerParameters& parameters) {
  return std::make_unique<LatentAttention>(config, norm, parameters);
}

}  // namespace rp::models
