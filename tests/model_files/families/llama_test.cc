#include <gtest/gtest.h>

#include "tests/model_files/tiny_model.h"

namespace rp {
namespace {

TEST(Llama, BiasesAreThoseThatTheFileAsksFor) {
  const DecoderLayerConfig plain = read_with(tiny_llama_json(), nlohmann::json::object()).layers.at(0);
  EXPECT_FALSE(plain.attention.qkv_bias || plain.attention.output_bias || plain.mlp.has_bias);
  const DecoderLayerConfig biased =
      read_with(tiny_llama_json(), {{"attention_bias", true}, {"mlp_bias", true}}).layers.at(1);
  EXPECT_TRUE(biased.attention.qkv_bias && biased.attention.output_bias && biased.mlp.has_bias);
}

TEST(Llama, HasNoNormOfHeadsAndNoWindow) {
  const ModelConfig config = read_with(tiny_llama_json(), {{"sliding_window", 4}, {"use_sliding_window", false}});
  EXPECT_EQ(config.norm, NormKind::kRounded);
  for (const DecoderLayerConfig& layer : config.layers) {
    EXPECT_EQ(layer.attention.head_norm, AttentionConfig::HeadNorm::kNone);
    EXPECT_EQ(layer.attention.window, 0);
    EXPECT_EQ(layer.mlp.activation, Activation::kSilu);
    EXPECT_FALSE(layer.attention.has_sinks || layer.mlp.experts);
  }
}

}  // namespace
}  // namespace rp
