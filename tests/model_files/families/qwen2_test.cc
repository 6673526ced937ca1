#include <gtest/gtest.h>

#include "tests/model_files/tiny_model.h"

namespace rp {
namespace {

nlohmann::json tiny_qwen2_json() {
  nlohmann::json config = tiny_llama_json();
  config["model_type"] = "qwen2";
  return config;
}

TEST(Qwen2, QueriesKeysAndValuesHaveBiasesWhateverTheFileSays) {
  const AttentionConfig attention = read_with(tiny_qwen2_json(), {{"attention_bias", false}}).layers.at(0).attention;
  EXPECT_TRUE(attention.qkv_bias);
  EXPECT_FALSE(attention.output_bias);
  EXPECT_EQ(attention.head_norm, AttentionConfig::HeadNorm::kNone);
}

// modeling_qwen2.py: head_dim is read if it is present; the config class itself has none.
TEST(Qwen2, AnAbsentHeadSizeFollowsFromTheOthers) {
  nlohmann::json config = tiny_qwen2_json();
  config.erase("head_dim");
  EXPECT_EQ(read_with(config, {{"hidden_size", 24}}).layers.at(0).attention.head_dim, 6);
}

}  // namespace
}  // namespace rp
