#include <ATen/ATen.h>

#include <optional>

#include "common/text.h"
#include "models/layers/attention.h"
#include "models/layers/documents.h"
#include "models/layers/rotary.h"
#include "models/token_mixer.h"

namespace rp::models {

namespace {

// Shapes: n query heads, m key and value heads, d size of a head.
class Attention : public TokenMixer {
 public:
  Attention(const AttentionConfig& config, const Norm& norm, const LayerParameters& parameters)
      : config_(config),
        norm_(norm),
        output_(parameters.linear("self_attn.o_proj")),
        query_norm_(parameters.tensor("self_attn.q_norm.weight")),
        key_norm_(parameters.tensor("self_attn.k_norm.weight")),
        sinks_n_(parameters.tensor("self_attn.sinks")) {
    if (config.rope.kind != RopeConfig::Kind::kNone) tables_.emplace(config.rope, config.rotated_dim());
    for (const char* name : {"q_proj", "k_proj", "v_proj"}) qkv_.push_back(parameters.linear(cat("self_attn.", name)));
  }

  void set_dropout(double dropout) override {
    for (LinearWeights& weights : qkv_) weights.lora.dropout = dropout;
    output_.lora.dropout = dropout;
  }

  at::Tensor forward(const at::Tensor& x_bth, const at::Tensor& documents_bk) override {
    const std::vector<at::Tensor> qkv = linears(x_bth, qkv_);
    const auto [projected, gate] = queries_and_gates(qkv[0]);
    at::Tensor q_btnd = heads(projected, config_.num_heads, query_norm_);
    at::Tensor k_btmd = heads(qkv[1], config_.num_kv_heads, key_norm_);
    const at::Tensor v_btmd = qkv[2].view({x_bth.size(0), x_bth.size(1), config_.num_kv_heads, config_.head_dim});
    if (tables_) {
      RotaryTable table = tables_->of(x_bth);
      std::optional<RotaryTable> of_queries =
          growing_table(table, config_.query_growth, config_.query_growth_positions, x_bth.scalar_type());
      if (documents_bk.defined()) {
        const at::Tensor positions_bt = document_positions(documents_bk, x_bth.size(1));
        table = rotary_table_at(table, positions_bt);
        if (of_queries) of_queries = rotary_table_at(*of_queries, positions_bt);
      }
      q_btnd = rotate_heads(q_btnd, of_queries ? *of_queries : table);
      k_btmd = rotate_heads(k_btmd, table);
    }
    const AttentionRule rule{
        .scale = config_.scale, .window = config_.window, .sinks_n = sinks_n_, .documents_bk = documents_bk};
    const at::Tensor attended = causal_attention(q_btnd, k_btmd, v_btmd, rule).flatten(2);
    return linear(gate.defined() ? glu(gate, attended, Activation::kSigmoid) : attended, output_);
  }

 private:
  // Splits the queries' projection. Returns both as [b, t, n d]; without gates the second is
  // undefined.
  [[nodiscard]] std::pair<at::Tensor, at::Tensor> queries_and_gates(const at::Tensor& projected) const {
    if (!config_.has_output_gate) return {projected, {}};
    const std::vector<at::Tensor> halves =
        projected.view({projected.size(0), projected.size(1), config_.num_heads, 2 * config_.head_dim}).chunk(2, -1);
    return {halves[0].flatten(2), halves[1].flatten(2)};
  }

  // Splits a projection [b, t, count * d] into heads, and normalises them if the model does.
  [[nodiscard]] at::Tensor heads(const at::Tensor& x, std::int64_t count, const at::Tensor& weight) const {
    const bool is_whole_row = config_.head_norm == AttentionConfig::HeadNorm::kWholeRow;
    const at::Tensor rows = is_whole_row ? norm_(x, weight) : x;
    const at::Tensor x_btnd = rows.view({x.size(0), x.size(1), count, config_.head_dim});
    return is_whole_row ? x_btnd : norm_(x_btnd, weight);
  }

  const AttentionConfig config_;
  const Norm norm_;
  std::vector<LinearWeights> qkv_;
  LinearWeights output_;
  at::Tensor query_norm_, key_norm_;      // undefined, [d] or [n d], and [d] or [m d]
  at::Tensor sinks_n_;                    // undefined if there are none
  std::optional<RotaryTables> tables_{};  // none if the layer does not rotate
};

}  // namespace

std::unique_ptr<TokenMixer> make_attention(const AttentionConfig& config, const Norm& norm,
                                           const LayerParameters& parameters) {
  return std::make_unique<Attention>(config, norm, parameters);
}

}  // namespace rp::models
