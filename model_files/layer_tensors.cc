#include "model_files/layer_tensors.h"

namespace rp {
namespace {

// Weight, bias and LoRA pair of a linear layer.
void add_linear(const LinearShape& linear, const LoraSettings& lora, std::vector<LayerTensor>& tensors) {
  const bool frozen = lora.rank > 0;
  const auto add = [&](const std::string& suffix, std::vector<std::int64_t> shape, bool is_trained) {
    if (linear.count > 1) shape.insert(shape.begin(), linear.count);
    tensors.push_back({.name = linear.name + suffix, .shape = std::move(shape), .is_trained = is_trained});
  };
  add(".weight", {linear.out, linear.in}, !frozen);
  if (linear.has_bias) add(".bias", {linear.out}, !frozen);
  if (!frozen || (linear.is_expert_part && !lora.on_experts)) return;
  add(".lora_A.weight", {lora.rank, linear.in}, true);
  add(".lora_B.weight", {linear.out, lora.rank}, true);
}

LayerTensors block_tensors(const ModelShape& shape, const LoraSettings& lora) {
  LayerTensors block{.name = "block"};
  const auto add = [&](const std::string& name, std::int64_t width) {
    block.tensors.push_back({.name = name, .shape = {width}, .is_trained = lora.rank == 0});
  };
  add("input_layernorm.weight", shape.hidden);
  for (const LinearShape& linear : linears_of(shape)) {
    add_linear(linear, lora, block.tensors);
    if (linear.name != "self_attn.o_proj") continue;
    if (shape.qk_norm) add("self_attn.q_norm.weight", shape.head_dim);
    if (shape.qk_norm) add("self_attn.k_norm.weight", shape.head_dim);
    if (shape.attention_sinks) add("self_attn.sinks", shape.num_heads);
    add("post_attention_layernorm.weight", shape.hidden);
  }
  return block;
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

std::vector<LinearShape> linears_of(const ModelShape& shape) {
  const std::int64_t h = shape.hidden, i = shape.intermediate;
  std::vector<LinearShape> linears;
  const auto add_attention = [&](const char* name, std::int64_t out, std::int64_t in) {
    linears.push_back({.name = std::string("self_attn.") + name, .out = out, .in = in, .has_bias = shape.attention_bias});
  };
  add_attention("q_proj", shape.query_width(), h);
  add_attention("k_proj", shape.kv_width(), h);
  add_attention("v_proj", shape.kv_width(), h);
  add_attention("o_proj", h, shape.query_width());
  const auto add_mlp = [&](const char* name, std::int64_t out, std::int64_t in, std::int64_t count, std::int64_t uses) {
    linears.push_back({.name = std::string("mlp.") + name,
                       .out = out,
                       .in = in,
                       .has_bias = shape.mlp_bias,
                       .count = count,
                       .uses_per_token = uses,
                       .is_expert_part = shape.num_experts > 0});
  };
  if (shape.num_experts == 0) {
    add_mlp("gate_proj", i, h, 1, 1);
    add_mlp("up_proj", i, h, 1, 1);
    add_mlp("down_proj", h, i, 1, 1);
  } else {
    add_mlp("gate", shape.num_experts, h, 1, 1);
    add_mlp("experts.gate_proj", i, h, shape.num_experts, shape.experts_per_token);
    add_mlp("experts.up_proj", i, h, shape.num_experts, shape.experts_per_token);
    add_mlp("experts.down_proj", h, i, shape.num_experts, shape.experts_per_token);
  }
  return linears;
}

std::vector<LayerTensors> tensors_of(const ModelShape& shape, const LoraSettings& lora) {
  const bool is_trained = lora.rank == 0;
  const std::vector<std::int64_t> table = {shape.vocabulary, shape.hidden};
  const int tied_group = shape.tied_head ? 0 : -1;
  std::vector<LayerTensors> layers;
  layers.push_back({.name = "embedding",
                    .tensors = {{.name = "weight", .shape = table, .is_trained = is_trained, .tied_group = tied_group}}});
  layers.insert(layers.end(), static_cast<std::size_t>(shape.num_layers), block_tensors(shape, lora));
  layers.push_back(
      {.name = "head",
       .tensors = {{.name = "norm.weight", .shape = {shape.hidden}, .is_trained = is_trained},
                   {.name = "lm_head.weight", .shape = table, .is_trained = is_trained, .tied_group = tied_group}}});
  return layers;
}

std::int64_t num_parameters(const std::vector<LayerTensors>& layers) {
  return sum_of(layers, [](const LayerTensor&) { return true; });
}

std::int64_t num_trained(const std::vector<LayerTensors>& layers) {
  return sum_of(layers, [](const LayerTensor& tensor) { return tensor.is_trained; });
}

}  // namespace rp
