#include <gtest/gtest.h>

#include "tests/common/expect_refusal.h"
#include "tests/model_files/tiny_model.h"

namespace rp {
namespace {

using nlohmann::json;

json tiny_qwen3_json() {
  json config = tiny_llama_json();
  config["model_type"] = "qwen3";
  return config;
}

std::vector<std::int64_t> windows_with(const json& changes) {
  std::vector<std::int64_t> windows;
  for (const DecoderLayerConfig& layer : read_with(tiny_qwen3_json(), changes).layers)
    windows.push_back(layer.attention.window);
  return windows;
}

using Windows = std::vector<std::int64_t>;

TEST(Qwen3, EachHeadOfQueriesAndKeysHasANorm) {
  const AttentionConfig attention = read_with(tiny_qwen3_json(), json::object()).layers.at(0).attention;
  EXPECT_EQ(attention.head_norm, AttentionConfig::HeadNorm::kEachHead);
  EXPECT_FALSE(attention.qkv_bias || attention.output_bias);
  EXPECT_TRUE(read_with(tiny_qwen3_json(), {{"attention_bias", true}}).layers.at(0).attention.output_bias);
}

// configuration_qwen3.py: the default is 128, not hidden_size / num_attention_heads.
TEST(Qwen3, AnAbsentHeadSizeIs128) {
  json config = tiny_qwen3_json();
  config.erase("head_dim");
  EXPECT_EQ(read_with(config, json::object()).layers.at(0).attention.head_dim, 128);
}

TEST(Qwen3, SlidingLayersAreThoseThatTheFileNames) {
  EXPECT_EQ(windows_with({{"sliding_window", 32}}), (Windows{0, 0})) << "without use_sliding_window it says nothing";
  json sliding = {{"use_sliding_window", true}, {"sliding_window", 32}, {"max_window_layers", 1}};
  EXPECT_EQ(windows_with(sliding), (Windows{0, 32}));
  sliding["max_window_layers"] = 0;
  EXPECT_EQ(windows_with(sliding), (Windows{32, 32}));
  sliding.erase("max_window_layers");
  EXPECT_EQ(windows_with(sliding), (Windows{0, 0})) << "from layer 28 on";
  sliding["layer_types"] = {"sliding_attention", "full_attention"};
  EXPECT_EQ(windows_with(sliding), (Windows{32, 0}));
}

TEST(Qwen3, AnImpossibleListOfLayersIsRefused) {
  json sliding = {{"use_sliding_window", true}, {"sliding_window", 32}, {"layer_types", {"sliding_attention"}}};
  expect_refusal({"config.json", "layer_types has 1 entries", "num_hidden_layers is 2"},
                 [&] { windows_with(sliding); });
  sliding["layer_types"] = {"sliding_attention", "linear_attention"};
  expect_refusal({"layer_types", "'linear_attention'", "'full_attention'"}, [&] { windows_with(sliding); });
  expect_refusal({"no sliding_window"}, [] { windows_with({{"use_sliding_window", true}, {"max_window_layers", 1}}); });
}

}  // namespace
}  // namespace rp
