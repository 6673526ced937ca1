#include <gtest/gtest.h>

#include "model_files/layer_tensors.h"
#include "tests/common/expect_refusal.h"
#include "tests/model_files/tiny_model.h"

namespace rp {
namespace {

using nlohmann::json;

json tiny_qwen3_5_json() {
  return {{"model_type", "qwen3_5_text"},
          {"hidden_size", 8},
          {"intermediate_size", 12},
          {"num_hidden_layers", 5},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 8},
          {"vocab_size", 10},
          {"linear_num_key_heads", 2},
          {"linear_num_value_heads", 4},
          {"linear_key_head_dim", 3},
          {"linear_value_head_dim", 5},
          {"linear_conv_kernel_dim", 4},
          {"partial_rotary_factor", 0.5}};
}

ModelConfig read_qwen3_5(const json& changes = json::object()) { return read_with(tiny_qwen3_5_json(), changes); }

std::vector<bool> linear_with(const json& changes) {
  std::vector<bool> linear;
  for (const DecoderLayerConfig& layer : read_qwen3_5(changes).layers) linear.push_back(layer.delta_net.has_value());
  return linear;
}

using Linear = std::vector<bool>;

TEST(Qwen35, ThreeOfFourLayersHaveADeltaRuleUnlessTheFileSaysOtherwise) {
  EXPECT_EQ(linear_with(json::object()), (Linear{true, true, true, false, true}));
  EXPECT_EQ(linear_with({{"full_attention_interval", 2}}), (Linear{true, false, true, false, true}));
  const json types = {"full_attention", "linear_attention", "linear_attention", "full_attention", "full_attention"};
  EXPECT_EQ(linear_with({{"layer_types", types}, {"full_attention_interval", 2}}),
            (Linear{false, true, true, false, false}))
      << "layer_types counts";
}

TEST(Qwen35, AttentionHasGatesAndRotatesAPartOfEachHead) {
  const ModelConfig config = read_qwen3_5();
  EXPECT_EQ(config.norm, NormKind::kOffset);
  const AttentionConfig& attention = config.layers.at(3).attention;
  EXPECT_TRUE(attention.has_output_gate);
  EXPECT_EQ(attention.head_norm, AttentionConfig::HeadNorm::kEachHead);
  EXPECT_EQ(attention.rotated_dim(), 4);
  EXPECT_FALSE(attention.qkv_bias || attention.output_bias);
  EXPECT_FALSE(config.tied_head);
}

TEST(Qwen35, ThePartThatIsRotatedIsReadWithinTheRotaryParametersFirst) {
  const auto rotated = [](json changes) {
    json config = tiny_qwen3_5_json();
    config.erase("partial_rotary_factor");
    return read_with(config, changes).layers.at(3).attention.rotated_dim();
  };
  EXPECT_EQ(rotated(json::object()), 2) << "a quarter of the head";
  EXPECT_EQ(rotated({{"partial_rotary_factor", 0.5}}), 4);
  EXPECT_EQ(rotated({{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e7}}}}), 2);
  const json within = {{"rope_type", "default"}, {"partial_rotary_factor", 1.0}, {"mrope_section", {1, 1}}};
  EXPECT_EQ(rotated({{"rope_parameters", within}, {"partial_rotary_factor", 0.5}}), 8);
}

TEST(Qwen35, ALayerWithADeltaRuleHasItsTensors) {
  const ModelConfig config = read_qwen3_5();
  const LayerTensors layer = tensors_of_layer(config, 1);
  const auto shape_of = [&](const char* name) {
    const LayerTensor* tensor = layer.find(name);
    return tensor == nullptr ? std::vector<std::int64_t>() : tensor->shape;
  };
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(shape_of("linear_attn.in_proj_qkv.weight"), (Shape{2 * 6 + 20, 8}));
  EXPECT_EQ(shape_of("linear_attn.in_proj_z.weight"), (Shape{20, 8}));
  EXPECT_EQ(shape_of("linear_attn.in_proj_b.weight"), (Shape{4, 8}));
  EXPECT_EQ(shape_of("linear_attn.in_proj_a.weight"), (Shape{4, 8}));
  EXPECT_EQ(shape_of("linear_attn.conv1d.weight"), (Shape{32, 1, 4}));
  EXPECT_EQ(shape_of("linear_attn.A_log"), (Shape{4}));
  EXPECT_EQ(shape_of("linear_attn.dt_bias"), (Shape{4}));
  EXPECT_EQ(shape_of("linear_attn.norm.weight"), (Shape{5}));
  EXPECT_EQ(shape_of("linear_attn.out_proj.weight"), (Shape{8, 20}));
  EXPECT_EQ(shape_of("self_attn.q_proj.weight"), Shape());
  EXPECT_EQ(tensors_of_layer(config, 4).find("self_attn.q_proj.weight")->shape, (Shape{2 * 4 * 8, 8}));
  EXPECT_EQ(tensors_of_layer(config, 4).find("linear_attn.A_log"), nullptr);
}

