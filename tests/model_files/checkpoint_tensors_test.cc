#include "model_files/weights/checkpoint_tensors.h"

#include <gtest/gtest.h>

#include "tests/common/expect_refusal.h"
#include "tests/common/temp_directory.h"
#include "tests/model_files/tiny_model.h"

namespace rp {
namespace {

ModelConfig tiny_config() { return read_with(tiny_llama_json(), nlohmann::json::object()); }

void check(const ModelConfig& config, const std::vector<TensorDeclaration>& tensors) {
  const TempDirectory directory;
  write_tensors(directory.file("model.safetensors"), tensors);
  check_weights(config, WeightFiles::open(directory.path()));
}

TEST(CheckpointTensors, ATiedLlamaHasNineTensorsALayerAndTwoMore) {
  const auto tensors = checkpoint_tensors(tiny_config());
  ASSERT_EQ(tensors.size(), 2U * 9 + 2);
  EXPECT_EQ(tensors[0].name, "model.embed_tokens.weight");
  EXPECT_EQ(tensors[0].shape, (std::vector<std::int64_t>{10, 8}));
  EXPECT_EQ(tensors[0].parts.at(0).layer, 0);
  EXPECT_EQ(tensors[3].name, "model.layers.0.self_attn.k_proj.weight");
  EXPECT_EQ(tensors[3].shape, (std::vector<std::int64_t>{4, 8}));
  EXPECT_EQ(tensors[10].parts.at(0).layer, 2);
  EXPECT_EQ(tensors.back().name, "model.norm.weight");
  EXPECT_EQ(tensors.back().parts.at(0).layer, 3);
}

TEST(CheckpointTensors, BiasesAndAnUntiedHeadAreExpectedWhereTheConfigurationSaysSo) {
  const ModelConfig config =
      read_with(tiny_llama_json(), {{"tie_word_embeddings", false}, {"attention_bias", true}, {"mlp_bias", true}});
  const auto tensors = checkpoint_tensors(config);
  EXPECT_EQ(tensors.size(), 2U * (9 + 4 + 3) + 3);
  EXPECT_EQ(tensors.back().name, "lm_head.weight");
}

TEST(CheckpointTensors, AMatchingCheckpointPassesWithTheLeftoversOfOldExporters) {
  const ModelConfig config = tiny_config();
  auto tensors = declarations(config);
  check(config, tensors);
  tensors.push_back({"lm_head.weight", DType::kBFloat16, {10, 8}});
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", DType::kFloat32, {1}});
  check(config, tensors);
}

TEST(CheckpointTensors, AHeadInTheFilesOfATiedModelMustBeItsEmbedding) {
  const ModelConfig config = tiny_config();
  const std::vector<std::pair<TensorDeclaration, std::string>> heads = {
      {{"lm_head.weight", DType::kBFloat16, {12, 8}}, "[12, 8]"},
      {{"lm_head.weight", DType::kFloat32, {10, 8}}, "F32 [10, 8]"},
      {{"lm_head.weight", DType::kInt8, {10, 8}}, "I8"}};
  for (const auto& [head, found] : heads) {
    auto tensors = declarations(config);
    tensors.push_back(head);
    expect_refusal({"model.safetensors", "'lm_head.weight'", found, "tie_word_embeddings", "false"},
                   [&] { check(config, tensors); });
  }
}

TEST(CheckpointTensors, AMismatchNamesTheTensorAndBothShapes) {
  const ModelConfig config = tiny_config();
  auto tensors = declarations(config);
  tensors[5].shape = {8, 9};
  expect_refusal({"model.safetensors", "'model.layers.0.self_attn.o_proj.weight'", "[8, 9]", "[8, 8]"},
                 [&] { check(config, tensors); });
  tensors = declarations(config);
  tensors[0].shape = {8, 10};
  expect_refusal({"'model.embed_tokens.weight'", "[8, 10]", "[10, 8]"}, [&] { check(config, tensors); });
}

TEST(CheckpointTensors, AMissingAnUnknownAndANonFloatTensorAreRefused) {
  const ModelConfig config = tiny_config();
  auto tensors = declarations(config);
  tensors.pop_back();
  expect_refusal({"no tensor 'model.norm.weight'", "[8]"}, [&] { check(config, tensors); });
  tensors = declarations(config);
  tensors.push_back({"model.layers.0.self_attn.q_norm.weight", DType::kBFloat16, {2}});
  expect_refusal({"'model.layers.0.self_attn.q_norm.weight'", "another architecture"}, [&] { check(config, tensors); });
  tensors = declarations(config);
  tensors[2].dtype = DType::kInt8;
  expect_refusal({"'model.layers.0.self_attn.q_proj.weight'", "I8"}, [&] { check(config, tensors); });
  ModelConfig untied = config;
  untied.tied_head = false;
  expect_refusal({"no tensor 'lm_head.weight'"}, [&] { check(untied, declarations(config)); });
}

}  // namespace
}  // namespace rp
