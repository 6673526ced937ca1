#include "model_files/weights/exported_files.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/common/temp_directory.h"
#include "tests/model_files/safetensors_bytes.h"
#include "tests/model_files/tiny_model.h"

namespace rp {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A model in two shards; the second one begins with the tensor named `second`.
class ExportedFilesTest : public ::testing::Test {
 protected:
  void write_shards(const std::vector<TensorDeclaration>& tensors, const std::string& second) {
    std::vector<TensorDeclaration> shards[2];
    json index = {{"metadata", {{"total_size", 1}, {"by", "somebody"}}}};
    std::size_t shard = 0;
    for (const TensorDeclaration& tensor : tensors) {
      if (tensor.name == second) shard = 1;
      shards[shard].push_back(tensor);
      index["weight_map"][tensor.name] = kNames[shard];
    }
    for (const std::size_t i : {0U, 1U}) write_tensors(directory_.file(kNames[i]), shards[i]);
    (void)directory_.write(kIndexFile, index.dump(3));
  }

  ExportedFiles exported(const json& config) {
    (void)directory_.write(kConfigFile, config.dump(1) + "\n\n");
    const ModelConfig read = read_model_config(directory_.path());
    const WeightFiles weights = WeightFiles::open(directory_.path());
    check_weights(read, weights);
    return exported_files(read, weights);
  }

  static constexpr const char* kNames[] = {"weights-1-of-2.safetensors", "weights-2-of-2.safetensors"};
  const TempDirectory directory_;
};

TEST_F(ExportedFilesTest, ShardsIndexAndConfigurationStayAsTheyAreByteForByte) {
  const ModelConfig config = read_with(tiny_moe_json(), json::object());
  write_shards(declarations(config, ExpertLayout::kFused), "model.layers.1.mlp.experts.gate_up_proj");
  const ExportedFiles files = exported(tiny_moe_json());
  ASSERT_EQ(files.files.size(), 2U);
  for (const ExportedFile& file : files.files) {
    const std::string source = text_of(directory_.file(file.name));
    EXPECT_EQ(little_endian(file.header.size()) + file.header, source.substr(0, 8 + file.header.size()));
    std::uint64_t bytes = 8 + file.header.size();
    for (const TensorDeclaration& tensor : file.declarations) bytes += tensor.bytes();
    EXPECT_EQ(bytes, source.size());
    for (const auto& place : file.checkpoint) EXPECT_TRUE(place.has_value());
  }
  EXPECT_EQ(files.index, text_of(directory_.file(kIndexFile)));
  EXPECT_EQ(files.config, text_of(directory_.file(kConfigFile)));
  EXPECT_EQ(files.tensors.at(*files.files[1].checkpoint[0]).name, files.files[1].declarations[0].name);
}

TEST_F(ExportedFilesTest, WhatIsNoPartOfTheModelIsCarriedAlongAndATiedHeadIsTheEmbedding) {
  const ModelConfig config = read_with(tiny_llama_json(), json::object());
  auto tensors = declarations(config);
  tensors.push_back({"lm_head.weight", DType::kBFloat16, {10, 8}});
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", DType::kInt64, {1}});
  write_tensors(directory_.file("model.safetensors"), tensors);
  const ExportedFiles files = exported(tiny_llama_json());
  EXPECT_TRUE(files.index.empty());
  const ExportedFile& file = files.files.at(0);
  EXPECT_EQ(file.name, "model.safetensors");
  const std::size_t last = file.declarations.size() - 1;
  EXPECT_FALSE(file.checkpoint[last].has_value());
  EXPECT_EQ(file.declarations[last].dtype, DType::kInt64);
  const CheckpointTensor& head = files.tensors.at(file.checkpoint[last - 1].value());
  EXPECT_EQ(head.name, "lm_head.weight");
  EXPECT_EQ(head.parts.at(0).layer, 0);
  EXPECT_EQ(head.parts, std::vector<TensorPart>{{.parameter = "weight"}});
}

TEST_F(ExportedFilesTest, TensorsFollowTheirDataWhateverTheOrderOfTheHeader) {
  const std::string header =
      "{" + entry("model.embed_tokens.weight", "U8", "[1]", "[1,2]") + "," + entry("a", "U8", "[1]", "[0,1]") + "}";
  (void)directory_.write("model.safetensors", safetensors_bytes(header, 2));
  EXPECT_EQ(SafetensorsFile::open(directory_.file("model.safetensors")).names_in_order(),
            (std::vector<std::string>{"a", "model.embed_tokens.weight"}));
}

TEST_F(ExportedFilesTest, PackedExpertsBecomeBf16WithATrueSizeAndAConfigurationThatSaysNothingOfThem) {
  json json_config = tiny_gpt_oss_json();
  json_config["quantization_config"] = {{"quant_method", "mxfp4"}};
  json_config["eos_token_id"] = {1, 2};
  const ModelConfig config = read_with(json_config, json::object());
  // Blocks and scales of the same tensor are in different shards.
  write_shards(declarations(config, ExpertLayout::kMxfp4), "model.layers.1.mlp.experts.gate_up_proj_scales");
  const ExportedFiles files = exported(json_config);
  const auto bf16 = declarations(config, ExpertLayout::kInterleaved);
  std::map<std::string, std::string> shards;
  std::uint64_t bytes = 0;
  for (const ExportedFile& file : files.files) {
    for (std::size_t i = 0; i < file.declarations.size(); ++i) {
      const TensorDeclaration& tensor = file.declarations[i];
      const auto expected = std::ranges::find(bf16, tensor.name, &TensorDeclaration::name);
      ASSERT_NE(expected, bf16.end()) << tensor.name;
      EXPECT_EQ(tensor.shape, expected->shape);
      EXPECT_EQ(tensor.dtype, DType::kBFloat16);
      EXPECT_EQ(files.tensors.at(file.checkpoint[i].value()).name, tensor.name);
      shards[tensor.name] = file.name;
      bytes += tensor.bytes();
    }
  }
  EXPECT_EQ(shards.size(), bf16.size());
  EXPECT_EQ(files.bytes(), bytes);
  EXPECT_EQ(shards.at("model.layers.1.mlp.experts.gate_up_proj"), kNames[0]) << "where its blocks were";
  const json index = json::parse(files.index);
  EXPECT_EQ(index.at("weight_map").get<decltype(shards)>(), shards);
  EXPECT_EQ(index.at("metadata"), (json{{"total_size", bytes}, {"by", "somebody"}}));
  ordered_json expected = ordered_json::parse(text_of(directory_.file(kConfigFile)));
  expected.erase("quantization_config");
  EXPECT_EQ(files.config, expected.dump(2) + "\n");
  const json header = json::parse(files.files[0].header);
  EXPECT_EQ(header.at("__metadata__").at("format"), "pt");
  EXPECT_EQ(files.files[0].header.size() % 8, 0U);
}

}  // namespace
}  // namespace rp