TEST(Qwen35, PublishedFilesAreRead) {
  // The text part of Qwen3.5-27B, without the list of layer types.
  const ModelConfig config = read_with({{"model_type", "qwen3_5"},
                                        {"tie_word_embeddings", false},
                                        {"text_config",
                                         {{"attention_bias", false},
                                          {"attn_output_gate", true},
                                          {"full_attention_interval", 4},
                                          {"head_dim", 256},
                                          {"hidden_size", 5120},
                                          {"intermediate_size", 17408},
                                          {"linear_conv_kernel_dim", 4},
                                          {"linear_key_head_dim", 128},
                                          {"linear_num_key_heads", 16},
                                          {"linear_num_value_heads", 48},
                                          {"linear_value_head_dim", 128},
                                          {"mamba_ssm_dtype", "float32"},
                                          {"max_position_embeddings", 262144},
                                          {"mlp_only_layers", json::array()},
                                          {"model_type", "qwen3_5_text"},
                                          {"mtp_num_hidden_layers", 1},
                                          {"num_attention_heads", 24},
                                          {"num_hidden_layers", 64},
                                          {"num_key_value_heads", 4},
                                          {"partial_rotary_factor", 0.25},
                                          {"rope_parameters",
                                           {{"mrope_interleaved", true},
                                            {"mrope_section", {11, 11, 10}},
                                            {"partial_rotary_factor", 0.25},
                                            {"rope_theta", 10000000},
                                            {"rope_type", "default"}}},
                                          {"vocab_size", 248320}}}},
                                       json::object());
  EXPECT_EQ(config.wrapper, "qwen3_5");
  EXPECT_EQ(config.layers.at(63).attention.rope.theta, 1e7);
  EXPECT_EQ(config.layers.at(63).attention.rotated_dim(), 64);
  EXPECT_EQ(num_parameters(tensors_of(config)), num_parameters(tensors_of(preset_config("qwen3.5-27b"))));
  EXPECT_EQ(name_in_checkpoint(config, 1, "linear_attn.A_log"), "model.language_model.layers.0.linear_attn.A_log");
  EXPECT_EQ(head_in_checkpoint(config), "lm_head.weight");
  EXPECT_EQ(name_in_model(config, 1, "linear_attn.A_log"), "model.layers.0.linear_attn.A_log");
}

TEST(Qwen35Moe, AllLayersHaveExpertsAndASharedOne) {
  json file = tiny_qwen3_5_json();
  file.update({{"model_type", "qwen3_5_moe_text"},
               {"num_experts", 6},
               {"num_experts_per_tok", 2},
               {"moe_intermediate_size", 4},
               {"shared_expert_intermediate_size", 5}});
  const ModelConfig config = read_with(file, json::object());
  for (const DecoderLayerConfig& layer : config.layers) {
    EXPECT_EQ(layer.mlp.intermediate, 4);
    ASSERT_TRUE(layer.mlp.experts.has_value() && layer.mlp.experts->shared.has_value());
    EXPECT_TRUE(layer.mlp.experts->normalises);
  }
  const LayerTensors layer = tensors_of_layer(config, 4);
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(layer.find("mlp.experts.down_proj.weight")->shape, (Shape{6, 8, 4}));
  EXPECT_EQ(layer.find("mlp.shared_expert.gate_proj.weight")->shape, (Shape{5, 8}));
  EXPECT_EQ(layer.find("mlp.shared_expert.down_proj.weight")->shape, (Shape{8, 5}));
  EXPECT_EQ(layer.find("mlp.shared_expert_gate.weight")->shape, (Shape{1, 8}));
  // As peft's all-linear, which sees no linear layers in experts and routers.
  const LayerTensors adapted = tensors_of_layer(config, 4, {.lora = {.rank = 2}});
  EXPECT_NE(adapted.find("mlp.shared_expert_gate.lora_A.weight"), nullptr);
  EXPECT_EQ(adapted.find("mlp.gate.lora_A.weight"), nullptr);
  file["num_experts_per_tok"] = 7;
  expect_refusal({"num_experts_per_tok is '7'", "from 1 to 6"}, [&] { (void)read_with(file, json::object()); });
}

TEST(Qwen35, ImpossibleValuesAreRefused) {
  expect_refusal({"linear_num_key_heads 3", "does not divide linear_num_value_heads 4"}, [] {
    (void)read_qwen3_5({{"linear_num_key_heads", 3}});
  });
  expect_refusal({"partial_rotary_factor 0.4", "head_dim 8", "3 elements"}, [] {
    (void)read_qwen3_5({{"partial_rotary_factor", 0.4}});
  });
  expect_refusal({"linear_conv_kernel_dim is '9'", "from 1 to 8"}, [] {
    (void)read_qwen3_5({{"linear_conv_kernel_dim", 9}});
  });
  expect_refusal({"layer_types has 'sliding_attention'", "'linear_attention'"}, [] {
    (void)read_qwen3_5({{"layer_types", json::array({"sliding_attention", "", "", "", ""})}});
  });
  expect_refusal({"channels"}, [] {
    (void)read_qwen3_5({{"linear_value_head_dim", 4096}, {"linear_num_value_heads", 1024}});
  });
}

}  // namespace
}  // namespace rp
