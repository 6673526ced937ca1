#include "model_files/weights/adapter_config.h"

#include <gtest/gtest.h>

#include "tests/common/expect_refusal.h"
#include "tests/model_files/tiny_model.h"

namespace rp {
namespace {

using nlohmann::json;

ModelConfig tiny_llama(const json& changes = json::object()) { return read_with(tiny_llama_json(), changes); }

// The config as PEFT writes it.
json adapter_json() {
  return {{"peft_type", "LORA"},
          {"r", 4},
          {"lora_alpha", 8},
          {"lora_dropout", 0.1},
          {"target_modules", {"q_proj"}},
          {"bias", "none"},
          {"modules_to_save", nullptr},
          {"rank_pattern", json::object()},
          {"layers_to_transform", nullptr},
          {"fan_in_fan_out", false}};
}

// A folder with an adapter. Its weight file fits the tiny model unless a test provides another.
class AdapterConfig : public ::testing::Test {
 protected:
  TrainedParts read(const json& changes) {
    json config = adapter_json();
    config.update(changes);
    (void)directory_.write(kAdapterConfigFile, config.dump());
    if (!exists(directory_.path() / kAdapterWeightsFile))
      write(tiny_llama(), {.lora = {.rank = 4, .targets = "q_proj"}});
    return read_adapter_config(directory_.path());
  }

  void write(const ModelConfig& config, const TrainedParts& parts) {
    std::vector<TensorDeclaration> tensors;
    for (const CheckpointTensor& tensor : adapter_tensors(config, parts))
      tensors.push_back({tensor.name, DType::kFloat32, tensor.shape});
    write_tensors(directory_.path() / kAdapterWeightsFile, tensors);
  }

  void check(const ModelConfig& config, const TrainedParts& parts) {
    check_adapter(config, parts, SafetensorsFile::open(directory_.path() / kAdapterWeightsFile));
  }

