#include "tests/random/decoder_layers.h"

#include <cmath>
#include <functional>
#include <memory>
#include <utility>

#include "common/text.h"
#include "model_files/layer_tensors.h"
#include "models/decoder.h"
#include "models/layers/expert_balance.h"
#include "tests/random/drawn_weights.h"
#include "tests/random/random_layers.h"

namespace rp::test {

namespace {

class DecoderOnX : public Layer {
 public:
  explicit DecoderOnX(std::unique_ptr<Layer> layer) : layer_(std::move(layer)) {}

  std::vector<NamedParameter> parameters() override { return layer_->parameters(); }
  void train(bool on) override { layer_->train(on); }
  void begin_task() override { layer_->begin_task(); }
  void end_task() override { layer_->end_task(); }

  Tensors forward(const Tensors& list) override {
    Tensors inputs = {list[kX]}, result = list;
    if (list.size() > kIds && list[kIds].defined())
      inputs.push_back(list[kIds].narrow(1, 0, 1).remainder(list[kIds].size(1)));
    const Tensors outputs = layer_->forward(inputs);
    result[kX] = outputs[0];
    // Adds the auxiliary loss of a router to x, so that it has a gradient.
    if (outputs.size() == 4)
      result[kX] = result[kX] + models::report_of({outputs[2], outputs[3]}).auxiliary_loss.to(outputs[0].scalar_type());
    return result;
  }

