#include "model_files/layer_tensors.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "common/text.h"
#include "model_files/config/quantization_config.h"
#include "model_files/part_selection.h"

namespace rp {
namespace {

constexpr int kNotTied = -1, kTiedEmbedding = 0, kTiedPerLayerNorm = 1;
constexpr const char* kPerLayerInputNorm = "post_per_layer_input_norm.weight";

// Lists the tensors of one layer. Their names in memory decide which of them are trained.
class LayerList {
 public:
  LayerList(const ModelConfig& config, std::int64_t layer, const PartSelection& selection)
      : config_(config), layer_(layer), selection_(selection) {}

  void add(const std::string& name, std::vector<std::int64_t> shape, int tied_group = kNotTied,
           bool is_of_experts = false) {
    // A tied head is the embedding, so the embedding's name decides.
    const std::string called =
        tied_group == kTiedEmbedding ? embedding_in_model(config_) : name_in_model(config_, layer_, name);
    tensors.push_back({.name = name,
                       .shape = std::move(shape),
                       .is_trained = selection_.trains(called),
                       .is_of_experts = is_of_experts,
                       .tied_group = tied_group});
  }

  // Adds the weight, the bias and the LoRA pair of a linear layer.
  void add_linear(const LinearShape& linear) {
    const bool is_of_experts = linear.num_experts > 0;
    const auto shape_of = [&](std::vector<std::int64_t> shape) {
      if (is_of_experts) shape.insert(shape.begin(), linear.num_experts);
      return shape;
    };
    add(linear.name + ".weight", shape_of({linear.out, linear.in}), kNotTied, is_of_experts);
    tensors.back().file_format = file_format(linear);
    if (!tensors.back().is_trained) tensors.back().format = frozen_format(linear, tensors.back().file_format);
    if (linear.has_bias) add(linear.name + ".bias", shape_of({linear.out}), kNotTied, is_of_experts);
    if (linear.is_slice || !selection_.adapts(name_in_model(config_, layer_, linear.name), linear.is_expert_part))
      return;
    const LoraSettings& lora = selection_.lora();
    const auto add_pair = [&](const char* suffix, std::vector<std::int64_t> shape) {
      tensors.push_back({.name = linear.name + suffix,
                         .shape = shape_of(std::move(shape)),
                         .is_pair = true,
                         .is_of_experts = is_of_experts});
    };
    add_pair(".lora_A.weight", {lora.rank, linear.in});
    add_pair(".lora_B.weight", {linear.out, lora.rank});
    if (lora.is_dora) add_pair(".lora_magnitude_vector", {linear.out});
  }

  void add_buffer(const std::string& name, std::vector<std::int64_t> shape, bool is_fp32) {
    tensors.push_back(
        {.name = name, .shape = std::move(shape), .is_trained = false, .is_buffer = true, .is_fp32 = is_fp32});
  }

  void add_decoder_layer(const DecoderLayerConfig& layer) {
    const auto norm = [&](const std::string& name) {
      if (!name.empty()) add(name + ".weight", {config_.hidden});
    };
    norm(layer.attention_norm);
    for (const LinearShape& linear : linears_of(layer, config_.hidden)) {
      add_linear(linear);
      if (layer.mlp.experts && linear.name == layer.mlp.experts->router_name) add_rest_of_router(*layer.mlp.experts);
      const bool is_last_of_mixer = linear.name == "self_attn.o_proj" || linear.name == "linear_attn.out_proj";
      if (!is_last_of_mixer) continue;
      add_rest_of_mixer(layer);
      norm(layer.attention_post_norm);
      norm(layer.mlp_norm);
    }
    if (layer.mlp.experts) {
      norm(layer.mlp.experts->norm);
      norm(layer.mlp.experts->post_norm);
      if (layer.mlp.experts->shared) norm(layer.mlp.experts->shared->post_norm);
    }
    norm(layer.mlp_post_norm);
    if (layer.per_layer_input) add_rest_of_per_layer_input(*layer.per_layer_input);
    if (layer.has_scalar) add_buffer("layer_scalar", {1}, /*is_fp32=*/false);
  }

  std::vector<LayerTensor> tensors;

