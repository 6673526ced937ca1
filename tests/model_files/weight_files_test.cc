#include "model_files/weights/weight_files.h"

#include <gtest/gtest.h>

#include "tests/common/expect_refusal.h"
#include "tests/common/temp_directory.h"
#include "tests/model_files/tiny_model.h"

namespace rp {
namespace {

using nlohmann::json;

// A directory with the shards one.safetensors {a, b} and two.safetensors {c}. Each test adds an
// index.
class WeightFilesTest : public ::testing::Test {
 protected:
  WeightFilesTest() {
    write_tensors(directory_.file("one.safetensors"), {{"a", DType::kUInt8, {1}}, {"b", DType::kUInt8, {2}}});
    write_tensors(directory_.file("two.safetensors"), {{"c", DType::kUInt8, {3}}});
  }

  WeightFiles open_with(const json& weight_map) {
    const json index = {{"metadata", {{"total_size", 999}}}, {"weight_map", weight_map}};
    (void)directory_.write("model.safetensors.index.json", index.dump());
    return WeightFiles::open(directory_.path());
  }

  const TempDirectory directory_;
};

TEST_F(WeightFilesTest, ShardsAreOneMapOfTensorsAndAWrongTotalSizeDoesNotMatter) {
  const WeightFiles weights = open_with({{"a", "one.safetensors"}, {"b", "one.safetensors"}, {"c", "two.safetensors"}});
  EXPECT_EQ(weights.names(), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(weights.file_of("c").filename(), "two.safetensors");
  EXPECT_EQ(weights.tensor("b").bytes, 2U);
  std::string bytes(3, '?');
  weights.read("c", bytes.data(), 3);
  EXPECT_EQ(bytes, std::string(3, '\0'));
  expect_refusal({directory_.path().string(), "no tensor 'd'"}, [&] { (void)weights.tensor("d"); });
}

TEST_F(WeightFilesTest, FilesAndTensorsThatAreNotListedAreIgnored) {
  (void)directory_.write("three.safetensors", "rubbish");
  EXPECT_EQ(open_with({{"a", "one.safetensors"}}).names(), std::vector<std::string>{"a"});
}

TEST_F(WeightFilesTest, ASingleFileNeedsNoIndex) {
  write_tensors(directory_.file("model.safetensors"), {{"w", DType::kUInt8, {1}}});
  EXPECT_EQ(WeightFiles::open(directory_.path()).names(), std::vector<std::string>{"w"});
}

TEST_F(WeightFilesTest, AShardNameThatCouldLeaveTheDirectoryIsRefused) {
  for (const char* name : {"../one.safetensors", "/etc/one.safetensors", "sub/one.safetensors", "..\\one.safetensors",
                           "", ".", "..", ".hidden.safetensors", "one.bin", "one.safetensors/"}) {
    SCOPED_TRACE(name);
    expect_refusal({"index.json", "'a'", "plain name"}, [&] { open_with({{"a", name}}); });
  }
  const std::string with_nul("one\0.safetensors", 16);
  expect_refusal({"index.json", "'a'", "plain name"}, [&] { open_with({{"a", with_nul}}); });
}

TEST_F(WeightFilesTest, AnIndexThatDoesNotFitItsShardsIsRefused) {
  expect_refusal({"four.safetensors", "No such file"}, [&] { open_with({{"a", "four.safetensors"}}); });
  expect_refusal({"index.json", "'c'", "not in 'one.safetensors'"}, [&] { open_with({{"c", "one.safetensors"}}); });
  expect_refusal({"index.json", "'a'", "not a string"}, [&] { open_with({{"a", 1}}); });
  expect_refusal({"index.json", "weight_map"}, [&] { open_with(json::array()); });
  expect_refusal({"index.json", "empty"}, [&] { open_with(json::object()); });
  write_tensors(directory_.file("copy.safetensors"), {{"a", DType::kUInt8, {1}}, {"d", DType::kUInt8, {1}}});
  expect_refusal({"index.json", "'a'", "two shards", "one.safetensors", "copy.safetensors"}, [&] {
    open_with({{"a", "one.safetensors"}, {"d", "copy.safetensors"}});
  });
}

TEST_F(WeightFilesTest, AnIndexWithAKeyTwiceIsRefused) {
  (void)directory_.write("model.safetensors.index.json",
                         R"({"weight_map":{"a":"one.safetensors","\u0061":"two.safetensors"}})");
  expect_refusal({"index.json", "'a' twice"}, [&] { WeightFiles::open(directory_.path()); });
}

TEST(WeightFiles, ADirectoryWithoutWeightsIsRefused) {
  const TempDirectory directory;
  expect_refusal({directory.path().string(), "model.safetensors"}, [&] { WeightFiles::open(directory.path()); });
  expect_refusal({"absent", "not a directory"}, [&] { WeightFiles::open(directory.file("absent")); });
  std::filesystem::create_symlink("nowhere", directory.file("model.safetensors"));
  expect_refusal({"model.safetensors", "No such file"}, [&] { WeightFiles::open(directory.path()); });
}

}  // namespace
}  // namespace rp