 private:
  std::unique_ptr<Layer> layer_;
};

RopeConfig draw_rope(Draw& draw) {
  using Kind = RopeConfig::Kind;
  RopeConfig rope{
      .kind = draw.pick({Kind::kNone, Kind::kPlain, Kind::kLinear, Kind::kLlama3, Kind::kYarn, Kind::kProportional}),
      .theta = 1000};
  if (rope.kind != Kind::kPlain) rope.factor = 4;
  rope.original_positions = 16;
  if (rope.kind == Kind::kYarn) rope.attention_factor = 1.25;
  rope.rounds_table = draw.chance(70);
  if (draw.chance(25)) rope.rotated_part = 0.5;
  return rope;
}

AttentionConfig draw_attention(Draw& draw) {
  using HeadNorm = AttentionConfig::HeadNorm;
  AttentionConfig attention{.num_kv_heads = draw.between(1, 2)};
  attention.num_heads = attention.num_kv_heads * draw.between(1, 3);
  attention.head_dim = draw.pick({2, 4, 6});
  attention.scale = 1 / std::sqrt(static_cast<double>(attention.head_dim));
  if (draw.chance(50)) attention.window = draw.between(1, 5);
  attention.qkv_bias = draw.chance(30);
  attention.output_bias = draw.chance(30);
  attention.head_norm = draw.pick({HeadNorm::kNone, HeadNorm::kEachHead, HeadNorm::kWholeRow});
  attention.has_sinks = draw.chance(40);
  attention.has_output_gate = draw.chance(30);
  attention.normalises_values = draw.chance(25);
  attention.values_are_keys = draw.chance(20);
  attention.rope = draw_rope(draw);
  if (attention.rotated_dim() % 2 != 0 || attention.rotated_dim() == 0) attention.rope.rotated_part = 1;
  if (attention.rope.kind != RopeConfig::Kind::kNone && draw.chance(15)) {
    attention.query_growth = 0.5;
    attention.query_growth_positions = 2;
  }
  return attention;
}

LatentAttentionConfig draw_latent_attention(Draw& draw) {
  LatentAttentionConfig attention{.num_heads = draw.between(1, 3), .kv_rank = draw.between(3, 6)};
  if (draw.chance(60)) attention.query_rank = draw.between(3, 6);
  attention.plain_dim = draw.between(1, 4);
  attention.rotated_dim = draw.pick({2, 4});
  attention.value_dim = draw.between(1, 6);
  attention.scale = 1 / std::sqrt(static_cast<double>(attention.query_dim()));
  attention.has_bias = draw.chance(30);
  attention.pairs_neighbours = draw.chance(70);
  attention.rope = draw_rope(draw);
  attention.rope.rotated_part = 1;
  if (attention.rope.kind == RopeConfig::Kind::kNone) attention.rope.kind = RopeConfig::Kind::kPlain;
  return attention;
}

DeltaNetConfig draw_delta_net(Draw& draw) {
  DeltaNetConfig net{.num_key_heads = draw.between(1, 2), .key_dim = draw.between(1, 5)};
  net.num_value_heads = net.num_key_heads * draw.between(1, 3);
  net.value_dim = draw.between(1, 5);
  net.taps = draw.between(1, 4);
  return net;
}

// MXFP4 needs 32 columns, and a side of a block of 8-bit floats has 128.
std::int64_t draw_intermediate(Draw& draw) { return draw.chance(25) ? draw.pick({32, 130}) : draw.between(3, 9); }

ExpertsConfig draw_experts(Draw& draw) {
  using Router = ExpertsConfig::Router;
  ExpertsConfig experts{.num = draw.between(2, 5)};
  experts.router = draw.pick({Router::kSoftmaxFirst, Router::kLargestFirst, Router::kSigmoid, Router::kScaledInput});
  if (experts.router == Router::kSigmoid) {
    experts.num_groups = draw.between(1, 3);
    experts.groups_per_token = draw.between(1, static_cast<int>(experts.num_groups));
    experts.num = experts.num_groups * draw.between(2, 3);
    experts.weight_scale = draw.pick({1.0, 2.5});
  }
  experts.per_token = draw.between(1, static_cast<int>(experts.num / experts.num_groups * experts.groups_per_token));
  experts.normalises = draw.chance(50);
  if (draw.chance(40)) {
    experts.shared = SharedExpertConfig{
        .name = "mlp.shared_expert", .intermediate = draw_intermediate(draw), .has_gate = draw.chance(50)};
  }
  if (draw.chance(30)) {
    experts.norm = "experts_norm";
    experts.post_norm = "experts_post_norm";
    if (experts.shared) experts.shared->post_norm = "shared_post_norm";
  }
  return experts;
}

MlpConfig draw_mlp(Draw& draw) {
  MlpConfig mlp{.intermediate = draw_intermediate(draw)};
  mlp.activation = draw.pick({rp::Activation::kSilu, rp::Activation::kGeluTanh, rp::Activation::kClampedSwish});
  mlp.has_bias = draw.chance(30);
  if (draw.chance(45)) mlp.experts = draw_experts(draw);
  return mlp;
}

ModelConfig draw_config(Draw& draw, std::int64_t hidden) {
  DecoderLayerConfig layer{.mlp = draw_mlp(draw)};
  if (draw.chance(30)) {
    layer.delta_net = draw_delta_net(draw);
  } else if (draw.chance(25)) {
    layer.latent_attention = draw_latent_attention(draw);
  } else {
    layer.attention = draw_attention(draw);
  }
  const int norms = draw.between(0, 2);  // 0: before the parts; 1: before and behind; 2: behind
  if (norms > 0) {
    layer.attention_post_norm = "attention_post_norm";
    layer.mlp_post_norm = "mlp_post_norm";
  }
  if (norms == 2) layer.attention_norm = layer.mlp_norm = "";
  layer.has_scalar = draw.chance(25);
  ModelConfig config{.hidden = hidden, .vocabulary = 2, .max_sequence_length = 64, .norm_epsilon = 1e-5};
  config.norm = draw.pick({NormKind::kRounded, NormKind::kUnrounded, NormKind::kOffset});
  config.layers = {layer};
  if (draw.chance(25)) {
    config.quantised_format = draw.pick({WeightFormat::kNf4, WeightFormat::kMxfp4, WeightFormat::kFp8Tensor});
    if (draw.chance(30)) config.unquantised_layers = {"v_proj", "up_proj"};
  }
  return config;
}

TrainedParts draw_parts(Draw& draw, bool has_experts, bool is_frozen) {
  TrainedParts parts;
  parts.frozen_weights = draw.pick({FrozenWeights::kAsInFiles, FrozenWeights::kAsInFiles, FrozenWeights::kNone,
                                    FrozenWeights::kNf4, FrozenWeights::kMxfp4, FrozenWeights::kFp8});
  if (is_frozen) {
    parts.freeze = ".";
    return parts;
  }
  const int die = draw.between(0, 99);
  if (die < 35) return parts;
  if (die < 50) {
    parts.freeze = draw.pick({"norm|bias", "_attn", "mlp", "proj.weight"});
    return parts;
  }
  parts.lora = {.rank = draw.between(1, 3), .alpha = draw.pick({0.0, 1.0, 5.0}), .dropout = draw.pick({0.0, 0.0, 0.3})};
  parts.lora.is_rank_stabilised = draw.chance(30);
  parts.lora.targets =
      draw.pick({"all-linear", "all-linear", "q_proj,v_proj,in_proj_qkv,in_proj_a,down_proj", ".*_attn.(o|out)_proj"});
  parts.lora.on_experts = has_experts && draw.chance(70);
  parts.lora.is_dora = !parts.lora.on_experts && draw.chance(30);
  if (draw.chance(25)) parts.train = "norm";
  return parts;
}

std::string text_of(const AttentionConfig& attention) {
  std::string text = cat(attention.num_heads, "/", attention.num_kv_heads, " heads of ", attention.head_dim);
  if (attention.window > 0) text += cat(" window ", attention.window);
  if (attention.has_sinks) text += " sinks";
  if (attention.has_output_gate) text += " gates";
  if (attention.head_norm != AttentionConfig::HeadNorm::kNone) text += " norms of heads";
  if (attention.query_growth > 0) text += " growing queries";
  if (attention.normalises_values) text += " norms of values";
  if (attention.values_are_keys) text += " values of keys";
  if (attention.rope.rotated_part < 1) text += " rotated in part";
  return text;
}

std::string text_of(const LatentAttentionConfig& attention) {
  return cat("latent attention, ", attention.num_heads, " heads of ", attention.plain_dim, " + ", attention.rotated_dim,
             " and ", attention.value_dim, " from ", attention.query_rank, " and ", attention.kv_rank);
}

std::string text_of(const DeltaNetConfig& net) {
  return cat("a delta rule, ", net.num_value_heads, "/", net.num_key_heads, " heads of ", net.key_dim, " x ",
             net.value_dim, ", ", net.taps, " taps");
}

std::string text_of_mixer(const DecoderLayerConfig& layer) {
  if (layer.delta_net) return text_of(*layer.delta_net);
  return layer.latent_attention ? text_of(*layer.latent_attention) : text_of(layer.attention);
}

std::string text_of(const ExpertsConfig& experts) {
  std::string text = cat(" ", experts.per_token, " of ", experts.num, " experts");
  if (experts.router == ExpertsConfig::Router::kSigmoid)
    text += cat(" in ", experts.groups_per_token, " of ", experts.num_groups, " groups");
  if (experts.shared) text += experts.shared->has_gate ? " and a gated one" : " and one for all";
  return text;
}

std::string text_of(const ModelConfig& config, const TrainedParts& parts) {
  const DecoderLayerConfig& layer = config.layers[0];
  const MlpConfig& mlp = layer.mlp;
  std::string text = "decoder layer of " + text_of_mixer(layer);
  text += mlp.activation == rp::Activation::kSilu       ? " silu"
          : mlp.activation == rp::Activation::kGeluTanh ? " gelu"
                                                        : " clamped";
  if (mlp.experts) text += text_of(*mlp.experts);
  if (mlp.has_bias) text += " biases";
  if (parts.lora.rank > 0)
    text += cat(parts.lora.is_dora ? " dora " : " lora ", parts.lora.rank, " on ", parts.lora.targets);
  if (parts.lora.on_experts) text += " and experts";
  if (parts.lora.dropout > 0) text += cat(" dropout ", parts.lora.dropout);
  if (!parts.freeze.empty()) text += cat(" frozen ", parts.freeze);
  if (!parts.train.empty()) text += cat(" trained ", parts.train);
  return text;
}

auto factory(const ModelConfig& config, const TrainedParts& parts, at::ScalarType dtype) {
  return [config, parts, dtype] {
    return std::make_unique<DecoderOnX>(models::make_decoder_layer(config, 0, parts, dtype));
  };
}

}  // namespace

DrawnDecoderLayer draw_decoder_layer(Draw& draw, const DecoderSettings& settings) {
  const ModelConfig config = draw_config(draw, settings.hidden);
  TrainedParts parts = draw_parts(draw, config.layers[0].mlp.experts.has_value(), settings.is_frozen);
  const DrawnWeights weights{tensors_of_layer(config, 1, parts).tensors, config.norm, draw.seed()};
  DrawnDecoderLayer drawn{.text = text_of(config, parts) + weights.formats(),
                          .draws_numbers = parts.lora.dropout > 0,
                          .is_quantised = !weights.formats().empty()};
  drawn.spec.name = "DecoderLayer";
  drawn.spec.arguments_hash = std::hash<std::string>()(cat(text_of_layer(config, 1), drawn.text, weights.seed));
  drawn.spec.initialize = [weights](const auto& parameter, const auto& value) { weights.initialize(parameter, value); };
  drawn.expanded = drawn.spec;
  drawn.spec.make = factory(config, parts, settings.dtype);
  parts.frozen_weights = FrozenWeights::kNone;
  drawn.expanded.make = factory(config, parts, settings.dtype);
  return drawn;
}

}  // namespace rp::test
