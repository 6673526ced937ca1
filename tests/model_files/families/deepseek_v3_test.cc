#include <gtest/gtest.h>

#include <cmath>

#include "model_files/layer_tensors.h"
#include "tests/common/expect_refusal.h"
#include "tests/model_files/tiny_model.h"

namespace rp {
namespace {

using nlohmann::json;

json tiny_deepseek_json() {
  return {{"model_type", "deepseek_v3"},
          {"hidden_size", 10},
          {"intermediate_size", 24},
          {"moe_intermediate_size", 6},
          {"num_hidden_layers", 5},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 4},
          {"q_lora_rank", 7},
          {"kv_lora_rank", 9},
          {"qk_nope_head_dim", 3},
          {"qk_rope_head_dim", 2},
          {"v_head_dim", 5},
          {"vocab_size", 10},
          {"n_routed_experts", 16},
          {"num_experts_per_tok", 3},
          {"scoring_func", "sigmoid"},
          {"topk_method", "noaux_tc"}};
}

json tiny_glm_lite_json() {
  json file = tiny_deepseek_json();
  file["model_type"] = "glm4_moe_lite";
  return file;
}

ModelConfig read_deepseek(const json& changes = json::object()) { return read_with(tiny_deepseek_json(), changes); }

LatentAttentionConfig attention_with(const json& changes = json::object()) {
  return read_deepseek(changes).layers.at(0).latent_attention.value();
}

json without(json file, const std::vector<const char*>& keys) {
  for (const char* key : keys) file.erase(key);
  return file;
}

TEST(DeepseekV3, KeysAndValuesAreComputedFromOneSmallRow) {
  const LatentAttentionConfig attention = attention_with();
  EXPECT_EQ(attention, (LatentAttentionConfig{.num_heads = 4,
                                              .query_rank = 7,
                                              .kv_rank = 9,
                                              .plain_dim = 3,
                                              .rotated_dim = 2,
                                              .value_dim = 5,
                                              .scale = 1 / std::sqrt(5.0)}));
  EXPECT_EQ(attention_with({{"rms_norm_eps", 1e-3}}).norm_epsilon, 1e-6) << "whatever the other norms have";
  EXPECT_TRUE(attention_with({{"attention_bias", true}}).has_bias);
  EXPECT_FALSE(attention_with({{"rope_interleave", false}}).pairs_neighbours);
  EXPECT_FALSE(attention_with({{"rope_interleave", nullptr}}).pairs_neighbours);
}

TEST(DeepseekV3, TensorsHaveTheNamesAndShapesOfFiles) {
  using Shape = std::vector<std::int64_t>;
  const auto shape_of = [](const ModelConfig& config, const std::string& name) {
    const LayerTensors layer = tensors_of_layer(config, 1);
    const LayerTensor* tensor = layer.find("self_attn." + name);
    return tensor == nullptr ? Shape() : tensor->shape;
  };
  const ModelConfig config = read_deepseek({{"attention_bias", true}});
  EXPECT_EQ(shape_of(config, "q_a_proj.weight"), (Shape{7, 10}));
  EXPECT_EQ(shape_of(config, "q_a_layernorm.weight"), (Shape{7}));
  EXPECT_EQ(shape_of(config, "q_b_proj.weight"), (Shape{4 * 5, 7}));
  EXPECT_EQ(shape_of(config, "kv_a_proj_with_mqa.weight"), (Shape{9 + 2, 10}));
  EXPECT_EQ(shape_of(config, "kv_a_layernorm.weight"), (Shape{9}));
  EXPECT_EQ(shape_of(config, "kv_b_proj.weight"), (Shape{4 * (3 + 5), 9}));
  EXPECT_EQ(shape_of(config, "o_proj.weight"), (Shape{10, 4 * 5}));
  for (const char* name : {"q_a_proj.bias", "kv_a_proj_with_mqa.bias", "o_proj.bias"})
    EXPECT_NE(shape_of(config, name), Shape()) << name;
  for (const char* name : {"q_b_proj.bias", "kv_b_proj.bias", "q_proj.weight", "k_proj.weight"})
    EXPECT_EQ(shape_of(config, name), Shape()) << name;

  const ModelConfig direct = read_deepseek({{"q_lora_rank", nullptr}, {"attention_bias", true}});
  EXPECT_EQ(shape_of(direct, "q_proj.weight"), (Shape{4 * 5, 10}));
  for (const char* name : {"q_proj.bias", "q_a_proj.weight", "q_a_layernorm.weight", "q_b_proj.weight"})
    EXPECT_EQ(shape_of(direct, name), Shape()) << name;
}

TEST(DeepseekV3, AbsentKeysHaveTheDefaultsOfTheClasses) {
  const std::vector<const char*> keys = {"q_lora_rank",         "kv_lora_rank",      "qk_nope_head_dim",
                                         "qk_rope_head_dim",    "v_head_dim",        "num_attention_heads",
                                         "num_key_value_heads", "intermediate_size", "num_experts_per_tok"};
  const ModelConfig config = read_with(without(tiny_deepseek_json(), keys), json::object());
  EXPECT_EQ(config.layers.at(0).latent_attention, (LatentAttentionConfig{.num_heads = 128,
                                                                         .query_rank = 1536,
                                                                         .kv_rank = 512,
                                                                         .plain_dim = 128,
                                                                         .rotated_dim = 64,
                                                                         .value_dim = 128,
                                                                         .scale = 1 / std::sqrt(192.0)}));
  EXPECT_EQ(config.layers[0].mlp.intermediate, 18'432);
  EXPECT_FALSE(config.layers.at(2).mlp.experts.has_value());
  const ExpertsConfig experts = config.layers.at(3).mlp.experts.value();
  EXPECT_EQ(experts.per_token, 8);
  EXPECT_EQ(experts.num_groups, 8);
  EXPECT_EQ(experts.groups_per_token, 4);
  EXPECT_EQ(experts.weight_scale, 2.5);
  EXPECT_TRUE(experts.normalises);
  EXPECT_FALSE(read_deepseek({{"norm_topk_prob", nullptr}}).layers.at(3).mlp.experts->normalises);
  EXPECT_EQ(config.norm_epsilon, 1e-6);
  EXPECT_EQ(config.max_sequence_length, 4096);
  EXPECT_EQ(config.num_further_layers, 1);

  const ModelConfig glm = read_with(without(tiny_glm_lite_json(), keys), json::object());
  EXPECT_EQ(glm.layers.at(0).latent_attention, (LatentAttentionConfig{.num_heads = 20,
                                                                      .query_rank = 768,
                                                                      .kv_rank = 512,
                                                                      .plain_dim = 192,
                                                                      .rotated_dim = 64,
                                                                      .value_dim = 256,
                                                                      .scale = 1.0 / 16}));
  EXPECT_EQ(glm.layers[0].mlp.intermediate, 10'240);
  EXPECT_EQ(glm.norm_epsilon, 1e-5);
  EXPECT_EQ(glm.max_sequence_length, 202'752);
  EXPECT_EQ(glm.layers.at(1).mlp.experts->per_token, 4);
  EXPECT_EQ(glm.layers[1].mlp.experts->num_groups, 1);
  EXPECT_EQ(glm.layers[1].mlp.experts->weight_scale, 1.8);
}

// m(40, 1) = 0.1 ln 40 + 1 = 1.36889.
TEST(DeepseekV3, AStretchedContextRaisesTheScores) {
  const auto growth = [](const json& rope, const char* key = "rope_scaling") {
    return attention_with({{key, rope}}).scale * std::sqrt(5.0);
  };
  json yarn = {{"type", "yarn"}, {"factor", 40}, {"original_max_position_embeddings", 64}};
  EXPECT_NEAR(growth(yarn), 1, 1e-12);
  yarn["mscale"] = yarn["mscale_all_dim"] = 1.0;
  EXPECT_NEAR(growth(yarn), 1.36889 * 1.36889, 1e-4);
  EXPECT_EQ(attention_with({{"rope_scaling", yarn}}).rope.attention_factor, 1);
  yarn["mscale_all_dim"] = 0.5;
  EXPECT_NEAR(growth(yarn), 1.184444 * 1.184444, 1e-4);
  EXPECT_NEAR(growth({{"rope_type", "linear"}, {"factor", 40}, {"mscale_all_dim", 1}}, "rope_parameters"),
              1.36889 * 1.36889, 1e-4);
  EXPECT_NEAR(growth({{"rope_type", "default"}, {"factor", 40}, {"mscale_all_dim", 1}}, "rope_parameters"), 1, 1e-12);
  json linear = {{"rope_type", "linear"}, {"factor", 2.0}}, other = linear;
  other["mscale_all_dim"] = 1;
  expect_error(ExitCode::kBadInput, {"differ in mscale_all_dim"}, [&] {
    (void)read_deepseek({{"rope_scaling", linear}, {"rope_parameters", other}});
  });
}

TEST(DeepseekV3, GlmSaysWhichLayersHaveExperts) {
  const auto are_sparse = [](const json& changes) {
    std::vector<bool> sparse;
    for (const DecoderLayerConfig& layer : read_with(tiny_glm_lite_json(), changes).layers)
      sparse.push_back(layer.mlp.experts.has_value());
    return sparse;
  };
  EXPECT_EQ(are_sparse({{"mlp_layer_types", {"sparse", "dense", "dense", "sparse", "dense"}}}),
            (std::vector<bool>{true, false, false, true, false}));
  EXPECT_EQ(are_sparse({{"first_k_dense_replace", 3}}), (std::vector<bool>{false, true, true, true, true}))
      << "transformers does not read it in this family";
  expect_error(ExitCode::kBadInput, {"mlp_layer_types has 1 entries", "num_hidden_layers is 5"}, [&] {
    (void)are_sparse({{"mlp_layer_types", {"sparse"}}});
  });
  expect_error(ExitCode::kBadInput, {"mlp_layer_types has 'wide'", "'sparse'"}, [&] {
    (void)are_sparse({{"mlp_layer_types", {"sparse", "wide", "dense", "dense", "dense"}}});
  });
}

TEST(DeepseekV3, SettingsThatDoNotFitAreRefused) {
  const std::vector<std::pair<json, std::vector<std::string>>> cases = {
      {{{"num_key_value_heads", 2}}, {"num_key_value_heads is 2", "num_attention_heads is 4"}},
      {{{"qk_rope_head_dim", 3}}, {"qk_rope_head_dim is 3", "even"}},
      {{{"head_dim", 4}}, {"head_dim is 4", "qk_rope_head_dim is 2"}},
      {{{"qk_nope_head_dim", 0}}, {"qk_nope_head_dim", "from 1"}},
      {{{"num_attention_heads", 16'384}, {"num_key_value_heads", 16'384}, {"v_head_dim", 128}}, {"wider"}},
      {{{"scoring_func", "softmax"}}, {"scoring_func is 'softmax'", "'sigmoid'"}},
      {{{"topk_method", "greedy"}}, {"topk_method is 'greedy'", "'noaux_tc'"}},
      {{{"moe_layer_freq", 2}}, {"moe_layer_freq"}},
      {{{"partial_rotary_factor", 0.5}}, {"partial_rotary_factor"}}};
  for (const auto& [changes, parts] : cases) {
    SCOPED_TRACE(changes.dump());
    expect_error(ExitCode::kBadInput, parts, [&] { (void)read_deepseek(changes); });
  }
  EXPECT_EQ(read_deepseek({{"head_dim", 2}}).layers, read_deepseek().layers);
}

TEST(DeepseekV3, TextsOfLayersDifferWhereTheirLatentAttentionDoes) {
  const ModelConfig model = read_deepseek();
  for (const json& changes :
       {json{{"q_lora_rank", 8}}, json{{"kv_lora_rank", 8}}, json{{"v_head_dim", 4}}, json{{"attention_bias", true}},
        json{{"rope_interleave", false}}, json{{"rope_theta", 5.0}}}) {
    EXPECT_NE(text_of_layer(read_deepseek(changes), 1), text_of_layer(model, 1)) << changes.dump();
  }
  EXPECT_EQ(text_of_layer(model, 1), text_of_layer(model, 2));
}

}  // namespace
}  // namespace rp
