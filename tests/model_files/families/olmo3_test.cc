#include <gtest/gtest.h>

#include "tests/model_files/tiny_model.h"

namespace rp {
namespace {

nlohmann::json tiny_olmo3_json() {
  nlohmann::json config = tiny_llama_json();
  config.update({{"model_type", "olmo3"}, {"num_hidden_layers", 5}, {"sliding_window", 16}});
  config.erase("rope_theta");
  return config;
}

TEST(Olmo3, NormsAreBehindAttentionAndMlpAndOverAllHeads) {
  const ModelConfig config = read_with(tiny_olmo3_json(), nlohmann::json::object());
  EXPECT_EQ(config.norm, NormKind::kUnrounded);
  const DecoderLayerConfig& layer = config.layers.at(0);
  EXPECT_EQ(layer.attention_norm + layer.mlp_norm, "");
  EXPECT_EQ(layer.attention_post_norm, "post_attention_layernorm");
  EXPECT_EQ(layer.mlp_post_norm, "post_feedforward_layernorm");
  EXPECT_EQ(layer.attention.head_norm, AttentionConfig::HeadNorm::kWholeRow);
}

TEST(Olmo3, EveryFourthLayerSeesAllAndRotatesAsTheFileSays) {
  const nlohmann::json yarn = {{"rope_type", "yarn"}, {"factor", 8.0}, {"rope_theta", 1e4}, {"attention_factor", 1.2}};
  const ModelConfig config =
      read_with(tiny_olmo3_json(),
                {{"rope_parameters", {{"full_attention", yarn}, {"sliding_attention", {{"rope_type", "default"}}}}}});
  for (std::size_t i = 0; i < 5; ++i) {
    const AttentionConfig& attention = config.layers[i].attention;
    EXPECT_EQ(attention.window, i == 3 ? 0 : 16) << i;
    EXPECT_EQ(attention.rope.kind, i == 3 ? RopeConfig::Kind::kYarn : RopeConfig::Kind::kPlain) << i;
    EXPECT_EQ(attention.rope.theta, i == 3 ? 1e4 : 5e5) << i;
    EXPECT_FALSE(attention.rope.rounds_table);
  }
}

}  // namespace
}  // namespace rp