 private:
  // These add the parameters that belong to no linear layer.
  void add_rest_of_mixer(const DecoderLayerConfig& layer) {
    if (layer.delta_net) return add_rest_of_delta_net(*layer.delta_net);
    if (layer.latent_attention) return add_rest_of_latent_attention(*layer.latent_attention);
    add_rest_of_attention(layer.attention);
  }

  void add_rest_of_attention(const AttentionConfig& attention) {
    if (attention.head_norm != AttentionConfig::HeadNorm::kNone) {
      const bool each = attention.head_norm == AttentionConfig::HeadNorm::kEachHead;
      add("self_attn.q_norm.weight", {each ? attention.head_dim : attention.query_width()});
      if (!attention.keys_of_layer) add("self_attn.k_norm.weight", {each ? attention.head_dim : attention.kv_width()});
    }
    if (attention.has_sinks) add("self_attn.sinks", {attention.num_heads});
  }

  void add_rest_of_latent_attention(const LatentAttentionConfig& attention) {
    if (attention.query_rank > 0) add("self_attn.q_a_layernorm.weight", {attention.query_rank});
    add("self_attn.kv_a_layernorm.weight", {attention.kv_rank});
  }

  void add_rest_of_delta_net(const DeltaNetConfig& net) {
    add("linear_attn.conv1d.weight", {net.convolved_width(), 1, net.taps});
    add("linear_attn.A_log", {net.num_value_heads});
    add("linear_attn.dt_bias", {net.num_value_heads});
    add("linear_attn.norm.weight", {net.value_dim});
  }

  void add_rest_of_router(const ExpertsConfig& experts) {
    if (experts.router == ExpertsConfig::Router::kSigmoid) {
      add_buffer(experts.correction_name(), {experts.num}, /*is_fp32=*/true);
      tensors.back().is_correction = true;
      tensors.back().is_trained = selection_.trains_corrections();
    }
    if (experts.router == ExpertsConfig::Router::kScaledInput) {
      add(ExpertsConfig::kRouterScale, {config_.hidden});
      add(ExpertsConfig::kExpertScale, {experts.num});
    }
  }

  void add_rest_of_per_layer_input(const PerLayerInputConfig& input) {
    add(std::string(kPerLayerInputNorm), {config_.hidden});
    add(std::string(kPerLayerTable), {input.vocabulary, input.width});
    tensors.back().is_table = true;
    add(std::string(kPerLayerNorm), {input.width}, kTiedPerLayerNorm);
  }

  // MXFP4 is a format of experts only.
  [[nodiscard]] std::optional<WeightFormat> file_format(const LinearShape& linear) const {
    const bool can_be_mxfp4 = linear.num_experts > 0 && linear.in % kMxfp4Block == 0;
    if (config_.quantised_format == WeightFormat::kMxfp4 && !can_be_mxfp4) return std::nullopt;
    if (!is_quantised(config_, name_in_model(config_, layer_, linear.name))) return std::nullopt;
    return config_.quantised_format;
  }

  [[nodiscard]] std::optional<WeightFormat> frozen_format(const LinearShape& linear,
                                                          std::optional<WeightFormat> file_format) const {
    const FrozenWeights wanted = selection_.frozen_weights();
    if (linear.is_gate || linear.is_slice || wanted == FrozenWeights::kNone) return std::nullopt;
    if (file_format) return file_format;
    switch (wanted) {
      case FrozenWeights::kAsInFiles:
      case FrozenWeights::kNone: break;
      case FrozenWeights::kNf4: return WeightFormat::kNf4Double;
      case FrozenWeights::kMxfp4:
        if (linear.in % kMxfp4Block == 0) return WeightFormat::kMxfp4;
        break;
      case FrozenWeights::kFp8: return WeightFormat::kFp8Blocks;
    }
    return std::nullopt;
  }

