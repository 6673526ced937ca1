#include <gtest/gtest.h>

#include "tests/common/expect_refusal.h"
#include "tests/model_files/tiny_model.h"

namespace rp {
namespace {

using nlohmann::json;

json tiny_ministral3_json() {
  json config = tiny_llama_json();
  config["model_type"] = "ministral3";
  for (const char* key : {"rope_theta", "rms_norm_eps", "head_dim", "num_key_value_heads"}) config.erase(key);
  config["num_attention_heads"] = 8;
  return config;
}

json yarn() {
  return {{"rope_type", "yarn"},
          {"rope_theta", 1e6},
          {"factor", 16.0},
          {"original_max_position_embeddings", 1024},
          {"mscale", 1.0},
          {"mscale_all_dim", 1.0},
          {"llama_4_scaling_beta", 0.2}};
}

ModelConfig read_ministral3(const json& changes = json::object()) { return read_with(tiny_ministral3_json(), changes); }

TEST(Ministral3, HasItsClasssDefaults) {
  const ModelConfig config = read_ministral3({{"max_position_embeddings", nullptr}});
  EXPECT_EQ(config.norm_epsilon, 1e-5);
  EXPECT_EQ(config.max_sequence_length, 262'144);
  EXPECT_EQ(config.padding_id, -1) << "11 is no token of ten";
  const AttentionConfig& attention = config.layers.at(0).attention;
  EXPECT_EQ(attention.num_kv_heads, 8);
  EXPECT_EQ(attention.head_dim, 128);
  EXPECT_EQ(attention.window, 0);
  EXPECT_EQ(attention.rope,
            (RopeConfig{.kind = RopeConfig::Kind::kYarn, .theta = 1e6, .factor = 16, .original_positions = 16'384}));
  EXPECT_EQ(attention.query_growth, 0.1);
  EXPECT_EQ(attention.query_growth_positions, 16'384);
  EXPECT_EQ(read_ministral3({{"sliding_window", 7}}).layers.at(1).attention.window, 7);
  EXPECT_EQ(read_ministral3({{"vocab_size", nullptr}}).vocabulary, 131'072);
  EXPECT_EQ(read_ministral3({{"vocab_size", nullptr}}).padding_id, 11);
}

TEST(Ministral3, QueriesGrowAsTheRotaryParametersSay) {
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const AttentionConfig attention = read_ministral3({{key, yarn()}}).layers.at(1).attention;
    EXPECT_EQ(attention.rope.original_positions, 1024);
    EXPECT_EQ(attention.rope.attention_factor, 1);
    EXPECT_EQ(attention.query_growth, 0.2);
    EXPECT_EQ(attention.query_growth_positions, 1024);
  }
  ModelConfig other = read_ministral3({{"rope_parameters", yarn()}});
  const std::string text = text_of_layer(other, 1);
  other.layers[0].attention.query_growth = 0.3;
  EXPECT_NE(text_of_layer(other, 1), text);
}

// transformers fails with an error in the first forward.
TEST(Ministral3, RotaryParametersThatSayNothingOfItAreRefused) {
  for (const char* key : {"llama_4_scaling_beta", "original_max_position_embeddings"}) {
    json rope = yarn();
    rope.erase(key);
    expect_refusal({"config.json", key}, [&] { read_ministral3({{"rope_parameters", rope}}); });
  }
}

TEST(Ministral3, IsReadWithinAMistral3) {
  const ModelConfig config =
      read_with({{"model_type", "mistral3"}, {"text_config", tiny_ministral3_json()}, {"tie_word_embeddings", false}},
                json::object());
  EXPECT_EQ(config.family, "ministral3");
  EXPECT_EQ(config.wrapper, "mistral3");
  EXPECT_FALSE(config.tied_head);
}

}  // namespace
}  // namespace rp
