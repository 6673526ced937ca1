#include <gtest/gtest.h>

#include "tests/common/expect_refusal.h"
#include "tests/model_files/tiny_model.h"

namespace rp {
namespace {

using nlohmann::json;

std::vector<bool> sparse_with(const json& changes) {
  std::vector<bool> sparse;
  for (const DecoderLayerConfig& layer : read_with(tiny_moe_json(), changes).layers)
    sparse.push_back(layer.mlp.experts.has_value());
  return sparse;
}

using Sparse = std::vector<bool>;

TEST(Qwen3Moe, ExpertsAndTheirRouterAreRead) {
  const DecoderLayerConfig layer = read_with(tiny_moe_json(), {{"norm_topk_prob", true}}).layers.at(2);
  EXPECT_EQ(layer.attention.head_norm, AttentionConfig::HeadNorm::kEachHead);
  EXPECT_EQ(layer.mlp.intermediate, 4);
  ASSERT_TRUE(layer.mlp.experts.has_value());
  EXPECT_EQ(layer.mlp.experts->num, 6);
  EXPECT_EQ(layer.mlp.experts->per_token, 2);
  EXPECT_EQ(layer.mlp.experts->router, ExpertsConfig::Router::kSoftmaxFirst);
  EXPECT_TRUE(layer.mlp.experts->normalises);
  EXPECT_FALSE(read_with(tiny_moe_json(), json::object()).layers.at(0).mlp.experts->normalises);
}

// modeling_qwen3_moe.py: a layer has experts if it is not in mlp_only_layers and its number,
// counted from 1, is a multiple of the step.
TEST(Qwen3Moe, LayersBetweenStepsAndThoseOfTheListHaveAnMlp) {
  EXPECT_EQ(sparse_with(json::object()), (Sparse{true, true, true}));
  EXPECT_EQ(sparse_with({{"decoder_sparse_step", 2}, {"intermediate_size", 16}}), (Sparse{false, true, false}));
  EXPECT_EQ(sparse_with({{"mlp_only_layers", {0, 2}}, {"intermediate_size", 16}}), (Sparse{false, true, false}));
  const ModelConfig config = read_with(tiny_moe_json(), {{"mlp_only_layers", {0}}, {"intermediate_size", 16}});
  EXPECT_EQ(config.layers.at(0).mlp, MlpConfig{.intermediate = 16});
}

TEST(Qwen3Moe, ImpossibleValuesAreRefused) {
  const auto read = [](const json& changes) { (void)read_with(tiny_moe_json(), changes); };
  expect_refusal({"num_experts_per_tok is '7'", "from 1 to 6"}, [&] { read({{"num_experts_per_tok", 7}}); });
  expect_refusal({"moe_intermediate_size is '0'"}, [&] { read({{"moe_intermediate_size", 0}}); });
  expect_refusal({"decoder_sparse_step is '0'"}, [&] { read({{"decoder_sparse_step", 0}}); });
  expect_refusal({"mlp_only_layers is '3'", "from 0 to 2"}, [&] { read({{"mlp_only_layers", {3}}}); });
  expect_refusal({"no intermediate_size"}, [&] { read({{"mlp_only_layers", {1}}}); });
}

}  // namespace
}  // namespace rp
