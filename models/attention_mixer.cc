#include <ATen/ATen.h>

#include <optional>

#include "common/text.h"
#include "models/layers/attention/attention.h"
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
    for (const char* name : {"q_proj", "k_proj", "v_proj"}) {
      LinearWeights weights = parameters.linear(cat("self_attn.", name));
      if (weights.weight_oi.defined()) qkv_.push_back(std::move(weights));
    }
  }

  void set_dropout(double dropout) override {
    for (LinearWeights& weights : qkv_) weights.lora.dropout = dropout;
    output_.lora.dropout = dropout;
  }

  at::Tensor forward(const at::Tensor& x_bth, const at::Tensor& documents_bk, KeysAndValues* shared) override {
    const std::vector<at::Tensor> qkv = linears(x_bth, qkv_);
    const auto [projected, gate] = queries_and_gates(qkv[0]);
    at::Tensor q_btnd = heads(projected, config_.num_heads, query_norm_);
    const std::optional<Rotation> rotation = tables_ ? std::optional(rotation_of(x_bth, documents_bk)) : std::nullopt;
    if (rotation) q_btnd = rotate_heads(q_btnd, rotation->queries);
    const bool is_own = !config_.keys_of_layer;
    // With values_are_keys the last projection is that of the keys.
    const auto [k_btmd, v_btmd] = is_own ? keys_and_values(qkv.at(1), qkv.back(), rotation) : *shared;
    if (is_own && shared != nullptr) *shared = {k_btmd, v_btmd};
    const AttentionRule rule{
        .scale = config_.scale, .window = config_.window, .sinks_n = sinks_n_, .documents_bk = documents_bk};
    const at::Tensor attended = causal_attention(q_btnd, k_btmd, v_btmd, rule).flatten(2);
    return linear(gate.defined() ? glu(gate, attended, Activation::kSigmoid) : attended, output_);
  }

 private:
  struct Rotation {
    RotaryTable queries, keys;
  };

  [[nodiscard]] Rotation rotation_of(const at::Tensor& x_bth, const at::Tensor& documents_bk) {
    const RotaryTable table = tables_->of(x_bth);
    Rotation rotation{table, table};
    if (auto growing =
            growing_table(table, config_.query_growth, config_.query_growth_positions, x_bth.scalar_type())) {
      rotation.queries = *growing;
    }
    if (!documents_bk.defined()) return rotation;
    const at::Tensor positions_bt = document_positions(documents_bk, x_bth.size(1));
    const bool is_one_table = rotation.queries.cosine_tr2.is_same(rotation.keys.cosine_tr2);
    rotation.keys = rotary_table_at(rotation.keys, positions_bt);
    rotation.queries = is_one_table ? rotation.keys : rotary_table_at(rotation.queries, positions_bt);
    return rotation;
  }

  [[nodiscard]] KeysAndValues keys_and_values(const at::Tensor& keys, const at::Tensor& values,
                                              const std::optional<Rotation>& rotation) const {
    at::Tensor k_btmd = heads(keys, config_.num_kv_heads, key_norm_);
    if (rotation) k_btmd = rotate_heads(k_btmd, rotation->keys);
    const at::Tensor v_btmd = values.view({values.size(0), values.size(1), config_.num_kv_heads, config_.head_dim});
    return {k_btmd, config_.normalises_values ? norm_.without_weight(v_btmd) : v_btmd};
  }

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

at::Tensor Norm::without_weight(const at::Tensor& x) const {
  return rms_norm(x, at::ones({x.size(-1)}, x.options().requires_grad(false)), epsilon, kind);
}

std::unique_ptr<TokenMixer> make_attention(const AttentionConfig& config, const Norm& norm,
                                           const LayerParameters& parameters) {
  return std::make_unique<Attention>(config, norm, parameters);
}

}  // namespace rp::models
