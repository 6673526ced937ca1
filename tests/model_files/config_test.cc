#include "model_files/config.h"

#include <gtest/gtest.h>

#include "tests/common/expect_refusal.h"
#include "tests/common/temp_directory.h"
#include "tests/model_files/llama_directory.h"

namespace rp {
namespace {

using nlohmann::json;

// The tiny configuration with some members replaced; a null removes nothing, as in the files.
LlamaConfig read_with(const json& changes) {
  const TempDirectory directory;
  json config = tiny_llama_json();
  config.update(changes);
  return read_llama_config(directory.write("config.json", config.dump()));
}

TEST(Config, EverySettingOfALlamaIsRead) {
  const LlamaConfig config = read_with({{"attention_bias", true}});
  EXPECT_EQ(config.hidden_size, 8);
  EXPECT_EQ(config.intermediate_size, 12);
  EXPECT_EQ(config.num_layers, 2);
  EXPECT_EQ(config.num_heads, 4);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 2);
  EXPECT_EQ(config.vocabulary, 10);
  EXPECT_EQ(config.max_sequence_length, 64);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_EQ(config.rope_theta, 10000);
  EXPECT_FALSE(config.rope_scaling.has_value());
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_TRUE(config.attention_bias);
  EXPECT_FALSE(config.mlp_bias);
  EXPECT_EQ(config.dtype, TensorDType::kBF16);
}

TEST(Config, AnAbsentOrNullHeadSettingFollowsFromTheOthers) {
  const LlamaConfig config = read_with({{"num_key_value_heads", nullptr}, {"head_dim", nullptr}});
  EXPECT_EQ(config.num_kv_heads, 4);
  EXPECT_EQ(config.head_dim, 2);
  EXPECT_EQ(read_with({{"head_dim", 6}}).head_dim, 6) << "need not be hidden_size / num_attention_heads";
}

TEST(Config, RotaryParametersAreReadInBothSpellings) {
  const json scaling = {
      {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 32}};
  const Llama3RopeScaling expected{8, 1, 4, 32};
  json old_style = scaling, old_type = scaling, new_style = scaling;
  old_style["rope_type"] = "llama3";
  old_type["type"] = "llama3";
  new_style["rope_type"] = "llama3";
  new_style["rope_theta"] = 500000.0;
  EXPECT_EQ(read_with({{"rope_scaling", old_style}}).rope_scaling, expected);
  EXPECT_EQ(read_with({{"rope_scaling", old_type}}).rope_scaling, expected);
  const LlamaConfig config = read_with({{"rope_parameters", new_style}});
  EXPECT_EQ(config.rope_scaling, expected);
  EXPECT_EQ(config.rope_theta, 500000);
  EXPECT_FALSE(read_with({{"rope_parameters", {{"rope_type", "default"}}}}).rope_scaling.has_value());
  EXPECT_FALSE(read_with({{"rope_scaling", nullptr}}).rope_scaling.has_value());
  old_style.erase("original_max_position_embeddings");
  EXPECT_EQ(read_with({{"rope_scaling", old_style}}).rope_scaling->original_max_position_embeddings, 64);
}

TEST(Config, RotaryParametersInTwoSpellingsMustAgree) {
  const json scaling = {{"rope_type", "llama3"},    {"factor", 8.0}, {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 32}};
  json other = scaling;
  other["factor"] = 32.0;
  const std::vector<std::string> parts = {"rope_parameters and rope_scaling", "different", "remove the wrong one"};
  EXPECT_EQ(read_with({{"rope_parameters", scaling}, {"rope_scaling", scaling}}).rope_scaling->factor, 8);
  expect_refusal(parts, [&] { read_with({{"rope_parameters", scaling}, {"rope_scaling", other}}); });
  expect_refusal(parts, [&] { read_with({{"rope_parameters", {{"rope_type", "default"}}}, {"rope_scaling", scaling}}); });
  json theta = scaling;
  theta["rope_theta"] = 500000.0;
  expect_refusal(parts, [&] { read_with({{"rope_parameters", theta}, {"rope_scaling", scaling}}); });
}

TEST(Config, TheOriginalLengthIsReadBesideTheRotaryParametersTooWhereBothAgree) {
  constexpr const char* kKey = "original_max_position_embeddings";
  json scaling = {{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}};
  EXPECT_EQ(read_with({{"rope_scaling", scaling}, {kKey, 16}}).rope_scaling->original_max_position_embeddings, 16);
  scaling[kKey] = 32;
  EXPECT_EQ(read_with({{"rope_scaling", scaling}, {kKey, 32}}).rope_scaling->original_max_position_embeddings, 32);
  expect_refusal({kKey, "16", "32", "remove"}, [&] { read_with({{"rope_scaling", scaling}, {kKey, 16}}); });
}

TEST(Config, WhatIsSpelledOutAsOffIsNoObstacle) {
  EXPECT_EQ(read_with({{"sliding_window", 4096}, {"use_sliding_window", false}}).num_layers, 2);
  EXPECT_EQ(read_with({{"sliding_window", nullptr}, {"rope_interleaved", false}}).num_layers, 2);
  EXPECT_EQ(read_with({{"layer_types", {"full_attention", "full_attention"}}, {"logits_scaling", 1.0}}).num_layers, 2);
}

TEST(Config, TheDtypeIsReadUnderItsOldName) {
  EXPECT_EQ(read_with({{"dtype", nullptr}, {"torch_dtype", "float16"}}).dtype, TensorDType::kF16);
  EXPECT_EQ(read_with({{"dtype", nullptr}}).dtype, TensorDType::kF32);
}

TEST(Config, EveryImpossibleValueIsRefusedWithItsKeyAndWhatItMustBe) {
  const std::vector<std::pair<json, std::vector<std::string>>> cases = {
      {{{"model_type", "mamba"}}, {"'mamba'", "'llama'"}},
      {{{"model_type", 3}}, {"model_type", "a string"}},
      {{{"hidden_act", "gelu"}}, {"'gelu'", "'silu'"}},
      {{{"quantization_config", json::object()}}, {"quantized"}},
      {{{"attention_dropout", 0.1}}, {"attention_dropout", "must be 0"}},
      {{{"sliding_window", 4096}}, {"sliding_window is '4096'", "absent or null"}},
      {{{"layer_types", {"full_attention", "sliding_attention"}}}, {"layer_types", "sliding_attention", "'full_attention'"}},
      {{{"logits_scaling", 8.0}}, {"logits_scaling", "must be 1"}},
      {{{"embedding_multiplier", 12.0}}, {"embedding_multiplier"}},
      {{{"residual_multiplier", 0.2}}, {"residual_multiplier"}},
      {{{"attention_multiplier", 0.1}}, {"attention_multiplier", "not supported"}},
      {{{"final_logit_softcapping", 30.0}}, {"final_logit_softcapping"}},
      {{{"attn_logit_softcapping", 50.0}}, {"attn_logit_softcapping"}},
      {{{"clip_qkv", 8.0}}, {"clip_qkv"}},
      {{{"rope_interleaved", true}}, {"rope_interleaved"}},
      {{{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}}, {"rope_parameters", "'full_attention'"}},
      {{{"hidden_size", 0}}, {"hidden_size", "from 1 to 1048576"}},
      {{{"hidden_size", -8}}, {"hidden_size", "from 1"}},
      {{{"hidden_size", 8.0}}, {"hidden_size", "whole number"}},
      {{{"hidden_size", "8"}}, {"hidden_size", "whole number"}},
      {{{"hidden_size", nullptr}}, {"no hidden_size"}},
      {{{"num_hidden_layers", 1'000'000'000}}, {"num_hidden_layers", "10000"}},
      {{{"vocab_size", std::int64_t{1} << 31}}, {"vocab_size", "16777216"}},
      {{{"vocab_size", UINT64_MAX}}, {"vocab_size", "18446744073709551615"}},
      {{{"num_attention_heads", 0}}, {"num_attention_heads", "from 1"}},
      {{{"num_key_value_heads", 3}}, {"num_key_value_heads 3", "num_attention_heads 4"}},
      {{{"num_key_value_heads", 8}}, {"num_key_value_heads 8"}},
      {{{"head_dim", nullptr}, {"hidden_size", 9}}, {"hidden_size 9"}},
      {{{"head_dim", 3}}, {"head_dim is 3", "even"}},
      {{{"head_dim", 4096}, {"num_attention_heads", 1024}}, {"head_dim 4096", "wider"}},
      {{{"rms_norm_eps", 0}}, {"rms_norm_eps"}},
      {{{"rms_norm_eps", -1e-5}}, {"rms_norm_eps"}},
      {{{"rope_theta", 0}}, {"rope_theta"}},
      {{{"tie_word_embeddings", 1}}, {"tie_word_embeddings", "true or false"}},
      {{{"dtype", "int8"}}, {"'int8'", "'bfloat16'"}},
      {{{"rope_scaling", {{"rope_type", "yarn"}}}}, {"rope_scaling", "'yarn'", "'llama3'"}},
      {{{"rope_scaling", 2}}, {"rope_scaling", "an object"}},
      {{{"rope_parameters", {{"rope_type", "llama3"}}}}, {"no factor"}},
      {{{"rope_parameters", {{"partial_rotary_factor", 0.5}}}}, {"partial_rotary_factor"}},
      {{{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}}}},
       {"high_freq_factor 4", "low_freq_factor 4"}},
  };
  for (const auto& [bad_changes, parts] : cases) {
    const json& changes = bad_changes;  // clang captures no structured bindings
    SCOPED_TRACE(changes.dump());
    std::vector<std::string> all = parts;
    all.emplace_back("config.json");
    expect_refusal(all, [&] { read_with(changes); });
  }
}

TEST(Config, WhatIsNotAProperJsonObjectIsRefused) {
  const TempDirectory directory;
  const auto read = [&](const std::string& text) { (void)read_llama_config(directory.write("config.json", text)); };
  expect_refusal({"config.json", "not valid JSON"}, [&] { read(""); });
  expect_refusal({"config.json", "not valid JSON"}, [&] { read("{\"rms_norm_eps\":NaN}"); });
  expect_refusal({"config.json", "number"}, [&] { read("{\"rms_norm_eps\":1e999}"); });
  expect_refusal({"config.json", "not a JSON object"}, [&] { read("[]"); });
  expect_refusal({"config.json", "'a' twice"}, [&] { read("{\"b\":{\"a\":1},\"a\":1,\"\\u0061\":2}"); });
  expect_refusal({"config.json", "levels deep"}, [&] { read("{\"a\":" + std::string(100'000, '[')); });
  expect_refusal({"config.json", "at most 1.00 MiB"}, [&] { read(std::string(2 << 20, ' ')); });
  expect_refusal({"absent.json", "No such file"}, [&] { (void)read_llama_config(directory.file("absent.json")); });
}

}  // namespace
}  // namespace rp
