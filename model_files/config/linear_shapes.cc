#include "model_files/config/linear_shapes.h"

#include <utility>

namespace rp {
namespace {

class LinearList {
 public:
  explicit LinearList(std::int64_t hidden) : hidden_(hidden) {}

  // Adds the layers of the part in which tokens exchange data.
  void add_mixer(const DecoderLayerConfig& layer) {
    if (layer.delta_net) {
      add_delta_net(*layer.delta_net);
    } else if (layer.latent_attention) {
      add_latent_attention(*layer.latent_attention);
    } else {
      add_attention(layer.attention);
    }
  }

  // Adds the layers of the other part.
  void add_feed_forward(const MlpConfig& mlp) {
    const std::int64_t num_experts = mlp.experts ? mlp.experts->num : 0, uses = mlp.uses_per_token();
    const auto add_part = [&](const std::string& name, std::int64_t out, std::int64_t in) {
      linears.push_back({.name = name,
                         .out = out,
                         .in = in,
                         .has_bias = mlp.has_bias,
                         .num_experts = num_experts,
                         .uses_per_token = uses,
                         .is_expert_part = mlp.experts.has_value()});
    };
    if (mlp.experts) {
      add_gate(mlp.experts->router_name, mlp.experts->num);
      linears.back().has_bias = mlp.has_bias;
      linears.back().is_expert_part = true;
    }
    const std::string start = mlp.experts ? mlp.experts->name + "." : "mlp.";
    add_part(start + "gate_proj", mlp.intermediate, hidden_);
    add_part(start + "up_proj", mlp.intermediate, hidden_);
    add_part(start + "down_proj", hidden_, mlp.intermediate);
    if (!mlp.experts || !mlp.experts->shared) return;
    const SharedExpertConfig& shared = *mlp.experts->shared;
    add(shared.name + ".gate_proj", shared.intermediate, hidden_);
    add(shared.name + ".up_proj", shared.intermediate, hidden_);
    add(shared.name + ".down_proj", hidden_, shared.intermediate);
    if (shared.has_gate) add_gate(shared.name + "_gate", 1);
  }

  void add_per_layer_input(const PerLayerInputConfig& input) {
    add("per_layer_input_gate", input.width, hidden_);
    add("per_layer_projection", hidden_, input.width);
    add(kPerLayerProjection, input.width, hidden_);
    linears.back().is_slice = true;
  }

  std::vector<LinearShape> linears;

 private:
  void add(const std::string& name, std::int64_t out, std::int64_t in, bool has_bias = false) {
    linears.push_back({.name = name, .out = out, .in = in, .has_bias = has_bias});
  }

  void add_gate(const std::string& name, std::int64_t out) {
    add(name, out, hidden_);
    linears.back().is_gate = true;
  }

  void add_attention(const AttentionConfig& attention) {
    const std::int64_t queries = (attention.has_output_gate ? 2 : 1) * attention.query_width();
    add("self_attn.q_proj", queries, hidden_, attention.qkv_bias);
    if (!attention.keys_of_layer) {
      add("self_attn.k_proj", attention.kv_width(), hidden_, attention.qkv_bias);
      if (!attention.values_are_keys) add("self_attn.v_proj", attention.kv_width(), hidden_, attention.qkv_bias);
    }
    add("self_attn.o_proj", hidden_, attention.query_width(), attention.output_bias);
  }

  void add_latent_attention(const LatentAttentionConfig& attention) {
    const std::int64_t rank = attention.query_rank;
    if (rank > 0) {
      add("self_attn.q_a_proj", rank, hidden_, attention.has_bias);
      add("self_attn.q_b_proj", attention.query_width(), rank);
    } else {
      add("self_attn.q_proj", attention.query_width(), hidden_);
    }
    add("self_attn.kv_a_proj_with_mqa", attention.kv_rank + attention.rotated_dim, hidden_, attention.has_bias);
    add("self_attn.kv_b_proj", attention.kv_width(), attention.kv_rank);
    add("self_attn.o_proj", hidden_, attention.value_width(), attention.has_bias);
  }

  void add_delta_net(const DeltaNetConfig& net) {
    add("linear_attn.in_proj_qkv", net.convolved_width(), hidden_);
    add("linear_attn.in_proj_z", net.value_width(), hidden_);
    add_gate("linear_attn.in_proj_b", net.num_value_heads);
    add_gate("linear_attn.in_proj_a", net.num_value_heads);
    add("linear_attn.out_proj", hidden_, net.value_width());
  }

  const std::int64_t hidden_;
};

}  // namespace

std::vector<LinearShape> linears_of(const DecoderLayerConfig& layer, std::int64_t hidden) {
  LinearList list(hidden);
  list.add_mixer(layer);
  list.add_feed_forward(layer.mlp);
  if (layer.per_layer_input) list.add_per_layer_input(*layer.per_layer_input);
  return std::move(list.linears);
}

}  // namespace rp
