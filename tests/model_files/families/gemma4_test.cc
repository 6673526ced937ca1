#include <gtest/gtest.h>

#include <cmath>

#include "common/text.h"
#include "model_files/config/layer_border.h"
#include "model_files/layer_tensors.h"
#include "model_files/part_selection.h"
#include "tests/common/expect_refusal.h"
#include "tests/model_files/tiny_model.h"

namespace rp {
namespace {

using nlohmann::json;
using Shape = std::vector<std::int64_t>;

constexpr const char *kFull = "full_attention", *kSliding = "sliding_attention";

json tiny_gemma4_json() {
  return {{"model_type", "gemma4_text"},
          {"hidden_size", 16},
          {"intermediate_size", 24},
          {"num_hidden_layers", 7},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 8},
          {"global_head_dim", 12},
          {"vocab_size", 10},
          {"vocab_size_per_layer_input", 11},
          {"hidden_size_per_layer_input", 6},
          {"sliding_window", 5},
          {"dtype", "bfloat16"}};
}

json sharing(std::int64_t num_shared) {
  return {{"num_hidden_layers", 6},
          {"num_kv_shared_layers", num_shared},
          {"use_double_wide_mlp", true},
          {"layer_types", {kSliding, kFull, kSliding, kSliding, kFull, kFull}}};
}

json experts() {
  return {{"enable_moe_block", true},
          {"num_experts", 6},
          {"top_k_experts", 2},
          {"moe_intermediate_size", 4},
          {"hidden_size_per_layer_input", 0}};
}

ModelConfig read_gemma4(const json& changes = json::object()) { return read_with(tiny_gemma4_json(), changes); }

TEST(Gemma4, NormalisesHeadsOfQueriesKeysAndValuesAndScalesNoScores) {
  const ModelConfig config = read_gemma4();
  EXPECT_EQ(config.norm, NormKind::kUnrounded);
  EXPECT_DOUBLE_EQ(config.embedding_scale, 4);
  EXPECT_EQ(config.padding_id, 0);
  EXPECT_TRUE(config.tied_head);
  const DecoderLayerConfig& layer = config.layers.at(0);
  EXPECT_EQ(layer.attention.scale, 1);
  EXPECT_EQ(layer.attention.head_norm, AttentionConfig::HeadNorm::kEachHead);
  EXPECT_TRUE(layer.attention.normalises_values);
  EXPECT_TRUE(layer.has_scalar);
  EXPECT_EQ(layer.mlp.activation, Activation::kGeluTanh);
  EXPECT_EQ(read_gemma4({{"final_logit_softcapping", 30.0}}).logit_softcap, 30);
}

TEST(Gemma4, LayersOfEachKindHaveSizesAndRotationsOfTheirOwn) {
  const ModelConfig config = read_gemma4({{"num_global_key_value_heads", 1}});
  for (std::size_t i = 0; i < 7; ++i) {
    const AttentionConfig& attention = config.layers[i].attention;
    const bool is_full = i == 5 || i == 6;  // every sixth, and the last one in any case
    EXPECT_EQ(attention.window, is_full ? 0 : 5) << i;
    EXPECT_EQ(attention.head_dim, is_full ? 12 : 8) << i;
    EXPECT_EQ(attention.num_kv_heads, 2) << "the other number counts only with attention_k_eq_v";
    EXPECT_EQ(attention.rope.theta, is_full ? 1e6 : 1e4) << i;
    EXPECT_EQ(attention.rotated_dim(), attention.head_dim) << i;
  }
  EXPECT_EQ(config.layers[5].attention.rope.kind, RopeConfig::Kind::kProportional);
  EXPECT_EQ(config.layers[5].attention.rope.rotated_part, 0.25);
  const ModelConfig equal = read_gemma4({{"num_global_key_value_heads", 1}, {"attention_k_eq_v", true}});
  EXPECT_EQ(equal.layers[5].attention.num_kv_heads, 1);
  EXPECT_TRUE(equal.layers[5].attention.values_are_keys);
  EXPECT_FALSE(equal.layers[0].attention.values_are_keys);
  const LayerTensors full = tensors_of_layer(equal, 6);
  EXPECT_EQ(full.find("self_attn.v_proj.weight"), nullptr);
  EXPECT_EQ(full.find("self_attn.k_proj.weight")->shape, (Shape{12, 16}));
  EXPECT_EQ(read_gemma4({{"layer_types", {kFull, kSliding, kFull, kSliding, kFull, kFull, kSliding}}})
                .layers.back()
                .attention.window,
            0)
      << "as transformers does";
}

TEST(Gemma4, SizesOfSingleLayersMayHaveTheFormOfTransformers523) {
  const json by_layer = {
      {"per_layer_config",
       {{"05", {{"head_dim", 12}, {"num_key_value_heads", 1}}}, {"6", {{"head_dim", 12}, {"num_key_value_heads", 1}}}}},
      {"attention_k_eq_v", true}};
  ModelConfig config = read_gemma4(by_layer);
  EXPECT_EQ(config.layers, read_gemma4({{"num_global_key_value_heads", 1}, {"attention_k_eq_v", true}}).layers);
  EXPECT_EQ(read_gemma4({{"per_layer_config", json::object()}}).layers.at(5).attention.head_dim, 8);
  for (const char* key : {"7", "-1", "full_attention", ""}) {
    expect_refusal({"per_layer_config", key, "no number of a layer"}, [&] {
      read_gemma4({{"per_layer_config", {{key, json::object()}}}});
    });
  }
  expect_refusal({"per_layer_config", "intermediate_size", "not supported"}, [] {
    read_gemma4({{"per_layer_config", {{"1", {{"intermediate_size", 8}}}}}});
  });
  expect_refusal({"layer 1", "4 heads of 8", "3 heads of keys"}, [] {
    read_gemma4({{"per_layer_config", {{"1", {{"num_key_value_heads", 3}}}}}});
  });
}

TEST(Gemma4, TheLastLayersUseKeysOfTheLastLayerOfTheirKind) {
  const ModelConfig config = read_gemma4(sharing(3));
  const auto source = [&](std::size_t i) { return config.layers.at(i).attention.keys_of_layer; };
  for (const std::size_t i : {0, 1, 2}) EXPECT_FALSE(source(i).has_value()) << i;
  EXPECT_EQ(source(3), 2);
  EXPECT_EQ(source(4), 1);
  EXPECT_EQ(source(5), 1);
  EXPECT_EQ(config.layers[2].mlp.intermediate, 24);
  EXPECT_EQ(config.layers[3].mlp.intermediate, 48);
  const LayerTensors reader = tensors_of_layer(config, 4);
  for (const char* name : {"self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.k_norm.weight"})
    EXPECT_EQ(reader.find(name), nullptr) << name;
  EXPECT_NE(reader.find("self_attn.q_norm.weight"), nullptr);
  EXPECT_NE(text_of_layer(config, 3), text_of_layer(read_gemma4(sharing(2)), 3)) << "a layer passes other keys";
  expect_refusal({"num_kv_shared_layers is 5", "layer 1"}, [] { read_gemma4(sharing(5)); });
}

TEST(LayerBorder, KeysPassFromTheirLayerToTheLastThatUsesThem) {
  const ModelConfig config = read_gemma4(sharing(3));
  const std::vector<std::vector<std::int64_t>> expected = {{}, {}, {1}, {1, 2}, {1}, {1}, {}, {}};
  for (std::int64_t layer = 0; layer < 8; ++layer) {
    const LayerBorder border = border_above(config, layer);
    EXPECT_EQ(border.key_layers, expected[static_cast<std::size_t>(layer)]) << layer;
    EXPECT_EQ(border.has_tokens, layer < 6) << "no layer above needs them";
  }
  // Hidden states and embeddings, an id; keys and values of two heads of 12 elements.
  EXPECT_EQ(border_bytes(config, 1, 2), 2 * 16 * 2 + 8);
  EXPECT_EQ(border_bytes(config, 2, 2), 2 * 16 * 2 + 8 + 2 * 24 * 2);
  EXPECT_EQ(border_bytes(config, 6, 4), 16 * 4);
}

TEST(Gemma4, EachLayerHasItsSliceOfTheTable) {
  const ModelConfig config = read_gemma4();
  const LayerTensors layer = tensors_of_layer(config, 3);
  EXPECT_EQ(layer.find("embed_tokens_per_layer.weight")->shape, (Shape{11, 6}));
  EXPECT_EQ(layer.find("per_layer_model_projection.weight")->shape, (Shape{6, 16}));
  const std::vector<CheckpointTensor> tensors = checkpoint_tensors(config);
  const auto named = [&](const std::string& name) {
    EXPECT_EQ(std::ranges::count(tensors, name, &CheckpointTensor::name), 1) << name;
    return *std::ranges::find(tensors, name, &CheckpointTensor::name);
  };
  const CheckpointTensor table = named("model.embed_tokens_per_layer.weight");
  EXPECT_EQ(table.shape, (Shape{11, 42}));
  EXPECT_EQ(table.rows_in_row, 7);
  ASSERT_EQ(table.parts.size(), 7U);
  EXPECT_EQ(table.parts[2],
            (TensorPart{.layer = 3, .parameter = "embed_tokens_per_layer.weight", .first_row = 2, .row_step = 7}));
  const CheckpointTensor projection = named("model.per_layer_model_projection.weight");
  EXPECT_EQ(projection.shape, (Shape{42, 16}));
  EXPECT_EQ(projection.parts[2],
            (TensorPart{.layer = 3, .parameter = "per_layer_model_projection.weight", .first_row = 12}));
  const CheckpointTensor norm = named("model.per_layer_projection_norm.weight");
  EXPECT_EQ(norm.shape, (Shape{6}));
  EXPECT_EQ(norm.parts, (std::vector<TensorPart>{{.layer = 1, .parameter = "per_layer_projection_norm.weight"}}));
  const std::int64_t of_layer = 2 * 6 * 16 + 16 + 11 * 6 + 6 * 16;
  EXPECT_EQ(num_parameters(tensors_of(config)) -
                num_parameters(tensors_of(read_gemma4({{"hidden_size_per_layer_input", 0}}))),
            7 * of_layer + 6)
      << "the norm is one parameter";
}

TEST(Gemma4, TheTableIsSelectedByItsNameAndItsProjectionHasNoPairs) {
  const ModelConfig config = read_gemma4();
  const TrainedParts parts{.freeze = "embed_tokens_per_layer"};
  const LayerTensors layer = tensors_of_layer(config, 3, parts);
  EXPECT_FALSE(layer.find("embed_tokens_per_layer.weight")->is_trained);
  EXPECT_TRUE(layer.find("per_layer_projection_norm.weight")->is_trained);
  EXPECT_FALSE(layer.find("layer_scalar")->is_trained) << "it is never trained";
  EXPECT_FALSE(layer.find("layer_scalar")->is_fp32);
  const TrainedParts lora{.lora = {.rank = 2}, .frozen_weights = FrozenWeights::kNf4};
  const LayerTensors adapted = tensors_of_layer(config, 3, lora);
  EXPECT_NE(adapted.find("per_layer_input_gate.lora_A.weight"), nullptr);
  EXPECT_EQ(adapted.find("per_layer_model_projection.lora_A.weight"), nullptr);
  EXPECT_FALSE(adapted.find("per_layer_model_projection.weight")->format.has_value());
  EXPECT_TRUE(adapted.find("per_layer_projection.weight")->format.has_value());
}

TEST(Gemma4, FilesMayHaveKeysThatNoLayerUses) {
  const ModelConfig config = read_gemma4(sharing(3));
  std::vector<TensorDeclaration> tensors = declarations(config);
  for (const char* name : {"k_proj", "v_proj", "k_norm"})
    tensors.push_back({cat("model.layers.3.self_attn.", name, ".weight"), DType::kBFloat16, {16, 16}});
  const auto check = [&] {
    const TempDirectory directory;
    write_tensors(directory.file("model.safetensors"), tensors);
    check_weights(config, WeightFiles::open(directory.path()));
  };
  check();
  tensors.push_back({"model.layers.2.self_attn.v_norm.weight", DType::kBFloat16, {8}});
  expect_refusal({"'model.layers.2.self_attn.v_norm.weight'", "not part of the model"}, check);
}

TEST(Gemma4, ExpertsAreNextToAnMlp) {
  const ModelConfig config = read_gemma4(experts());
  const MlpConfig& mlp = config.layers.at(0).mlp;
  ASSERT_TRUE(mlp.experts && mlp.experts->shared);
  EXPECT_EQ(mlp.intermediate, 4);
  EXPECT_EQ(mlp.experts->router, ExpertsConfig::Router::kScaledInput);
  EXPECT_EQ(mlp.experts->shared->intermediate, 24);
  EXPECT_FALSE(config.layers.at(0).per_layer_input.has_value());
  const LayerTensors layer = tensors_of_layer(config, 1);
  EXPECT_EQ(layer.find("router.proj.weight")->shape, (Shape{6, 16}));
  EXPECT_EQ(layer.find("router.scale")->shape, (Shape{16}));
  EXPECT_EQ(layer.find("router.per_expert_scale")->shape, (Shape{6}));
  EXPECT_EQ(layer.find("experts.down_proj.weight")->shape, (Shape{6, 16, 4}));
  EXPECT_EQ(layer.find("mlp.down_proj.weight")->shape, (Shape{16, 24}));
  for (const char* name :
       {"pre_feedforward_layernorm_2", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2"})
    EXPECT_NE(layer.find(std::string(name) + ".weight"), nullptr) << name;
  const std::vector<CheckpointTensor> fused = checkpoint_tensors(config, ExpertLayout::kFused);
  EXPECT_EQ(std::ranges::count(fused, "model.layers.0.experts.gate_up_proj", &CheckpointTensor::name), 1);
  const std::vector<CheckpointTensor> each = checkpoint_tensors(config);
  EXPECT_EQ(std::ranges::count(each, "model.layers.0.experts.5.up_proj.weight", &CheckpointTensor::name), 1);
}

TEST(Gemma4, WhatWouldChangeTheModelIsRefused) {
  expect_refusal({"use_bidirectional_attention", "embed texts"}, [] {
    read_gemma4({{"use_bidirectional_attention", "all"}});
  });
  EXPECT_EQ(read_gemma4({{"use_bidirectional_attention", "vision"}}).layers, read_gemma4().layers);
  expect_refusal({"vocab_size_per_layer_input is 9", "at least vocab_size, 10"}, [] {
    read_gemma4({{"vocab_size_per_layer_input", 9}});
  });
  expect_refusal({"has no num_experts"}, [] { read_gemma4({{"enable_moe_block", true}}); });
  expect_refusal({"partial_rotary_factor"}, [] {
    read_gemma4({{"rope_parameters",
                  {{kFull, {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}}, {kSliding, json::object()}}}});
  });
}

TEST(Gemma4, RotationOfPairsMayBeStretched) {
  const json rope = {{kFull, {{"rope_type", "proportional"}, {"partial_rotary_factor", 0.5}, {"factor", 4.0}}},
                     {kSliding, {{"rope_theta", 2e4}}}};
  const ModelConfig config = read_gemma4({{"rope_parameters", rope}});
  EXPECT_EQ(config.layers.at(5).attention.rope,
            (RopeConfig{.kind = RopeConfig::Kind::kProportional, .theta = 1e4, .rotated_part = 0.5, .factor = 4}));
  EXPECT_EQ(config.layers.at(0).attention.rope, (RopeConfig{.theta = 2e4}));
}

TEST(Gemma4, TheMultimodalModelHasTheNamesOfTransformers5) {
  const ModelConfig config = read_with({{"model_type", "gemma4"}, {"text_config", tiny_gemma4_json()}}, json::object());
  EXPECT_EQ(config.wrapper, "gemma4");
  EXPECT_TRUE(config.tied_head);
  EXPECT_EQ(name_in_checkpoint(config, 3, "layer_scalar"), "model.language_model.layers.2.layer_scalar");
  EXPECT_EQ(name_in_checkpoint(config, 3, std::string(kPerLayerTable)),
            "model.language_model.embed_tokens_per_layer.weight");
  EXPECT_EQ(name_in_model(config, 3, std::string(kPerLayerTable)),
            "model.language_model.embed_tokens_per_layer.weight");
}

}  // namespace
}  // namespace rp
