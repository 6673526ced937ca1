#include <gtest/gtest.h>

#include "tests/common/expect_refusal.h"
#include "tests/model_files/tiny_model.h"

namespace rp {
namespace {

using nlohmann::json;

json tiny_gemma3_json() {
  json config = tiny_llama_json();
  config.update({{"model_type", "gemma3_text"},
                 {"num_hidden_layers", 7},
                 {"hidden_activation", "gelu_pytorch_tanh"},
                 {"sliding_window", 16},
                 {"query_pre_attn_scalar", 16}});
  config.erase("hidden_act");
  config.erase("rope_theta");
  return config;
}

TEST(Gemma3, HasFourNormsAndScales) {
  const ModelConfig config = read_with(tiny_gemma3_json(), json::object());
  EXPECT_EQ(config.norm, NormKind::kOffset);
  EXPECT_DOUBLE_EQ(config.embedding_scale, std::sqrt(8.0));
  EXPECT_EQ(config.padding_id, 0);
  const DecoderLayerConfig& layer = config.layers.at(0);
  EXPECT_EQ(layer.attention.scale, 0.25);
  EXPECT_EQ(layer.attention.head_norm, AttentionConfig::HeadNorm::kEachHead);
  EXPECT_EQ(layer.mlp.activation, Activation::kGeluTanh);
  const std::vector<std::string> norms = {layer.attention_norm, layer.attention_post_norm, layer.mlp_norm,
                                          layer.mlp_post_norm};
  EXPECT_EQ(norms, (std::vector<std::string>{"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                                             "post_feedforward_layernorm"}));
}

TEST(Gemma3, TheLastOfSixLayersSeesAll) {
  const ModelConfig config = read_with(tiny_gemma3_json(), json::object());
  for (std::size_t i = 0; i < 7; ++i) EXPECT_EQ(config.layers[i].attention.window, i == 5 ? 0 : 16) << i;
  EXPECT_EQ(read_with(tiny_gemma3_json(), {{"sliding_window_pattern", 2}}).layers.at(1).attention.window, 0);
  EXPECT_EQ(read_with(tiny_gemma3_json(), {{"sliding_window", nullptr}}).layers.at(0).attention.window, 4096);
}

TEST(Gemma3, LayersRotateByTheirType) {
  const auto ropes_with = [](const json& changes) {
    const ModelConfig config = read_with(tiny_gemma3_json(), changes);
    return std::pair(config.layers.at(5).attention.rope, config.layers.at(0).attention.rope);
  };
  const auto [full, sliding] = ropes_with(json::object());
  EXPECT_EQ(full.theta, 1e6);
  EXPECT_EQ(sliding.theta, 1e4);
  const json scaling = {{"rope_type", "linear"}, {"factor", 8.0}};
  const auto [old_full, old_sliding] =
      ropes_with({{"rope_theta", 5e5}, {"rope_local_base_freq", 2e4}, {"rope_scaling", scaling}});
  EXPECT_EQ(old_full, (RopeConfig{.kind = RopeConfig::Kind::kLinear, .theta = 5e5, .factor = 8}));
  EXPECT_EQ(old_sliding, (RopeConfig{.theta = 2e4})) << "scaling is that of full attention";
  json full_json = scaling;
  full_json["rope_theta"] = 5e5;
  const auto nested =
      ropes_with({{"rope_parameters", {{"full_attention", full_json}, {"sliding_attention", {{"rope_theta", 2e4}}}}}});
  EXPECT_EQ(nested, std::pair(old_full, old_sliding));
}

// transformers ignores rotary parameters that are not grouped by layer type.
TEST(Gemma3, RotaryParametersForAllTypesAtOnceAreRefused) {
  expect_refusal({"rope_parameters", "'full_attention'"}, [] {
    (void)read_with(tiny_gemma3_json(), {{"rope_parameters", {{"rope_type", "default"}}}});
  });
}

TEST(Gemma3, ModelsThatEmbedTextsAreRefused) {
  expect_refusal({"use_bidirectional_attention"}, [] {
    (void)read_with(tiny_gemma3_json(), {{"use_bidirectional_attention", true}});
  });
}

}  // namespace
}  // namespace rp
