#include "train/run/model_identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/text.h"
#include "tests/model_files/tiny_model.h"

namespace rp {
namespace {

using ::testing::ElementsAre;

void write_model(const std::filesystem::path& folder, const nlohmann::json& config, char fill = 0) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << config.dump();
  std::filesystem::remove(folder / "model.safetensors");
  auto writer = SafetensorsWriter::create(folder / "model.safetensors",
                                          {{"a", DType::kBFloat16, {3000, 2}}, {"b", DType::kFloat32, {}}});
  std::string values(12000, '\0');
  values[6001] = fill;
  writer.write("a", values.data(), 12000);
  writer.write("b", values.data(), 4);
  writer.commit();
}

TEST(ModelIdentity, IsWhatIsComputedAndNotWhereTheModelCameFrom) {
  const TempDirectory directory;
  nlohmann::json config = tiny_llama_json();
  config["rope_parameters"] = {{"rope_type", "yarn"}, {"factor", 4.0}};
  write_model(directory.file("model"), config);
  const ModelIdentity saved = identity_of_model(directory.file("model"), true);
  config["transformers_version"] = "5.99";
  config["architectures"] = {"LlamaForCausalLM"};
  config["torch_dtype"] = "float32";
  write_model(directory.file("model"), config);
  EXPECT_EQ(identity_of_model(directory.file("model"), true), saved);
  config["rope_theta"] = 500000.0;
  config["rope_parameters"]["factor"] = 8.0;
  config.erase("head_dim");
  write_model(directory.file("model"), config, 1);
  EXPECT_THAT(differences(saved, identity_of_model(directory.file("model"), true)),
              ElementsAre("config.json: /head_dim is absent, and was 2",
                          "config.json: /rope_parameters/factor is 8.0, and was 4.0",
                          "config.json: /rope_theta is 500000.0, and was 10000.0",
                          "its weights, some of which are not trained, are others"));
}

TEST(ModelIdentity, OfAModelWhoseWeightsAreAllTrainedIsItsConfigurationAlone) {
  const TempDirectory directory;
  write_model(directory.file("model"), tiny_llama_json());
  const ModelIdentity saved = identity_of_model(directory.file("model"), false);
  write_model(directory.file("model"), tiny_llama_json(), 1);
  EXPECT_EQ(identity_of_model(directory.file("model"), false), saved);
}

TEST(ModelIdentity, OfManyTensorsHasTheShapesOfAllAndBytesOfSome) {
  const TempDirectory directory;
  std::vector<TensorDeclaration> tensors;
  for (int i = 0; i < 1000; ++i) tensors.push_back({cat("t", 1000 + i), DType::kUInt8, {2}});
  const auto identity = [&](std::size_t changed, char value) {
    std::filesystem::remove(directory.file("model.safetensors"));
    (void)directory.write("config.json", tiny_llama_json().dump());
    auto writer = SafetensorsWriter::create(directory.file("model.safetensors"), tensors);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::string values(tensors[i].bytes(), i == changed ? value : 'a');
      writer.write(tensors[i].name, values.data(), values.size());
    }
    writer.commit();
    return identity_of_model(directory.path(), true);
  };
  const ModelIdentity saved = identity(0, 'a');
  EXPECT_NE(identity(4, 'b'), saved) << "every fourth is read";
  EXPECT_EQ(identity(5, 'b'), saved);
  tensors[5].shape = {1, 2};
  EXPECT_NE(identity(0, 'a'), saved);
}

}  // namespace
}  // namespace rp
