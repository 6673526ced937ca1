#include <gtest/gtest.h>

#include "tests/model_files/tiny_model.h"

namespace rp {
namespace {

nlohmann::json tiny_mistral_json() {
  nlohmann::json config = tiny_llama_json();
  config["model_type"] = "mistral";
  return config;
}

// configuration_mistral.py: 4096 if the key is absent, no window if it is null.
TEST(Mistral, EveryLayerHasTheWindowOfTheFile) {
  EXPECT_EQ(read_with(tiny_mistral_json(), nlohmann::json::object()).layers.at(0).attention.window, 4096);
  EXPECT_EQ(read_with(tiny_mistral_json(), {{"sliding_window", nullptr}}).layers.at(0).attention.window, 0);
  const ModelConfig config = read_with(tiny_mistral_json(), {{"sliding_window", 16}});
  for (const DecoderLayerConfig& layer : config.layers) EXPECT_EQ(layer.attention.window, 16);
}

TEST(Mistral, HasNoBiases) {
  const DecoderLayerConfig layer = read_with(tiny_mistral_json(), nlohmann::json::object()).layers.at(0);
  EXPECT_FALSE(layer.attention.qkv_bias || layer.attention.output_bias || layer.mlp.has_bias);
}

}  // namespace
}  // namespace rp
