#include "model_files/model_shape.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/common/expect_refusal.h"
#include "tests/common/temp_directory.h"
#include "tests/model_files/llama_directory.h"

namespace rp {
namespace {

using nlohmann::json;

json tiny_moe_json() {
  return {{"model_type", "qwen3_moe"}, {"hidden_size", 8},         {"moe_intermediate_size", 4},
          {"num_experts", 6},          {"num_experts_per_tok", 2}, {"num_hidden_layers", 3},
          {"num_attention_heads", 4},  {"num_key_value_heads", 2}, {"head_dim", 2},
          {"vocab_size", 10},          {"decoder_sparse_step", 1}, {"mlp_only_layers", json::array()}};
}

ModelShape read_with(json config, const json& changes) {
  const TempDirectory directory;
  config.update(changes);
  const auto path = directory.write("config.json", config.dump());
  return read_model_shape(path.parent_path());
}

TEST(ModelShape, EachArchitectureSaysWhatItHas) {
  const ModelShape llama = read_with(tiny_llama_json(), {{"mlp_bias", true}});
  EXPECT_EQ(llama.hidden, 8);
  EXPECT_EQ(llama.intermediate, 12);
  EXPECT_EQ(llama.num_layers, 2);
  EXPECT_EQ(llama.query_width(), 8);
  EXPECT_EQ(llama.kv_width(), 4);
  EXPECT_TRUE(llama.tied_head && llama.mlp_bias);
  EXPECT_FALSE(llama.qk_norm || llama.attention_bias || llama.attention_sinks || llama.num_experts > 0);
  EXPECT_EQ(llama.window_of(1), 0);

  const ModelShape qwen = read_with(tiny_llama_json(), {{"model_type", "qwen3"}, {"sliding_window", 32}});
  EXPECT_TRUE(qwen.qk_norm);
  EXPECT_EQ(qwen.window_of(1), 0) << "sliding_window without use_sliding_window says nothing";

  const ModelShape moe = read_with(tiny_moe_json(), json::object());
  EXPECT_TRUE(moe.qk_norm);
  EXPECT_EQ(moe.num_experts, 6);
  EXPECT_EQ(moe.experts_per_token, 2);
  EXPECT_EQ(moe.intermediate, 4);

  const ModelShape oss = preset_shape("gpt-oss-20b");
  EXPECT_TRUE(oss.attention_bias && oss.mlp_bias && oss.attention_sinks);
  EXPECT_FALSE(oss.qk_norm);
  EXPECT_EQ(oss.window_of(0), 128) << "even blocks slide";
  EXPECT_EQ(oss.window_of(1), 0);
}

TEST(ModelShape, SlidingBlocksAreThoseThatTheFileNames) {
  const json sliding = {
      {"model_type", "qwen3"}, {"use_sliding_window", true}, {"sliding_window", 32}, {"max_window_layers", 1}};
  EXPECT_EQ(read_with(tiny_llama_json(), sliding).windows, (std::vector<std::int64_t>{0, 32}));
  json typed = sliding;
  typed["layer_types"] = {"sliding_attention", "full_attention"};
  EXPECT_EQ(read_with(tiny_llama_json(), typed).windows, (std::vector<std::int64_t>{32, 0}));
  typed["layer_types"] = {"sliding_attention"};
  expect_refusal({"config.json", "layer_types has 1 entries", "num_hidden_layers is 2"},
                 [&] { read_with(tiny_llama_json(), typed); });
  typed["layer_types"] = {"sliding_attention", "linear_attention"};
  expect_refusal({"layer_types", "'linear_attention'", "'full_attention'"}, [&] { read_with(tiny_llama_json(), typed); });
}

TEST(ModelShape, ABadConfigIsRefusedWithTheKeyAndWhatItMustBe) {
  expect_refusal({"config.json", "model_type is 'mamba'", "'qwen3_moe'"}, [] {
    read_with(tiny_llama_json(), {{"model_type", "mamba"}});
  });
  expect_refusal({"config.json", "hidden_size is '-8'", "from 1 to"}, [] {
    read_with(tiny_llama_json(), {{"hidden_size", -8}});
  });
  expect_refusal({"has no vocab_size"}, [] { read_with(tiny_llama_json(), {{"vocab_size", nullptr}}); });
  expect_refusal({"num_key_value_heads 3 does not divide"}, [] {
    read_with(tiny_llama_json(), {{"num_key_value_heads", 3}});
  });
  expect_refusal({"num_experts_per_tok is '7'", "from 1 to 6"}, [] {
    read_with(tiny_moe_json(), {{"num_experts_per_tok", 7}});
  });
  expect_refusal({"moe_intermediate_size is '0'"}, [] { read_with(tiny_moe_json(), {{"moe_intermediate_size", 0}}); });
  expect_refusal({"decoder_sparse_step is '2'", "not supported"}, [] {
    read_with(tiny_moe_json(), {{"decoder_sparse_step", 2}});
  });
  expect_refusal({"mlp_only_layers", "not supported"}, [] { read_with(tiny_moe_json(), {{"mlp_only_layers", {0}}}); });
}

TEST(ModelShape, AModelIsAFolderOrAPreset) {
  const TempDirectory directory;
  const auto path = directory.write("config.json", tiny_llama_json().dump());
  EXPECT_EQ(shape_of_model(path.parent_path().string()).hidden, 8);
  EXPECT_EQ(shape_of_model(path.parent_path().string() + "/").name, path.parent_path().filename().string());
  EXPECT_EQ(shape_of_model("qwen3-32b").num_layers, 64);
  EXPECT_EQ(shape_of_model("preset:qwen3-32b"), preset_shape("qwen3-32b"));
}

TEST(ModelShape, AnUnknownPresetIsRefusedWithTheNearestAndAllOthers) {
  expect_error(ExitCode::kUsage, {"'qwen3-23b'", "did you mean", "gpt-oss-20b, llama3.1-70b", "smollm2-135m", "config.json"},
               [] { (void)preset_shape("qwen3-23b"); });
  expect_error(ExitCode::kUsage, {"''"}, [] { (void)shape_of_model(""); });
}

}  // namespace
}  // namespace rp
