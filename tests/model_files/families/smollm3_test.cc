#include <gtest/gtest.h>

#include "tests/common/expect_refusal.h"
#include "tests/model_files/tiny_model.h"

namespace rp {
namespace {

using nlohmann::json;

json tiny_smollm3_json() {
  json config = tiny_llama_json();
  config.update({{"model_type", "smollm3"}, {"num_hidden_layers", 8}});
  config.erase("tie_word_embeddings");
  return config;
}

std::vector<bool> rotations_with(const json& changes) {
  std::vector<bool> rotates;
  for (const DecoderLayerConfig& layer : read_with(tiny_smollm3_json(), changes).layers) {
    rotates.push_back(layer.attention.rope.kind != RopeConfig::Kind::kNone);
  }
  return rotates;
}

TEST(SmolLm3, LayersThatDoNotRotateAreEveryFourthOrThoseOfTheList) {
  EXPECT_EQ(rotations_with(json::object()), (std::vector<bool>{true, true, true, false, true, true, true, false}));
  EXPECT_EQ(rotations_with({{"no_rope_layer_interval", 3}}),
            (std::vector<bool>{true, true, false, true, true, false, true, true}));
  EXPECT_EQ(rotations_with({{"no_rope_layers", {0, 1, 1, 1, 1, 1, 1, 1}}}),
            (std::vector<bool>{false, true, true, true, true, true, true, true}));
  expect_refusal({"no_rope_layers has 2 entries", "num_hidden_layers is 8"}, [] {
    rotations_with({{"no_rope_layers", {0, 1}}});
  });
  expect_refusal({"no_rope_layers is '2'"}, [] { rotations_with({{"no_rope_layers", {2, 1, 1, 1, 1, 1, 1, 1}}}); });
}

TEST(SmolLm3, WindowsAreOfLayersThatDoNotRotate) {
  const ModelConfig config = read_with(tiny_smollm3_json(), {{"use_sliding_window", true}, {"sliding_window", 16}});
  EXPECT_EQ(config.layers.at(2).attention.window, 0);
  EXPECT_EQ(config.layers.at(3).attention.window, 16);
  EXPECT_EQ(read_with(tiny_smollm3_json(), {{"sliding_window", 16}}).layers.at(3).attention.window, 0);
}

TEST(SmolLm3, TheHeadIsTiedUnlessTheFileSaysOtherwise) {
  EXPECT_TRUE(read_with(tiny_smollm3_json(), json::object()).tied_head);
  EXPECT_FALSE(read_with(tiny_smollm3_json(), {{"tie_word_embeddings", false}}).tied_head);
}

}  // namespace
}  // namespace rp
