#include "model_files/config/linear_shapes.h"

namespace rp {

std::vector<LinearShape> linears_of(const DecoderLayerConfig& layer, std::int64_t hidden) {
  const MlpConfig& mlp = layer.mlp;
  std::vector<LinearShape> linears;
  const auto add = [&](const std::string& name, std::int64_t out, std::int64_t in, bool has_bias = false) {
    linears.push_back({.name = name, .out = out, .in = in, .has_bias = has_bias});
  };
  const auto add_gate = [&](const std::string& name, std::int64_t out) {
    add(name, out, hidden);
    linears.back().is_gate = true;
  };
  if (layer.delta_net) {
    const DeltaNetConfig& net = *layer.delta_net;
    add("linear_attn.in_proj_qkv", net.convolved_width(), hidden);
    add("linear_attn.in_proj_z", net.value_width(), hidden);
    add_gate("linear_attn.in_proj_b", net.num_value_heads);
    add_gate("linear_attn.in_proj_a", net.num_value_heads);
    add("linear_attn.out_proj", hidden, net.value_width());
  } else {
    const AttentionConfig& attention = layer.attention;
    add("self_attn.q_proj", (attention.has_output_gate ? 2 : 1) * attention.query_width(), hidden, attention.qkv_bias);
    add("self_attn.k_proj", attention.kv_width(), hidden, attention.qkv_bias);
    add("self_attn.v_proj", attention.kv_width(), hidden, attention.qkv_bias);
    add("self_attn.o_proj", hidden, attention.query_width(), attention.output_bias);
  }
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
  if (mlp.experts) {
    add_mlp(mlp.experts->router_name, mlp.experts->num, hidden, 0, 1);
    linears.back().is_gate = true;
  }
  add_mlp(start + "gate_proj", mlp.intermediate, hidden, num_experts, uses);
  add_mlp(start + "up_proj", mlp.intermediate, hidden, num_experts, uses);
  add_mlp(start + "down_proj", hidden, mlp.intermediate, num_experts, uses);
  if (mlp.experts && mlp.experts->shared) {
    const SharedExpertConfig& shared = *mlp.experts->shared;
    add(shared.name + ".gate_proj", shared.intermediate, hidden);
    add(shared.name + ".up_proj", shared.intermediate, hidden);
    add(shared.name + ".down_proj", hidden, shared.intermediate);
    if (shared.has_gate) add_gate(shared.name + "_gate", 1);
  }
  return linears;
}

}  // namespace rp
