#include "model_files/layer_tensors.h"

namespace rp {
namespace {

// Weight, bias and LoRA pair of a linear layer.
void add_linear(const LinearShape& linear, const LoraSettings& lora, std::vector<LayerTensor>& tensors) {
  const bool frozen = lora.rank > 0;
  const auto add = [&](const std::string& suffix, std::vector<std::int64_t> shape, bool is_trained) {
    if (linear.num_experts > 0) shape.insert(shape.begin(), linear.num_experts);
    tensors.push_back({.name = linear.name + suffix, .shape = std::move(shape), .is_trained = is_trained});
  };
  add(".weight", {linear.out, linear.in}, !frozen);
  if (linear.has_bias) add(".bias", {linear.out}, !frozen);
  if (!frozen || (linear.is_expert_part && !lora.on_experts)) return;
  add(".lora_A.weight", {lora.rank, linear.in}, true);
  add(".lora_B.weight", {linear.out, lora.rank}, true);
}

LayerTensors decoder_layer_tensors(const DecoderLayerConfig& layer, std::int64_t hidden, const LoraSettings& lora) {
  LayerTensors result{.name = "block"};
  const auto add = [&](const std::string& name, std::int64_t width) {
    if (!name.empty()) result.tensors.push_back({.name = name, .shape = {width}, .is_trained = lora.rank == 0});
  };
  const auto norm = [&](const std::string& name) { add(name.empty() ? "" : name + ".weight", hidden); };
  const AttentionConfig& attention = layer.attention;
  norm(layer.attention_norm);
  for (const LinearShape& linear : linears_of(layer, hidden)) {
    add_linear(linear, lora, result.tensors);
    if (linear.name != "self_attn.o_proj") continue;
    if (attention.head_norm != AttentionConfig::HeadNorm::kNone) {
      const bool each = attention.head_norm == AttentionConfig::HeadNorm::kEachHead;
      add("self_attn.q_norm.weight", each ? attention.head_dim : attention.query_width());
      add("self_attn.k_norm.weight", each ? attention.head_dim : attention.kv_width());
    }
    if (attention.has_sinks) add("self_attn.sinks", attention.num_heads);
    norm(layer.attention_post_norm);
    norm(layer.mlp_norm);
  }
  norm(layer.mlp_post_norm);
  return result;
}

template <typename Counts>
std::int64_t sum_of(const std::vector<LayerTensors>& layers, Counts counts) {
  std::int64_t sum = 0;
  bool tied_seen = false;
  for (const LayerTensors& layer : layers) {
    for (const LayerTensor& tensor : layer.tensors) {
      if (tensor.tied_group >= 0 && tied_seen) continue;
      tied_seen = tied_seen || tensor.tied_group >= 0;
      if (counts(tensor)) sum += tensor.num_elements();
    }
  }
  return sum;
}

}  // namespace

std::int64_t LayerTensor::num_elements() const {
  std::int64_t elements = 1;
  for (const std::int64_t dimension : shape) elements *= dimension;
  return elements;
}

std::vector<LinearShape> linears_of(const DecoderLayerConfig& layer, std::int64_t hidden) {
  const AttentionConfig& attention = layer.attention;
  const MlpConfig& mlp = layer.mlp;
  std::vector<LinearShape> linears;
  const auto add_attention = [&](const char* name, std::int64_t out, std::int64_t in, bool has_bias) {
    linears.push_back({.name = std::string("self_attn.") + name, .out = out, .in = in, .has_bias = has_bias});
  };
  add_attention("q_proj", attention.query_width(), hidden, attention.qkv_bias);
  add_attention("k_proj", attention.kv_width(), hidden, attention.qkv_bias);
  add_attention("v_proj", attention.kv_width(), hidden, attention.qkv_bias);
  add_attention("o_proj", hidden, attention.query_width(), attention.output_bias);
  const auto add_mlp = [&](const std::string& name, std::int64_t out, std::int64_t in, std::int64_t num_experts, std::int64_t uses) {
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
  return linears;
}

LayerTensors tensors_of_layer(const ModelConfig& config, std::int64_t layer, const LoraSettings& lora) {
  if (layer >= 1 && layer <= config.num_layers()) {
    return decoder_layer_tensors(config.layers[static_cast<std::size_t>(layer - 1)], config.hidden, lora);
  }
  const bool is_trained = lora.rank == 0;
  const int tied_group = config.tied_head ? 0 : -1;
  LayerTensor table{.shape = {config.vocabulary, config.hidden}, .is_trained = is_trained, .tied_group = tied_group};
  table.name = layer == 0 ? "weight" : "lm_head.weight";
  if (layer == 0) return {.name = "embedding", .tensors = {table}};
  return {.name = "head", .tensors = {{.name = "norm.weight", .shape = {config.hidden}, .is_trained = is_trained}, table}};
}

std::vector<LayerTensors> tensors_of(const ModelConfig& config, const LoraSettings& lora) {
  std::vector<LayerTensors> layers;
  for (std::int64_t layer = 0; layer < config.num_layers() + 2; ++layer) layers.push_back(tensors_of_layer(config, layer, lora));
  return layers;
}

std::int64_t num_parameters(const std::vector<LayerTensors>& layers) {
  return sum_of(layers, [](const LayerTensor&) { return true; });
}

std::int64_t num_trained(const std::vector<LayerTensors>& layers) {
  return sum_of(layers, [](const LayerTensor& tensor) { return tensor.is_trained; });
}

}  // namespace rp
