#include "model_files/part_selection.h"

#include <gtest/gtest.h>

#include <map>

#include "model_files/layer_tensors.h"
#include "tests/common/expect_refusal.h"
#include "tests/model_files/tiny_model.h"

namespace rp {
namespace {

using nlohmann::json;

ModelConfig tiny_llama() { return read_with(tiny_llama_json(), json::object()); }
ModelConfig tiny_moe_config() { return read_with(tiny_moe_json(), json::object()); }

TrainedParts lora_on(const std::string& targets) { return {.lora = {.rank = 2, .targets = targets}}; }

// GCC 12 wrongly warns about designated initializers here.
TrainedParts frozen(const std::string& freeze, const std::string& train = "") {
  TrainedParts parts;
  parts.freeze = freeze;
  parts.train = train;
  return parts;
}

TrainedParts with_corrections(TrainedParts parts = {}) {
  parts.corrections = true;
  return parts;
}

std::map<std::string, int> adapted(const ModelConfig& config, const TrainedParts& parts) {
  const SelectionSummary summary = summarise(config, parts);
  return {summary.adapted.begin(), summary.adapted.end()};
}

std::vector<std::string> trained_names(const ModelConfig& config, const TrainedParts& parts) {
  std::vector<std::string> names;
  const std::vector<LayerTensors> layers = tensors_of(config, parts);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (const LayerTensor& tensor : layers[i].tensors) {
      if (tensor.is_trained) names.push_back(name_in_model(config, static_cast<std::int64_t>(i), tensor.name));
    }
  }
  return names;
}

void expect_usage(const std::vector<std::string>& parts, const ModelConfig& config, const TrainedParts& trained) {
  expect_error(ExitCode::kUsage, parts, [&] { (void)summarise(config, trained); });
}

using Adapted = std::map<std::string, int>;

TEST(PartSelection, WithoutPairsEverythingIsTrained) {
  const SelectionSummary summary = summarise(tiny_llama(), {});
  EXPECT_EQ(summary.num_trained, summary.num_parameters);
  EXPECT_EQ(summary.num_adapted, 0);
}

TEST(PartSelection, AllLinearIsThoseOfAttentionAndMlp) {
  EXPECT_EQ(adapted(tiny_llama(), lora_on("all-linear")), (Adapted{{"self_attn.q_proj", 2},
                                                                   {"self_attn.k_proj", 2},
                                                                   {"self_attn.v_proj", 2},
                                                                   {"self_attn.o_proj", 2},
                                                                   {"mlp.gate_proj", 2},
                                                                   {"mlp.up_proj", 2},
                                                                   {"mlp.down_proj", 2}}));
  // r (in + out) for each: hidden 8, q 8, k and v 4, o 8, MLP 12.
  EXPECT_EQ(summarise(tiny_llama(), lora_on("all-linear")).num_trained, 2 * 2 * (16 + 12 + 12 + 16 + 3 * 20));
}

TEST(PartSelection, ExpertsAndTheirRouterHavePairsWhereAsked) {
  EXPECT_FALSE(adapted(tiny_moe_config(), lora_on("all-linear")).contains("mlp.experts.up_proj"));
  TrainedParts parts = lora_on("all-linear");
  parts.lora.on_experts = true;
  const Adapted found = adapted(tiny_moe_config(), parts);
  EXPECT_EQ(found.at("mlp.experts.up_proj"), 3);
  EXPECT_EQ(found.at("mlp.gate"), 3);
}

TEST(PartSelection, AListNamesEndsOfNames) {
  EXPECT_EQ(adapted(tiny_llama(), lora_on("q_proj,v_proj")),
            (Adapted{{"self_attn.q_proj", 2}, {"self_attn.v_proj", 2}}));
  EXPECT_EQ(adapted(tiny_llama(), lora_on("mlp.up_proj,model.layers.1.self_attn.o_proj")),
            (Adapted{{"mlp.up_proj", 2}, {"self_attn.o_proj", 1}}));
  expect_usage({"'proj' matches nothing", "model.layers.0.mlp.down_proj"}, tiny_llama(), lora_on("q_proj,proj"));
}

TEST(PartSelection, ARegularExpressionMatchesWholeNames) {
  EXPECT_EQ(adapted(tiny_llama(), lora_on(R"(model\.layers\.1\..*_proj)")).at("mlp.up_proj"), 1);
  EXPECT_EQ(adapted(tiny_llama(), lora_on("(.*)(q|k)_proj")),
            (Adapted{{"self_attn.q_proj", 2}, {"self_attn.k_proj", 2}}));
  expect_usage({"LoRA's target '(q|k)_proj' matches nothing", "model.layers.0.self_attn.q_proj"}, tiny_llama(),
               lora_on("(q|k)_proj"));
}

TEST(PartSelection, WhatIsFrozenOrTrainedAsItIsHasNoPair) {
  TrainedParts parts = lora_on("all-linear");
  parts.freeze = "layers\\.0\\.";
  parts.train = "down_proj|norm\\.weight";
  EXPECT_EQ(adapted(tiny_llama(), parts).at("mlp.up_proj"), 1);
  EXPECT_FALSE(adapted(tiny_llama(), parts).contains("mlp.down_proj"));
  const std::vector<std::string> names = trained_names(tiny_llama(), parts);
  EXPECT_NE(std::ranges::find(names, "model.layers.0.mlp.down_proj.weight"), names.end());
  EXPECT_NE(std::ranges::find(names, "model.norm.weight"), names.end());
}

TEST(PartSelection, TrainingWinsOverFreezing) {
  EXPECT_EQ(trained_names(tiny_llama(), frozen(".", "layers\\.1\\.input_layernorm")),
            (std::vector<std::string>{"model.layers.1.input_layernorm.weight"}));
}

TEST(PartSelection, ATiedHeadIsTrainedWithItsEmbedding) {
  EXPECT_EQ(trained_names(tiny_llama(), frozen(".", "embed_tokens")),
            (std::vector<std::string>{"model.embed_tokens.weight", "lm_head.weight"}));
  expect_usage({"'lm_head' matches nothing"}, tiny_llama(), frozen(".", "lm_head"));
}

TEST(PartSelection, WhatIsTrainedAnywayIsNotAskedFor) {
  expect_usage({"what to train, 'norm'", "changes nothing", "freeze '.*'"}, tiny_llama(), frozen("", "norm"));
}

TEST(PartSelection, ExpertsOfAModelWithoutThemAreNotAdapted) {
  TrainedParts parts = lora_on("all-linear");
  parts.lora.on_experts = true;
  expect_usage({"adapt experts", "llama", "none"}, tiny_llama(), parts);
}

TEST(PartSelection, NothingToTrainIsAnError) { expect_usage({"nothing is trained"}, tiny_llama(), frozen(".")); }

TEST(PartSelection, PatternsThatMatchNothingAreRefusedWithNamesThatThereAre) {
  expect_usage({"what to freeze", "'layers.9'", "model.embed_tokens.weight", "in all"}, tiny_llama(),
               frozen("layers.9"));
  expect_usage({"what to train", "'rotary'"}, tiny_llama(), frozen("", "rotary"));
  expect_usage({"LoRA's target 'experts.up_proj' matches nothing"}, tiny_moe_config(), lora_on("experts.up_proj"));
  expect_usage({"LoRA's target ''", "matches nothing"}, tiny_llama(), lora_on(""));
}

TEST(PartSelection, WhatIsNoRegularExpressionIsRefused) {
  expect_usage({"what to freeze", "'(a'", "is no regular expression"}, tiny_llama(), frozen("(a"));
  expect_usage({"LoRA's target '[q'", "is no regular expression"}, tiny_llama(), lora_on("[q"));
}

TEST(PartSelection, NumbersOutOfRangeAreRefused) {
  for (const LoraSettings& lora :
       {LoraSettings{.rank = -1}, LoraSettings{.rank = 65537}, LoraSettings{.rank = 2, .alpha = -1},
        LoraSettings{.rank = 2, .dropout = 1}, LoraSettings{.rank = 2, .alpha = NAN}}) {
    expect_usage({"the rank must be from 0 to 65536"}, tiny_llama(), {.lora = lora});
  }
}

TEST(PartSelection, WhatAnAdapterCannotHoldIsRefused) {
  TrainedParts parts = lora_on("all-linear");
  parts.train = "experts";
  expect_usage({"mlp.experts.", "PEFT's adapters cannot hold whole experts"}, tiny_moe_config(), parts);
  expect_usage({"DoRA has no form for experts"}, tiny_moe_config(),
               {.lora = {.rank = 2, .is_dora = true, .on_experts = true}});
}

TEST(PartSelection, CorrectionsAreNoParametersAndNoPatternSelectsThem) {
  const ModelConfig model = preset_config("moonlight-16b");
  const auto is_trained = [&](const TrainedParts& parts) {
    return tensors_of_layer(model, 2, parts).find("mlp.gate.e_score_correction_bias")->is_trained;
  };
  EXPECT_FALSE(is_trained({}));
  EXPECT_FALSE(is_trained(frozen("attn", "correction_bias")));
  EXPECT_TRUE(is_trained(with_corrections()));
  EXPECT_TRUE(is_trained(with_corrections(frozen("gate"))));
  EXPECT_EQ(num_trained(tensors_of(model, with_corrections())), num_trained(tensors_of(model)));
  EXPECT_EQ(summarise(model, with_corrections()).num_parameters, num_parameters(tensors_of(model)));
  expect_usage({"nothing is trained"}, model, with_corrections(frozen(".")));
}

TEST(PartSelection, CorrectionsNextToPairsOrOfAModelWithoutThemAreRefused) {
  expect_usage({"corrections of routers", "in addition to LoRA", "an adapter has no place for them"},
               preset_config("moonlight-16b"), with_corrections(lora_on("q_proj")));
  for (const ModelConfig& model : {tiny_llama(), tiny_moe_config()})
    expect_usage({"corrections of routers", "(" + model.family + ") has none"}, model, with_corrections());
}

TEST(LoraSettings, ScaleIsAlphaOverTheRankOrItsRoot) {
  EXPECT_EQ((LoraSettings{.rank = 16}.scale()), 1);
  EXPECT_EQ((LoraSettings{.rank = 16, .alpha = 8}.scale()), 0.5);
  EXPECT_EQ((LoraSettings{.rank = 16, .alpha = 8, .is_rank_stabilised = true}.scale()), 2);
}

using Formats = std::map<std::string, WeightFormat>;

// Returns the formats of the quantised tensors of the first decoder layer.
Formats formats(const ModelConfig& config, const TrainedParts& parts) {
  Formats found;
  for (const LayerTensor& tensor : tensors_of_layer(config, 1, parts).tensors) {
    if (tensor.format) found.emplace(tensor.name, *tensor.format);
  }
  return found;
}

TrainedParts pairs_next_to(FrozenWeights frozen) { return {.lora = {.rank = 2}, .frozen_weights = frozen}; }

TEST(FrozenWeights, OfLinearLayersAreQuantisedButNoRoutersAndNothingThatIsTrained) {
  const Formats found = formats(tiny_moe_config(), pairs_next_to(FrozenWeights::kNf4));
  EXPECT_EQ(found.size(), 7U) << "q, k, v, o, gate, up, down";
  for (const char* name : {"self_attn.k_proj.weight", "mlp.experts.down_proj.weight"})
    EXPECT_EQ(found.at(name), WeightFormat::kNf4Double) << name;
  EXPECT_FALSE(found.contains("mlp.gate.weight"));
  EXPECT_EQ(formats(tiny_moe_config(), pairs_next_to(FrozenWeights::kFp8)).at("self_attn.o_proj.weight"),
            WeightFormat::kFp8Blocks);
  EXPECT_TRUE(formats(tiny_moe_config(), pairs_next_to(FrozenWeights::kAsInFiles)).empty());
  TrainedParts some = pairs_next_to(FrozenWeights::kNf4);
  some.train = "self_attn.k_proj";
  EXPECT_FALSE(formats(tiny_moe_config(), some).contains("self_attn.k_proj.weight"));
  EXPECT_TRUE(formats(tiny_moe_config(), {.frozen_weights = FrozenWeights::kNf4}).empty()) << "all is trained";
}

TEST(FrozenWeights, AreQuantisedInMxfp4IfRowsDivideIntoBlocks) {
  const ModelConfig gpt_oss = read_with(tiny_gpt_oss_json(), json::object());
  const Formats found = formats(gpt_oss, pairs_next_to(FrozenWeights::kMxfp4));
  EXPECT_TRUE(found.contains("self_attn.q_proj.weight"));
  EXPECT_FALSE(found.contains("self_attn.o_proj.weight")) << "it has 8 inputs";
  expect_usage({"frozen weights are to be quantised", "multiple of 32"}, tiny_moe_config(),
               pairs_next_to(FrozenWeights::kMxfp4));
}

TEST(FrozenWeights, StayAsTheyAreInTheFilesUnlessTheyAreTrained) {
  const ModelConfig packed = read_with(tiny_gpt_oss_json(), {{"quantization_config", {{"quant_method", "mxfp4"}}}});
  const Formats found = formats(packed, pairs_next_to(FrozenWeights::kAsInFiles));
  EXPECT_EQ(found.size(), 3U) << "gate, up, down";
  EXPECT_EQ(found.at("mlp.experts.up_proj.weight"), WeightFormat::kMxfp4);
  EXPECT_EQ(formats(packed, pairs_next_to(FrozenWeights::kNf4)).at("mlp.experts.up_proj.weight"), WeightFormat::kMxfp4)
      << "not quantised again";
  EXPECT_EQ(formats(packed, pairs_next_to(FrozenWeights::kNf4)).at("self_attn.q_proj.weight"),
            WeightFormat::kNf4Double);
  EXPECT_TRUE(formats(packed, pairs_next_to(FrozenWeights::kNone)).empty());
  EXPECT_TRUE(formats(packed, {}).empty());
}

}  // namespace
}  // namespace rp
