#include "train/model_identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/model_files/tiny_model.h"

namespace rp {
namespace {

using ::testing::ElementsAre;

void write_model(const std::filesystem::path& folder, const nlohmann::json& config, char fill = 0) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << config.dump();
  std::filesystem::remove(folder / "model.safetensors");
  auto writer = SafetensorsWriter::create(folder / "model.safetensors", {{"a", DType::kBFloat16, {3000, 2}}, {"b", DType::kFloat32, {}}});
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
  const ModelIdentity saved = identity_of_model(directory.file("model"));
  config["transformers_version"] = "5.99";
  config["architectures"] = {"LlamaForCausalLM"};
  config["torch_dtype"] = "float32";
  write_model(directory.file("model"), config);
  EXPECT_EQ(identity_of_model(directory.file("model")), saved);
  config["rope_theta"] = 500000.0;
  config["rope_parameters"]["factor"] = 8.0;
  config.erase("head_dim");
  write_model(directory.file("model"), config, 1);
  const ModelIdentity other = identity_of_model(directory.file("model"));
  const auto lines = differences(saved, other, true);
  EXPECT_THAT(lines, ElementsAre("config.json: /head_dim is absent, and was 2", "config.json: /rope_parameters/factor is 8.0, and was 4.0",
                                 "config.json: /rope_theta is 500000.0, and was 10000.0", "its weights, some of which are not trained, are others"));
  EXPECT_EQ(differences(saved, other, false).size(), 3U);
}

}  // namespace
}  // namespace rp
