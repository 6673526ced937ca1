#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "model_files/weights/safetensors_writer.h"
#include "models/checkpoint.h"
#include "roundpipe/error.h"
#include "roundpipe/models.h"
#include "tests/common/expect_refusal.h"
#include "tests/common/temp_directory.h"
#include "tests/models/golden.h"

namespace rp::models {
namespace {

TEST(Load, DescribesEmbeddingDecoderLayersAndHeadOfATiedModel) {
  const Model model = load(tiny_directory(), at::kBFloat16);
  ASSERT_EQ(model.num_layers(), 4);
  EXPECT_EQ(model.layers()[0].name, "Embedding");
  EXPECT_EQ(model.layers()[2].name, "DecoderLayer 1");
  EXPECT_EQ(model.dtype(), at::kBFloat16);
  ASSERT_EQ(model.ties().size(), 1U);
  EXPECT_EQ(model.ties()[0].first.parameter, "weight");
  EXPECT_EQ(model.ties()[0].second.layer, 3);
  EXPECT_EQ(model.ties()[0].second.parameter, "lm_head.weight");
}

TEST(Load, SameDirectoryAndDtypeGiveTheSameFingerprint) {
  const Model a = load(tiny_directory(), at::kFloat), b = load(tiny_directory(), at::kFloat);
  EXPECT_EQ(a.layers()[1].arguments_hash, b.layers()[1].arguments_hash);
  EXPECT_NE(a.layers()[1].arguments_hash, load(tiny_directory(), at::kBFloat16).layers()[1].arguments_hash);
}

TEST(Load, InitializesFp16WeightsRounded) {
  const Model model = load(tiny_directory(), at::kHalf);
  const at::Tensor value = at::empty(model.layers()[0].make()->parameters()[0].value.sizes(), at::kHalf);
  model.layers()[0].initialize("weight", value);
  const auto file = read_safetensors(tiny_directory() / "model.safetensors");
  EXPECT_TRUE(same_bits(value, file.at("model.embed_tokens.weight").to(at::kHalf)));
}

TEST(Load, InitializesEveryParameterFromItsTensor) {
  const Model model = load(tiny_directory(), at::kFloat);
  const auto file = read_safetensors(tiny_directory() / "model.safetensors");
  std::map<std::pair<std::int64_t, std::string>, std::string> tensor_of;
  for (const CheckpointTensor& tensor : checkpoint_tensors(read_model_config(tiny_directory()))) {
    tensor_of[{tensor.parts.at(0).layer, tensor.parts.at(0).parameter}] = tensor.name;
  }
  tensor_of[{model.num_layers() - 1, "lm_head.weight"}] = "model.embed_tokens.weight";
  std::size_t count = 0;
  for (int i = 0; i < model.num_layers(); ++i) {
    const LayerSpec& spec = model.layers()[i];
    for (const NamedParameter& parameter : spec.make()->parameters()) {
      const at::Tensor value = at::full(parameter.value.sizes(), -1.0F);
      spec.initialize(parameter.name, value);
      EXPECT_TRUE(same_bits(value, file.at(tensor_of.at({i, parameter.name})))) << parameter.name;
      ++count;
    }
  }
  EXPECT_EQ(count, file.size() + 1);  // the tied head is read from the embedding's tensor
}

TEST(Load, RefusesATiedModelWhoseFilesHoldAnotherHead) {
  const SafetensorsFile source = SafetensorsFile::open(tiny_directory() / "model.safetensors");
  for (const bool same : {true, false}) {
    const TempDirectory directory;
    std::filesystem::copy(tiny_directory() / "config.json", directory.file("config.json"));
    std::vector<TensorDeclaration> tensors;
    for (const auto& [name, info] : source.tensors()) tensors.push_back({name, info.dtype, info.shape});
    const TensorInfo& embedding = source.tensor("model.embed_tokens.weight");
    tensors.push_back({"lm_head.weight", embedding.dtype, embedding.shape});
    SafetensorsWriter writer = SafetensorsWriter::create(directory.file("model.safetensors"), tensors);
    for (const TensorDeclaration& tensor : tensors) {
      const bool is_head = tensor.name == "lm_head.weight";
      const std::string from = is_head ? "model.embed_tokens.weight" : tensor.name;
      std::string bytes(source.tensor(from).bytes, '\0');
      source.read(from, bytes.data(), bytes.size());
      if (is_head && !same) bytes.back() = static_cast<char>(bytes.back() ^ 1);
      writer.write(tensor.name, bytes.data(), bytes.size());
    }
    writer.commit();
    const Model model = load(directory.path(), at::kFloat);
    const at::Tensor value = at::empty(embedding.shape, at::kFloat);
    const auto read = [&] { model.layers()[0].initialize("weight", value); };
    if (same) {
      EXPECT_NO_THROW(read());
    } else {
      expect_refusal({"'lm_head.weight'", "other values", "tie_word_embeddings", "false"}, read);
    }
  }
}

TEST(Load, RefusesAModelThatHasWhatLayersDoNotComputeAndSaysWhat) {
  const std::vector<std::pair<nlohmann::json, std::vector<std::string>>> cases = {
      {{{"quantization_config", {{"quant_method", "gptq"}}}}, {"quantised by 'gptq'", "convert"}},
      {{{"quantization_config", {{"load_in_8bit", true}}}}, {"quantised by 'bitsandbytes with 8 bits'", "convert"}},
      {{{"quantization_config", {{"quant_method", "fp8"}, {"scale_fmt", "ue8m0"}}}},
       {"quantised by 'fp8 with scales of ue8m0'", "convert"}}};
  for (const auto& [changes, parts] : cases) {
    const TempDirectory directory;
    nlohmann::json config = nlohmann::json::parse(std::ifstream(tiny_directory() / "config.json"));
    config.update(changes);
    (void)directory.write("config.json", config.dump());
    std::vector<std::string> all = parts;
    all.insert(all.end(), {"config.json", "rp-plan", "not trained yet"});
    expect_refusal(all, [&] { (void)inspect(directory.path()); });
  }
}

TEST(Load, RefusesADtypeThatLayersCannotComputeIn) { EXPECT_THROW((void)load(tiny_directory(), at::kDouble), Error); }

TEST(Inspect, CountsATiedParameterOnce) {
  const ModelInfo info = inspect(tiny_directory());
  EXPECT_EQ(info.architecture, "llama");
  EXPECT_EQ(info.vocabulary, 61);
  EXPECT_EQ(info.num_layers, 4);
  EXPECT_EQ(info.max_sequence_length, 256);
  std::int64_t elements = 0;
  for (const auto& [name, value] : read_safetensors(tiny_directory() / "model.safetensors")) elements += value.numel();
  EXPECT_EQ(info.num_parameters, elements);
}

TEST(Export, WritesTheGivenWeightsUnderTheNamesAndDtypesOfTheSource) {
  const TempDirectory directory;
  const auto output = directory.file("final");
  const Model model = load(tiny_directory(), at::kFloat);
  // bf16 working weights that are twice the source's weights.
  export_checkpoint(tiny_directory(), output, [&](std::int64_t layer, const std::string& parameter) {
    const LayerSpec& spec = model.layers()[layer];
    for (const NamedParameter& p : spec.make()->parameters()) {
      if (p.name != parameter) continue;
      const at::Tensor value = at::empty(p.value.sizes(), at::kFloat);
      spec.initialize(parameter, value);
      return value.mul_(2).to(at::kBFloat16);
    }
    throw std::logic_error("export asked for '" + parameter + "' of layer " + std::to_string(layer));
  });
  const auto source = read_safetensors(tiny_directory() / "model.safetensors");
  const auto written = read_safetensors(output / "model.safetensors");
  EXPECT_EQ(written.size(), source.size());
  for (const auto& [name, value] : source) {
    EXPECT_TRUE(same_bits(written.at(name), (value * 2).to(at::kBFloat16).to(at::kFloat))) << name;
  }
  EXPECT_TRUE(std::filesystem::exists(output / "config.json"));
  EXPECT_EQ(inspect(output).num_parameters, inspect(tiny_directory()).num_parameters);
}

TEST(Tie, RefusesALayerThatDoesNotExistAndTheSameLayerTwice) {
  Model model = load(tiny_directory(), at::kFloat);
  EXPECT_THROW(model.tie({0, "weight"}, {4, "x"}), Error);
  EXPECT_THROW(model.tie({0, "weight"}, {-1, "x"}), Error);
  EXPECT_THROW(model.tie({1, "a"}, {1, "b"}), Error);
}

}  // namespace
}  // namespace rp::models
