#include <gtest/gtest.h>

#include "model_files/layer_tensors.h"
#include "model_files/part_selection.h"
#include "tests/common/expect_refusal.h"
#include "tests/model_files/tiny_model.h"

namespace rp {
namespace {

using nlohmann::json;

json tiny_glm_json() {
  return {{"model_type", "glm4_moe"},
          {"hidden_size", 16},
          {"intermediate_size", 24},
          {"moe_intermediate_size", 6},
          {"num_hidden_layers", 3},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 8},
          {"vocab_size", 10},
          {"n_routed_experts", 12},
          {"num_experts_per_tok", 3},
          {"n_group", 4},
          {"topk_group", 2},
          {"n_shared_experts", 2},
          {"routed_scaling_factor", 2.5}};
}

ModelConfig read_glm(const json& changes = json::object()) { return read_with(tiny_glm_json(), changes); }

TEST(Glm4Moe, ExpertsHaveASigmoidRouterWithGroupsAndAnUngatedSharedExpert) {
  const ModelConfig config = read_glm();
  EXPECT_FALSE(config.layers.at(0).mlp.experts.has_value()) << "first_k_dense_replace is 1 if absent";
  EXPECT_EQ(config.layers[0].mlp.intermediate, 24);
  const MlpConfig& mlp = config.layers.at(1).mlp;
  ASSERT_TRUE(mlp.experts.has_value());
  EXPECT_EQ(mlp.intermediate, 6);
  EXPECT_EQ(mlp.experts->router, ExpertsConfig::Router::kSigmoid);
  EXPECT_EQ(mlp.experts->num_groups, 4);
  EXPECT_EQ(mlp.experts->groups_per_token, 2);
  EXPECT_EQ(mlp.experts->weight_scale, 2.5);
  EXPECT_TRUE(mlp.experts->normalises);
  EXPECT_EQ(mlp.experts->balance_coefficient, 0);
  EXPECT_EQ(mlp.experts->shared, (SharedExpertConfig{.name = "mlp.shared_experts", .intermediate = 12}));
  EXPECT_EQ(read_glm({{"output_router_logits", true}}).layers, config.layers) << "there is no auxiliary loss";
  EXPECT_TRUE(read_glm({{"first_k_dense_replace", 0}}).layers.at(0).mlp.experts.has_value());
  EXPECT_FALSE(read_glm({{"first_k_dense_replace", 7}}).layers.at(2).mlp.experts.has_value());
}

TEST(Glm4Moe, AttentionRotatesHalfOfEachHead) {
  const AttentionConfig attention = read_glm().layers.at(0).attention;
  EXPECT_EQ(attention.rotated_dim(), 4);
  EXPECT_EQ(attention.head_norm, AttentionConfig::HeadNorm::kNone);
  EXPECT_FALSE(attention.qkv_bias);
  const AttentionConfig with = read_glm({{"attention_bias", true}, {"use_qk_norm", true}}).layers.at(0).attention;
  EXPECT_TRUE(with.qkv_bias);
  EXPECT_FALSE(with.output_bias);
  EXPECT_EQ(with.head_norm, AttentionConfig::HeadNorm::kEachHead);
}

TEST(Glm4Moe, AbsentKeysHaveTheDefaultsOfTheClass) {
  json file = tiny_glm_json();
  for (const char* key : {"num_experts_per_tok", "n_group", "topk_group", "n_shared_experts", "routed_scaling_factor",
                          "intermediate_size", "head_dim"}) {
    file.erase(key);
  }
  const ModelConfig config = read_with(file, json::object());
  EXPECT_EQ(config.layers.at(0).mlp.intermediate, 10'944);
  EXPECT_EQ(config.layers.at(0).attention.head_dim, 4) << "hidden / heads";
  const MlpConfig& mlp = config.layers.at(1).mlp;
  EXPECT_EQ(mlp.experts->per_token, 8);
  EXPECT_EQ(mlp.experts->shared->intermediate, 6);
  EXPECT_EQ(mlp.experts->num_groups, 1);
  EXPECT_EQ(mlp.experts->weight_scale, 1);
  EXPECT_EQ(config.norm_epsilon, 1e-5);
  EXPECT_EQ(config.num_further_layers, 1);
}

TEST(Glm4Moe, CorrectionsOfTheRouterAreNeverTrainedAndAreNoParameters) {
  const ModelConfig config = read_glm();
  const LayerTensors layer = tensors_of_layer(config, 2);
  const LayerTensor* correction = layer.find("mlp.gate.e_score_correction_bias");
  ASSERT_NE(correction, nullptr);
  EXPECT_EQ(correction->shape, (std::vector<std::int64_t>{12}));
  EXPECT_TRUE(correction->is_buffer);
  EXPECT_TRUE(correction->is_fp32);
  EXPECT_FALSE(correction->is_trained);
  EXPECT_EQ(tensors_of_layer(config, 1).find("mlp.gate.e_score_correction_bias"), nullptr);
  EXPECT_EQ(num_trained(tensors_of(config)), num_parameters(tensors_of(config)));
  const TrainedParts parts{.freeze = ".*", .train = "e_score_correction_bias"};
  expect_error(ExitCode::kUsage, {"e_score_correction_bias", "matches nothing"},
               [&] { (void)summarise(config, parts); });
}

TEST(Glm4Moe, GroupsThatDoNotFitAreRefused) {
  expect_error(ExitCode::kBadInput, {"n_group is 5", "n_routed_experts 12"}, [] { (void)read_glm({{"n_group", 5}}); });
  expect_error(ExitCode::kBadInput, {"n_group is 12", "at least 2 experts"}, [] { (void)read_glm({{"n_group", 12}}); });
  expect_error(ExitCode::kBadInput, {"topk_group 5", "n_group 4"}, [] { (void)read_glm({{"topk_group", 5}}); });
  expect_error(ExitCode::kBadInput, {"num_experts_per_tok is 7", "only 6"}, [] {
    (void)read_glm({{"num_experts_per_tok", 7}});
  });
  expect_error(ExitCode::kBadInput, {"n_shared_experts 60000", "wider"}, [] {
    (void)read_glm({{"n_shared_experts", 60'000}, {"moe_intermediate_size", 1000}});
  });
}

}  // namespace
}  // namespace rp
