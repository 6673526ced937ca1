// What decoder layers pass to each other: hidden states and, in some models, the token ids, their
// embeddings, and keys and values that later layers use.
#include "models/decoder.h"

#include <gtest/gtest.h>

#include "tests/model_files/tiny_model.h"
#include "tests/models/expected_values.h"

namespace rp::models {
namespace {

constexpr std::int64_t kBatch = 2, kLength = 5, kHidden = 16, kKeys = 8;

// The second layer uses the keys and values of the first one.
ModelConfig sharing_config() {
  return read_with({{"model_type", "gemma4_text"},
                    {"hidden_size", kHidden},
                    {"intermediate_size", 12},
                    {"num_hidden_layers", 2},
                    {"head_dim", kKeys},
                    {"global_head_dim", kKeys},
                    {"num_attention_heads", 2},
                    {"vocab_size", 10},
                    {"vocab_size_per_layer_input", 10},
                    {"num_key_value_heads", 1},
                    {"num_kv_shared_layers", 1},
                    {"hidden_size_per_layer_input", 6},
                    {"layer_types", {"full_attention", "full_attention"}}},
                   nlohmann::json::object());
}

std::unique_ptr<Layer> layer_with_weights(std::int64_t number, const TrainedParts& parts) {
  std::unique_ptr<Layer> layer = make_decoder_layer(sharing_config(), number, parts, at::kFloat);
  for (NamedParameter& parameter : layer->parameters()) parameter.value.set_data(at::randn(parameter.value.sizes()));
  return layer;
}

// What the embedding passes: hidden states, no documents, no balance, ids, embeddings.
Tensors above_embedding() {
  const at::Tensor ids = at::randint(10, {kBatch, kLength}, at::kLong);
  return {leaf({kBatch, kLength, kHidden}), {}, {}, {}, ids, leaf({kBatch, kLength, kHidden})};
}

TEST(Decoder, LayersPassWhatLaterOnesUseAndNoMore) {
  at::manual_seed(3);
  const Tensors inputs = above_embedding();
  const Tensors between = layer_with_weights(0, {})->forward(inputs);
  ASSERT_EQ(between.size(), 8U);
  EXPECT_TRUE(between[4].is_same(inputs[4]));
  EXPECT_TRUE(between[5].is_same(inputs[5])) << "the embeddings pass as they are";
  for (const std::size_t place : {6, 7}) EXPECT_EQ(between[place].sizes(), (std::vector<std::int64_t>{2, 5, 1, kKeys}));
  const Tensors outputs = layer_with_weights(1, {})->forward(between);
  ASSERT_EQ(outputs.size(), 1U) << "no layer above needs anything else";
  torch::autograd::backward({outputs[0]}, {at::randn(outputs[0].sizes())});
  for (const std::size_t place : {0, 5}) EXPECT_TRUE(inputs[place].grad().defined()) << place;
}

TEST(Decoder, KeysAndValuesGetGradientsFromTheLayerThatUsesThem) {
  at::manual_seed(4);
  Tensors between = above_embedding();
  for (int i = 0; i < 2; ++i) between.push_back(leaf({kBatch, kLength, 1, kKeys}));
  const Tensors outputs = layer_with_weights(1, {})->forward(between);
  torch::autograd::backward({outputs[0]}, {at::randn(outputs[0].sizes())});
  for (const std::size_t place : {6, 7}) EXPECT_GT(between[place].grad().abs().max().item<double>(), 0) << place;
}

TEST(Decoder, EmbeddingsThatAreNotTrainedGetNoGradients) {
  at::manual_seed(5);
  for (const TrainedParts& parts : {TrainedParts{.lora = {.rank = 2}}, TrainedParts{.freeze = "embed_tokens.weight"}}) {
    const Tensors inputs = above_embedding();
    const Tensors outputs = layer_with_weights(0, parts)->forward(inputs);
    torch::autograd::backward({outputs[0]}, {at::randn(outputs[0].sizes())});
    EXPECT_TRUE(inputs[0].grad().defined());
    EXPECT_FALSE(inputs[5].grad().defined());
    EXPECT_FALSE(outputs[5].requires_grad());
  }
}

}  // namespace
}  // namespace rp::models