  TempDirectory directory_;
};

TEST_F(AdapterConfig, IsReadAsPeftWritesIt) {
  const TrainedParts parts = read(json::object());
  EXPECT_EQ(parts.lora, (LoraSettings{.rank = 4, .alpha = 8, .dropout = 0.1, .targets = "q_proj"}));
  EXPECT_EQ(parts.adapter, directory_.path());
  EXPECT_EQ(parts.train, "");
  check(tiny_llama(), parts);
}

TEST_F(AdapterConfig, TargetsAreAListOrARegularExpression) {
  EXPECT_EQ(read({{"target_modules", {"q_proj", "mlp.up_proj"}}}).lora.targets, "q_proj,mlp.up_proj");
  EXPECT_EQ(read({{"target_modules", ".*q_proj"}}).lora.targets, ".*q_proj");
  EXPECT_EQ(read({{"target_modules", "all-linear"}}).lora.targets, "all-linear");
}

TEST_F(AdapterConfig, ModulesToSaveAreTrainedWhole) {
  const TrainedParts parts =
      read({{"modules_to_save", {"embed_tokens", "norm"}}, {"use_rslora", true}, {"use_dora", true}});
  EXPECT_EQ(parts.train, "embed_tokens\\.(weight|bias)$|norm\\.(weight|bias)$");
  EXPECT_TRUE(parts.lora.is_rank_stabilised && parts.lora.is_dora);
}

TEST_F(AdapterConfig, WhatWeDoNotHaveIsRefusedByItsKey) {
  for (const auto& [changes, key] : std::vector<std::pair<json, std::string>>{
           {{{"peft_type", "IA3"}}, "'IA3'"},
           {{{"fan_in_fan_out", true}}, "fan_in_fan_out"},
           {{{"lora_bias", true}}, "lora_bias"},
           {{{"layer_replication", {{0, 1}}}}, "layer_replication"},
           {{{"rank_pattern", {{"q_proj", 8}}}}, "rank_pattern"},
           {{{"alpha_pattern", {{"q_proj", 8}}}}, "alpha_pattern"},
           {{{"target_parameters", {"experts.gate_up_proj"}}}, "target_parameters"},
           {{{"layers_to_transform", {0}}}, "layers_to_transform"},
           {{{"bias", "all"}}, "'all'"}}) {
    expect_refusal({kAdapterConfigFile, key}, [&, &changed = changes] { (void)read(changed); });
  }
}

TEST_F(AdapterConfig, NumbersOutOfRangeAreRefused) {
  expect_refusal({"r"}, [&] { (void)read({{"r", 0}}); });
  expect_refusal({"lora_alpha"}, [&] { (void)read({{"lora_alpha", -1}}); });
  expect_refusal({"lora_dropout"}, [&] { (void)read({{"lora_dropout", 1}}); });
}

TEST_F(AdapterConfig, AFolderWithoutAnAdapterIsRefused) {
  expect_refusal({kAdapterConfigFile}, [&] { (void)read_adapter_config(directory_.path()); });
}

TEST_F(AdapterConfig, PairsOfAnotherModelAreRefused) {
  const TrainedParts parts = read(json::object());
  expect_refusal({"q_proj.lora_A.weight", "[4, 8]", "[4, 16]", "another model"}, [&] {
    check(tiny_llama({{"hidden_size", 16}}), parts);
  });
  expect_refusal({"model.layers.2.self_attn.q_proj.lora_A.weight", "has no tensor"}, [&] {
    check(tiny_llama({{"num_hidden_layers", 3}}), parts);
  });
  expect_refusal({"model.layers.1.self_attn.q_proj", "belongs to nothing"}, [&] {
    check(tiny_llama({{"num_hidden_layers", 1}}), parts);
  });
}

TEST_F(AdapterConfig, OurOwnTextReadsAsTheSameParts) {
  TrainedParts parts;
  parts.lora = {
      .rank = 3, .alpha = 5, .dropout = 0.25, .is_rank_stabilised = true, .targets = "(.*)layers.1(.*)up_proj"};
  parts.train = "embed";
  const json text = json::parse(adapter_config_text(tiny_llama(), parts, "base"));
  EXPECT_EQ(text.at("target_modules"), json({"model.layers.1.mlp.up_proj"}));
  EXPECT_EQ(text.at("modules_to_save"), json({"model.embed_tokens"}));
  EXPECT_TRUE(text.at("ensure_weight_tying"));
  write(tiny_llama(), parts);
  const TrainedParts found = read(text);
  EXPECT_EQ(found.lora.scale(), parts.lora.scale());
  EXPECT_EQ(found.lora.dropout, 0.25);
  check(tiny_llama(), found);
}

TEST_F(AdapterConfig, NamesAreShortWhereAllLayersHaveThem) {
  const json text = json::parse(adapter_config_text(tiny_llama(), {.lora = {.rank = 3, .targets = "v_proj"}}, "base"));
  EXPECT_EQ(text.at("target_modules"), json({"v_proj"}));
  EXPECT_EQ(text.at("lora_alpha"), 3);
  EXPECT_TRUE(text.at("modules_to_save").is_null());
}

TEST_F(AdapterConfig, ExpertsHavePairsUnderTheirNumbers) {
  const ModelConfig moe = read_with(tiny_moe_json(), json::object());
  const TrainedParts parts{.lora = {.rank = 2, .targets = "up_proj", .on_experts = true}};
  const std::vector<CheckpointTensor> tensors = adapter_tensors(moe, parts);
  EXPECT_EQ(tensors.size(), 3U * 6 * 2);
  EXPECT_EQ(tensors.front().name, "base_model.model.model.layers.0.mlp.experts.0.up_proj.lora_A.weight");
  EXPECT_EQ(tensors.front().shape, (std::vector<std::int64_t>{2, 8}));
  write(moe, parts);
  const TrainedParts found = read({{"r", 2}, {"target_modules", {"up_proj"}}});
  EXPECT_TRUE(found.lora.on_experts);
  check(moe, found);
}

}  // namespace
}  // namespace rp
