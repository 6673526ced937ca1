#include "model_files/config/linear_shapes.h"

namespace rp {
namespace {

// Calls add(name, out, in, has_bias) for each layer of the part in which tokens exchange data.
template <typename Add>
void add_mixer(const DecoderLayerConfig& layer, std::int64_t hidden, const Add& add) {
  if (layer.delta_net) {
    const DeltaNetConfig& net = *layer.delta_net;
    add("linear_attn.in_proj_qkv", net.convolved_width(), hidden, false);
    add("linear_attn.in_proj_z", net.value_width(), hidden, false);
    add("linear_attn.in_proj_b", net.num_value_heads, hidden, false);
    add("linear_attn.in_proj_a", net.num_value_heads, hidden, false);
    add("linear_attn.out_proj", hidden, net.value_width(), false);
  } else if (layer.latent_attention) {
    const LatentAttentionConfig& attention = *layer.latent_attention;
    const std::int64_t rank = attention.query_rank;
    if (rank > 0) add("self_attn.q_a_proj", rank, hidden, attention.has_bias);
    add(rank > 0 ? "self_attn.q_b_proj" : "self_attn.q_proj", attention.query_width(), rank > 0 ? rank : hidden, false);
    add("self_attn.kv_a_proj_with_mqa", attention.kv_rank + attention.rotated_dim, hidden, attention.has_bias);
    add("self_attn.kv_b_proj", attention.kv_width(), attention.kv_rank, false);
    add("self_attn.o_proj", hidden, attention.value_width(), attention.has_bias);
  } else {
    const AttentionConfig& attention = layer.attention;
    add("self_attn.q_proj", (attention.has_output_gate ? 2 : 1) * attention.query_width(), hidden, attention.qkv_bias);
    add("self_attn.k_proj", attention.kv_width(), hidden, attention.qkv_bias);
    add("self_attn.v_proj", attention.kv_width(), hidden, attention.qkv_bias);
    add("self_attn.o_proj", hidden, attention.query_width(), attention.output_bias);
  }
}

}  // namespace

std::vector<LinearShape> linears_of(const DecoderLayerConfig& layer, std::int64_t hidden) {
  const MlpConfig& mlp = layer.mlp;
  std::vector<LinearShape> linears;
  const auto add = [&](const std::string& name, std::int64_t out, std::int64_t in, bool has_bias = false) {
    linears.push_back({.name = name, .out = out, .in = in, .has_bias = has_bias});
  };
  add_mixer(layer, hidden, add);
  const auto add_mlp = [&](const std::string& name, std::int64_t out, std::int64_t in, std::int64_t num_experts,
                           std::int64_t uses) {
    linears.push_back({.name = name,
                       .out = out,
                       .in = in,
                       .has_bias = mlp.has_bias,
                       .num_experts = num_experts,
                       .uses_per_token = uses,
                       .is_expert_part = mlp.experts.has_value()});
  };
  const std::int64_t num_experts = mlp.experts ? mlp.experts->num : 0, uses = mlp.uses_per_token();
  const std::string start = mlp.experts ? "mlp.experts." : "mlp.";
  if (mlp.experts) add_mlp(mlp.experts->router_name, mlp.experts->num, hidden, 0, 1);
  add_mlp(start + "gate_proj", mlp.intermediate, hidden, num_experts, uses);
  add_mlp(start + "up_proj", mlp.intermediate, hidden, num_experts, uses);
  add_mlp(start + "down_proj", hidden, mlp.intermediate, num_experts, uses);
  if (mlp.experts && mlp.experts->shared) {
    const SharedExpertConfig& shared = *mlp.experts->shared;
    add(shared.name + ".gate_proj", shared.intermediate, hidden);
    add(shared.name + ".up_proj", shared.intermediate, hidden);
    add(shared.name + ".down_proj", hidden, shared.intermediate);
    if (shared.has_gate) add(shared.name + "_gate", 1, hidden);
  }
  return linears;
}

}  // namespace rp
