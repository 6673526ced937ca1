#include "model_files/config/model_config.h"

#include <gtest/gtest.h>

#include "tests/common/expect_refusal.h"
#include "tests/common/temp_directory.h"
#include "tests/model_files/tiny_model.h"

namespace rp {
namespace {

using nlohmann::json;

ModelConfig llama_with(const json& changes) { return read_with(tiny_llama_json(), changes); }

AttentionConfig attention_with(const json& changes) { return llama_with(changes).layers.at(0).attention; }

RopeConfig rope_with(const json& changes) { return attention_with(changes).rope; }

TEST(ModelConfig, WhatAllFamiliesHaveIsRead) {
  const ModelConfig config = llama_with({{"pad_token_id", 3}});
  EXPECT_EQ(config.family, "llama");
  EXPECT_EQ(config.hidden, 8);
  EXPECT_EQ(config.vocabulary, 10);
  EXPECT_EQ(config.max_sequence_length, 64);
  EXPECT_EQ(config.norm_epsilon, 1e-5);
  EXPECT_EQ(config.padding_id, 3);
  EXPECT_TRUE(config.tied_head);
  EXPECT_EQ(config.dtype, DType::kBFloat16);
  ASSERT_EQ(config.num_layers(), 2);
  const AttentionConfig& attention = config.layers[1].attention;
  EXPECT_EQ(attention.num_heads, 4);
  EXPECT_EQ(attention.num_kv_heads, 2);
  EXPECT_EQ(attention.head_dim, 2);
  EXPECT_EQ(attention.query_width(), 8);
  EXPECT_EQ(attention.kv_width(), 4);
  EXPECT_EQ(attention.window, 0);
  EXPECT_FLOAT_EQ(static_cast<float>(attention.scale), 0.70710678F);
  EXPECT_EQ(attention.rope, RopeConfig{});
  EXPECT_EQ(config.layers[1].mlp, MlpConfig{.intermediate = 12});
}

TEST(ModelConfig, AnAbsentOrNullHeadSettingFollowsFromTheOthers) {
  const AttentionConfig attention = attention_with({{"num_key_value_heads", nullptr}, {"head_dim", nullptr}});
  EXPECT_EQ(attention.num_kv_heads, 4);
  EXPECT_EQ(attention.head_dim, 2);
  EXPECT_EQ(attention_with({{"head_dim", 6}}).head_dim, 6) << "need not be hidden_size / num_attention_heads";
}

const json kLlama3 = {{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}};
constexpr const char* kOriginal = "original_max_position_embeddings";

json llama3_of(int original_positions) {
  json rope = kLlama3;
  rope[kOriginal] = original_positions;
  return rope;
}

TEST(ModelConfig, RotaryParametersAreReadInBothSpellings) {
  RopeConfig expected{.kind = RopeConfig::Kind::kLlama3, .factor = 8, .original_positions = 32};
  json old_type = llama3_of(32), with_theta = llama3_of(32);
  old_type.erase("rope_type");
  old_type["type"] = "llama3";
  EXPECT_EQ(rope_with({{"rope_scaling", llama3_of(32)}}), expected);
  EXPECT_EQ(rope_with({{"rope_scaling", old_type}}), expected);
  with_theta["rope_theta"] = expected.theta = 500000.0;
  EXPECT_EQ(rope_with({{"rope_parameters", with_theta}}), expected);
  EXPECT_EQ(rope_with({{"rope_parameters", {{"rope_type", "default"}}}}), RopeConfig{});
  EXPECT_EQ(rope_with({{"rope_scaling", nullptr}}), RopeConfig{});
  EXPECT_EQ(rope_with({{"rope_scaling", kLlama3}}).original_positions, 64) << "as many as the model has";
}

TEST(ModelConfig, TheMethodThatQuantisedTheFilesIsNamed) {
  EXPECT_EQ(llama_with(json::object()).quantization, "");
  EXPECT_EQ(llama_with({{"quantization_config", {{"quant_method", "mxfp4"}}}}).quantization, "mxfp4");
  EXPECT_EQ(llama_with({{"quantization_config", json::object()}}).quantization, "unknown");
}

TEST(ModelConfig, LinearRotationHasAFactorOnly) {
  const RopeConfig expected{.kind = RopeConfig::Kind::kLinear, .factor = 8};
  EXPECT_EQ(rope_with({{"rope_scaling", {{"type", "linear"}, {"factor", 8}}}}), expected);
}

// transformers 5.23, modeling_rope_utils.py: _compute_yarn_parameters().
TEST(ModelConfig, YarnsFactorOfCosineAndSineIsReadOrDerived) {
  const auto factor_with = [](const json& changes) {
    json rope = {{"rope_type", "yarn"}, {"factor", 32.0}};
    rope.update(changes);
    return rope_with({{"rope_parameters", rope}}).attention_factor;
  };
  EXPECT_NEAR(factor_with({{"beta_fast", 16}}), 1.3465735902799727, 1e-12);
  EXPECT_EQ(factor_with({{"attention_factor", 1.25}}), 1.25);
  EXPECT_EQ(factor_with({{"mscale", 1}, {"mscale_all_dim", 1}}), 1);
  EXPECT_NEAR(factor_with({{"mscale", 0.707}, {"mscale_all_dim", 1}}), 0.9246, 1e-4);
  EXPECT_EQ(factor_with({{"factor", 1}}), 1);
  const RopeConfig rope =
      rope_with({{"rope_parameters", {{"rope_type", "yarn"}, {"factor", 4}, {"truncate", false}, {kOriginal, 16}}}});
  EXPECT_FALSE(rope.truncates);
  EXPECT_EQ(rope.original_positions, 16);
  EXPECT_EQ(rope.beta_fast, 32);
  EXPECT_EQ(rope.beta_slow, 1);
}

TEST(ModelConfig, RotaryParametersInTwoSpellingsMustAgree) {
  const json rope = llama3_of(32);
  json other = rope, theta = rope;
  other["factor"] = 32.0;
  theta["rope_theta"] = 500000.0;
  const std::vector<std::string> parts = {"rope_parameters and rope_scaling", "different", "remove the wrong one"};
  EXPECT_EQ(rope_with({{"rope_parameters", rope}, {"rope_scaling", rope}}).factor, 8);
  expect_refusal(parts, [&] { llama_with({{"rope_parameters", rope}, {"rope_scaling", other}}); });
  expect_refusal(parts, [&] { llama_with({{"rope_parameters", {{"rope_type", "default"}}}, {"rope_scaling", rope}}); });
  expect_refusal(parts, [&] { llama_with({{"rope_parameters", theta}, {"rope_scaling", rope}}); });
}

TEST(ModelConfig, TheOriginalLengthMayAlsoStandOutsideTheRotaryParametersIfBothAgree) {
  EXPECT_EQ(rope_with({{"rope_scaling", kLlama3}, {kOriginal, 16}}).original_positions, 16);
  EXPECT_EQ(rope_with({{"rope_scaling", llama3_of(32)}, {kOriginal, 32}}).original_positions, 32);
  expect_refusal({kOriginal, "16", "32", "remove"}, [&] {
    llama_with({{"rope_scaling", llama3_of(32)}, {kOriginal, 16}});
  });
}

TEST(ModelConfig, WhatIsSpelledOutAsOffIsNoObstacle) {
  EXPECT_EQ(llama_with({{"sliding_window", 4096}, {"use_sliding_window", false}}).num_layers(), 2);
  EXPECT_EQ(llama_with({{"sliding_window", nullptr}, {"rope_interleaved", false}}).num_layers(), 2);
  EXPECT_EQ(llama_with({{"layer_types", {"full_attention", "full_attention"}}, {"logits_scaling", 1.0}}).num_layers(),
            2);
}

TEST(ModelConfig, TheDtypeIsReadUnderItsOldName) {
  EXPECT_EQ(llama_with({{"dtype", nullptr}, {"torch_dtype", "float16"}}).dtype, DType::kFloat16);
  EXPECT_EQ(llama_with({{"dtype", nullptr}}).dtype, std::nullopt);
}

TEST(ModelConfig, EveryImpossibleValueIsRefusedWithItsKeyAndWhatItMustBe) {
  const std::vector<std::pair<json, std::vector<std::string>>> cases = {
      {{{"model_type", "mamba"}},
       {"'mamba'",
        "deepseek_v3, gemma3, gemma3_text, gemma4, gemma4_text, glm4_moe, glm4_moe_lite, gpt_oss, llama, ministral3, "
        "mistral, mistral3, "
        "olmo3, qwen2, qwen3, qwen3_5, "
        "qwen3_5_moe, qwen3_5_moe_text, qwen3_5_text, qwen3_moe, smollm3"}},
      {{{"model_type", "qwen4"}}, {"'qwen4'", "the nearest is qwen3, which knows all of its keys"}},
      {{{"model_type", "qwen4"}, {"gate_rank", 2}, {"mamba_width", 4}},
       {"the nearest is qwen3, which has nothing for 'gate_rank', 'mamba_width'; the"}},
      {{{"model_type", "lama"}, {"mlp_bias", true}}, {"the nearest is llama, which knows"}},
      {{{"model_type", "qwen4"}, {"attention_dropout", 0.25}, {"mamba_width", 4}},
       {"the nearest is qwen3, which refuses it (attention_dropout is '0.25'", ") and has nothing for 'mamba_width';"}},
      {{{"model_type", nullptr}}, {"no model_type"}},
      {{{"model_type", 3}}, {"model_type", "a string"}},
      {{{"hidden_act", "gelu"}}, {"'gelu'", "'silu'"}},
      {{{"quantization_config", 4}}, {"quantization_config", "an object"}},
      {{{"attention_dropout", 0.1}}, {"attention_dropout", "must be 0"}},
      {{{"sliding_window", 4096}}, {"sliding_window is '4096'", "absent or null"}},
      {{{"layer_types", {"full_attention", "sliding_attention"}}},
       {"layer_types", "sliding_attention", "'full_attention'"}},
      {{{"logits_scaling", 8.0}}, {"logits_scaling", "must be 1"}},
      {{{"embedding_multiplier", 12.0}}, {"embedding_multiplier"}},
      {{{"residual_multiplier", 0.2}}, {"residual_multiplier"}},
      {{{"attention_multiplier", 0.1}}, {"attention_multiplier", "not supported"}},
      {{{"final_logit_softcapping", 30.0}}, {"final_logit_softcapping"}},
      {{{"attn_logit_softcapping", 50.0}}, {"attn_logit_softcapping"}},
      {{{"clip_qkv", 8.0}}, {"clip_qkv"}},
      {{{"rope_interleaved", true}}, {"rope_interleaved"}},
      {{{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}},
       {"rope_parameters", "'full_attention'"}},
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
      {{{"rope_scaling", {{"rope_type", "dynamic"}}}}, {"rope_scaling", "'dynamic'", "'llama3'"}},
      {{{"rope_scaling", {{"rope_type", "yarn"}}}}, {"no factor"}},
      {{{"rope_scaling", 2}}, {"rope_scaling", "an object"}},
      {{{"rope_parameters", {{"rope_type", "llama3"}}}}, {"no factor"}},
      {{{"rope_parameters", {{"partial_rotary_factor", 0.5}}}}, {"partial_rotary_factor"}},
      {{{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}}}},
       {"high_freq_factor 4", "low_freq_factor 4"}},
  };
  for (const auto& [bad_changes, parts] : cases) {
    const json& changes = bad_changes;  // clang cannot capture structured bindings
    SCOPED_TRACE(changes.dump());
    std::vector<std::string> all = parts;
    all.emplace_back("config.json");
    expect_refusal(all, [&] { llama_with(changes); });
  }
}

