#include <gtest/gtest.h>

#include "tests/common/expect_refusal.h"
#include "tests/model_files/tiny_model.h"

namespace rp {
namespace {

TEST(GptOss, HasSinksBiasesExpertsAndYarn) {
  const ModelConfig config = preset_config("gpt-oss-20b");
  EXPECT_EQ(config.norm, NormKind::kUnrounded);
  const DecoderLayerConfig& layer = config.layers.at(0);
  EXPECT_TRUE(layer.attention.has_sinks && layer.attention.qkv_bias && layer.attention.output_bias &&
              layer.mlp.has_bias);
  EXPECT_EQ(layer.attention.head_norm, AttentionConfig::HeadNorm::kNone);
  EXPECT_EQ(layer.mlp.activation, Activation::kClampedSwish);
  ASSERT_TRUE(layer.mlp.experts.has_value());
  EXPECT_EQ(layer.mlp.experts->router, ExpertsConfig::Router::kLargestFirst);
  EXPECT_EQ(layer.mlp.experts->num, 32);
  EXPECT_EQ(layer.mlp.experts->per_token, 4);
  const RopeConfig& rope = layer.attention.rope;
  EXPECT_EQ(rope.kind, RopeConfig::Kind::kYarn);
  EXPECT_EQ(rope.theta, 150'000);
  EXPECT_EQ(rope.original_positions, 4096);
  EXPECT_FALSE(rope.truncates);
  EXPECT_NEAR(rope.attention_factor, 1.3465735902799727, 1e-12);
}

TEST(GptOss, EvenLayersSlide) {
  const ModelConfig config = preset_config("gpt-oss-20b");
  for (std::int64_t i = 0; i < config.num_layers(); ++i) {
    EXPECT_EQ(config.layers[i].attention.window, i % 2 == 0 ? 128 : 0) << i;
  }
}

TEST(GptOss, AnotherLimitOfTheActivationIsRefused) {
  nlohmann::json config = tiny_llama_json();
  config.update(
      {{"model_type", "gpt_oss"}, {"num_local_experts", 4}, {"num_experts_per_tok", 2}, {"sliding_window", 8}});
  EXPECT_EQ(read_with(config, {{"swiglu_limit", 7.0}}).layers.at(0).mlp.intermediate, 12);
  expect_refusal({"swiglu_limit", "must be 7"}, [&] { read_with(config, {{"swiglu_limit", 5.0}}); });
}

}  // namespace
}  // namespace rp