  const ModelConfig& config_;
  const std::int64_t layer_;
  const PartSelection& selection_;
};

LayerTensors list_layer(const ModelConfig& config, std::int64_t layer, const PartSelection& selection) {
  LayerList list(config, layer, selection);
  const int tied_group = config.tied_head ? kTiedEmbedding : kNotTied;
  const std::vector<std::int64_t> table{config.vocabulary, config.hidden};
  std::string name = "block";
  if (layer == 0) {
    name = "embedding";
    list.add("weight", table, tied_group);
    list.tensors.back().is_table = true;
  } else if (layer <= config.num_layers()) {
    list.add_decoder_layer(config.layers[layer - 1]);
  } else {
    name = "head";
    list.add("norm.weight", {config.hidden});
    list.add(std::string(kHeadTensor), table, tied_group);
  }
  return {.name = std::move(name), .tensors = std::move(list.tensors)};
}

template <typename Counts>
std::int64_t sum_of(const std::vector<LayerTensors>& layers, Counts counts) {
  std::int64_t sum = 0;
  std::set<int> seen;
  for (const LayerTensors& layer : layers) {
    for (const LayerTensor& tensor : layer.tensors) {
      if (tensor.tied_group >= 0 && !seen.insert(tensor.tied_group).second) continue;
      if (counts(tensor)) sum += tensor.num_elements();
    }
  }
  return sum;
}

std::string prefixed(const NamePrefixes& prefixes, const ModelConfig& config, std::int64_t layer,
                     const std::string& name) {
  if (layer == 0) return cat(prefixes.body, "embed_tokens.", name);
  if (layer <= config.num_layers() && !is_of_whole_model(name))
    return cat(prefixes.body, "layers.", layer - 1, ".", name);
  return name.starts_with("lm_head") ? prefixes.head + name : prefixes.body + name;
}

}  // namespace

bool is_of_whole_model(std::string_view name) {
  return name == kPerLayerTable || name == kPerLayerNorm || name.starts_with(kPerLayerProjection);
}

std::int64_t LayerTensor::num_elements() const {
  std::int64_t elements = 1;
  for (const std::int64_t dimension : shape) elements *= dimension;
  return elements;
}

QuantisedShape quantised_shape(WeightFormat format, const std::vector<std::int64_t>& shape, bool is_of_experts) {
  const std::size_t rank = shape.size();
  return {.format = format,
          .matrices = is_of_experts ? shape.front() : 1,
          .rows = shape[rank - 2],
          .columns = shape[rank - 1]};
}

QuantisedShape LayerTensor::quantised_shape() const { return rp::quantised_shape(*format, shape, is_of_experts); }

std::int64_t LayerTensor::quantised_bytes() const {
  return static_cast<std::int64_t>(QuantisedLayout(quantised_shape()).num_bytes);
}

const LayerTensor* LayerTensors::find(std::string_view wanted) const {
  const auto found = std::ranges::find(tensors, wanted, &LayerTensor::name);
  return found == tensors.end() ? nullptr : &*found;
}

LayerTensors tensors_of_layer(const ModelConfig& config, std::int64_t layer, const TrainedParts& parts) {
  return list_layer(config, layer, PartSelection(parts));
}

std::vector<LayerTensors> tensors_of(const ModelConfig& config, const TrainedParts& parts) {
  const PartSelection selection(parts);
  std::vector<LayerTensors> layers;
  for (std::int64_t layer = 0; layer < config.num_layers() + 2; ++layer)
    layers.push_back(list_layer(config, layer, selection));
  return layers;
}

std::string name_in_checkpoint(const ModelConfig& config, std::int64_t layer, const std::string& name) {
  return prefixed(config.file_names, config, layer, name);
}

std::string embedding_in_checkpoint(const ModelConfig& config) { return name_in_checkpoint(config, 0, "weight"); }

std::string head_in_checkpoint(const ModelConfig& config) { return cat(config.file_names.head, kHeadTensor); }

std::string name_in_model(const ModelConfig& config, std::int64_t layer, const std::string& name) {
  return prefixed(config.module_names, config, layer, name);
}

std::string embedding_in_model(const ModelConfig& config) { return name_in_model(config, 0, "weight"); }

std::string head_in_model(const ModelConfig& config) { return cat(config.module_names.head, kHeadTensor); }

std::int64_t num_parameters(const std::vector<LayerTensors>& layers) {
  return sum_of(layers, [](const LayerTensor& tensor) { return !tensor.is_buffer; });
}

std::int64_t num_trained(const std::vector<LayerTensors>& layers) {
  return sum_of(layers, [](const LayerTensor& tensor) { return tensor.is_trained && !tensor.is_buffer; });
}

}  // namespace rp