TEST(ModelConfig, WhatIsNotAProperJsonObjectIsRefused) {
  const TempDirectory directory;
  const auto read = [&](const std::string& text) {
    (void)read_model_config(directory.write("config.json", text).parent_path());
  };
  expect_refusal({"config.json", "not valid JSON"}, [&] { read(""); });
  expect_refusal({"config.json", "not valid JSON"}, [&] { read("{\"rms_norm_eps\":NaN}"); });
  expect_refusal({"config.json", "number"}, [&] { read("{\"rms_norm_eps\":1e999}"); });
  expect_refusal({"config.json", "not a JSON object"}, [&] { read("[]"); });
  expect_refusal({"config.json", "'a' twice"}, [&] { read("{\"b\":{\"a\":1},\"a\":1,\"\\u0061\":2}"); });
  expect_refusal({"config.json", "levels deep"}, [&] { read("{\"a\":" + std::string(100'000, '[')); });
  expect_refusal({"config.json", "at most 1.00 MiB"}, [&] { read(std::string(2 << 20, ' ')); });
  expect_refusal({"absent/config.json", "No such file"}, [&] { (void)read_model_config(directory.file("absent")); });
}

TEST(ModelConfig, AModelIsAFolderOrAPreset) {
  const TempDirectory directory;
  const auto path = directory.write("config.json", tiny_llama_json().dump());
  EXPECT_EQ(config_of_model(path.parent_path().string()).hidden, 8);
  EXPECT_EQ(config_of_model(path.parent_path().string() + "/").name, path.parent_path().filename().string());
  EXPECT_EQ(config_of_model("qwen3-32b").num_layers(), 64);
  EXPECT_EQ(config_of_model("preset:qwen3-32b"), preset_config("qwen3-32b"));
}

TEST(ModelConfig, AnUnknownPresetIsRefusedWithTheNearestAndAllOthers) {
  expect_error(ExitCode::kUsage,
               {"'qwen3-23b'", "did you mean", "gpt-oss-120b, -20b, llama3.1-70b, -8b", "smollm2-135m", "config.json"},
               [] { (void)preset_config("qwen3-23b"); });
  expect_error(ExitCode::kUsage, {"''"}, [] { (void)config_of_model(""); });
}

TEST(ModelConfig, TextsOfLayersAreEqualExactlyWhereTheLayersAre) {
  const ModelConfig model = preset_config("gpt-oss-20b");
  ModelConfig other = model;
  other.name = "another";
  other.layers[3].attention.rope.truncates = true;
  EXPECT_EQ(text_of_layer(other, 2), text_of_layer(model, 2));
  EXPECT_NE(text_of_layer(other, 4), text_of_layer(model, 4));
  EXPECT_EQ(text_of_layer(model, 1), text_of_layer(model, 3)) << "both slide";
  EXPECT_NE(text_of_layer(model, 1), text_of_layer(model, 2));
  EXPECT_NE(text_of_layer(model, 0), text_of_layer(model, model.num_layers() + 1));
}

}  // namespace
}  // namespace rp
