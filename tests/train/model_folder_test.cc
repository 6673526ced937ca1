#include "train/run/model_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/common/temp_directory.h"

namespace rp {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;

class ModelFolderTest : public ::testing::Test {
 protected:
  // Creates a folder with these files, which are empty.
  std::filesystem::path folder(const std::vector<std::string>& files) {
    const std::filesystem::path path = directory_.path() / "folder";
    std::filesystem::remove_all(path);
    for (const std::string& file : files) {
      std::filesystem::create_directories((path / file).parent_path());
      (void)directory_.write("folder/" + file, "");
    }
    return path;
  }

  const TempDirectory directory_;
};

TEST_F(ModelFolderTest, OneOfAModelIsFine) {
  EXPECT_EQ(why_no_model(folder({"config.json", "model.safetensors"})), std::nullopt);
  EXPECT_EQ(why_no_model(folder({"config.json", "model.safetensors.index.json"})), std::nullopt);
}

TEST_F(ModelFolderTest, ANameOfTheHubIsRefusedWithTheCommandThatDownloadsIt) {
  EXPECT_THAT(why_no_model("meta-llama/Llama-3.2-1B"),
              Optional(HasSubstr("hf download meta-llama/Llama-3.2-1B --local-dir Llama-3.2-1B")));
  EXPECT_THAT(why_no_model("/no/such/folder"), Optional(std::string("/no/such/folder: there is no such folder")));
}

TEST_F(ModelFolderTest, OutputOfTrainIsRecognised) {
  EXPECT_THAT(why_no_model(folder({"state.json", "XXH128SUMS", "state.safetensors"})),
              Optional(HasSubstr("checkpoint of a run; to go on")));
  EXPECT_THAT(why_no_model(folder({"metrics.jsonl", "final/config.json"})), Optional(HasSubstr("whose model is in ")));
  EXPECT_THAT(why_no_model(folder({"adapter_config.json", "adapter_model.safetensors"})),
              Optional(HasSubstr("give its base model as --model")));
}

TEST_F(ModelFolderTest, WeightsOfOtherFormatsAreRefusedWithTheWayToConvertThem) {
  EXPECT_THAT(why_no_model(folder({"config.json", "pytorch_model.bin"})), Optional(HasSubstr("save_pretrained(")));
  EXPECT_THAT(why_no_model(folder({"config.json", "model-Q4.gguf"})), Optional(HasSubstr("GGUF files are not read")));
}

}  // namespace
}  // namespace rp
