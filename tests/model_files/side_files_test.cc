#include "model_files/weights/side_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model_files/weights/safetensors_writer.h"
#include "tests/common/temp_directory.h"

namespace rp {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

// The folder of a model without tensors.
class ModelFolder {
 public:
  explicit ModelFolder(const fs::path& folder) : folder_(folder) {
    fs::create_directories(folder);
    SafetensorsWriter::create(folder / "model.safetensors", {}).commit();
    write("config.json", "{}");
  }

  void write(const std::string& name, const std::string& content) const { std::ofstream(folder_ / name) << content; }
  void link(const std::string& name, const fs::path& target) const { fs::create_symlink(target, folder_ / name); }
  [[nodiscard]] const fs::path& path() const { return folder_; }
  [[nodiscard]] SideFiles find() const { return find_side_files(WeightFiles::open(folder_)); }

 private:
  fs::path folder_;
};

std::vector<std::string> names(const SideFiles& files) {
  std::vector<std::string> names;
  for (const SideFile& file : files.copied) names.push_back(file.name);
  return names;
}

TEST(SideFiles, AreThoseOfKnownNamesAndTheOthersAreNamed) {
  const TempDirectory directory;
  const ModelFolder model(directory.file("model"));
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "merges.txt", "LICENSE",
                           "Notice.txt", "USE_POLICY.md", "license.py", "notes.txt", "README.md", "pytorch_model.bin",
                           "other.safetensors", ".gitattributes", "SHA256SUMS"}) {
    model.write(name, "x");
  }
  fs::create_directory(model.path() / "original");
  fs::create_directory(model.path() / "vocab.json");
  const SideFiles found = model.find();
  EXPECT_THAT(names(found), ElementsAre("LICENSE", "Notice.txt", "USE_POLICY.md", "chat_template.jinja", "merges.txt",
                                        "tokenizer.json", "tokenizer_config.json"));
  EXPECT_THAT(found.left_out, ElementsAre("README.md", "license.py", "notes.txt", "original", "other.safetensors",
                                          "pytorch_model.bin", "vocab.json"));
}

TEST(SideFiles, NoLinkLeadsOutOfTheFolder) {
  const TempDirectory directory;
  const fs::path secret = directory.write("secret", "theirs");
  const ModelFolder model(directory.file("model"));
  model.write("inside", "ours");
  model.link("tokenizer.json", "inside");
  model.link("vocab.json", secret);
  model.link("merges.txt", "../secret");
  model.link("tokenizer.model", "/dev/zero");
  model.link("LICENSE", "nowhere");
  ASSERT_EQ(mkfifo((model.path() / "vocab.txt").c_str(), 0600), 0);
  const SideFiles found = model.find();
  EXPECT_THAT(names(found), ElementsAre("tokenizer.json"));
  EXPECT_EQ(found.copied[0].file.read_all(100), "ours");
  EXPECT_THAT(found.left_out,
              ElementsAre("LICENSE", "inside", "merges.txt", "tokenizer.model", "vocab.json", "vocab.txt"));
}

TEST(SideFiles, OfAFolderOfTheHubsCacheAreItsBlobs) {
  const TempDirectory directory;
  const fs::path cache = directory.file("models--someone--model");
  const ModelFolder model(cache / "snapshots" / "0123abcd");
  fs::create_directory(cache / "blobs");
  std::ofstream(cache / "blobs" / "ffff") << "blob";
  std::ofstream(cache / "refs") << "not a blob";
  model.link("tokenizer.json", "../../blobs/ffff");
  model.link("vocab.json", "../../refs");
  const SideFiles found = model.find();
  EXPECT_THAT(names(found), ElementsAre("tokenizer.json"));
  EXPECT_THAT(found.left_out, ElementsAre("vocab.json"));
  const ModelFolder elsewhere(directory.file("other/snapshots/0123abcd"));
  elsewhere.link("tokenizer.json", cache / "blobs" / "ffff");
  EXPECT_THAT(names(elsewhere.find()), ElementsAre());
}

TEST(SideFiles, ThatAreLargeAreLeftOutAndOthersKeepTheirPermissions) {
  const TempDirectory directory;
  const ModelFolder model(directory.file("model"));
  model.write("vocab.json", "");
  fs::resize_file(model.path() / "vocab.json", (std::uintmax_t{128} << 20) + 1);
  model.write("tokenizer.json", "private");
  ASSERT_EQ(chmod((model.path() / "tokenizer.json").c_str(), 0600), 0);
  const SideFiles found = model.find();
  EXPECT_THAT(found.left_out, ElementsAre("vocab.json"));
  auto output = OutputDirectory::create(directory.file("final"));
  output.copy_in(found.copied.at(0).file, "tokenizer.json");
  output.commit();
  struct stat status {};
  ASSERT_EQ(stat(directory.file("final/tokenizer.json").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
}

}  // namespace
}  // namespace rp
