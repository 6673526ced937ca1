#include <gtest/gtest.h>

#include "roundpipe/models.h"
#include "tests/models/expected_values.h"

namespace rp::models {
namespace {

// Sums have another order than in transformers. This is a few units in the last place of the
// largest element.
constexpr double kTolerance = 3e-6;

class TinyLlama : public testing::Test {
 protected:
  at::Tensor golden(const std::string& name) const { return values_.at(name); }
  at::Tensor output_of(int layer) const { return golden("layer." + std::to_string(layer) + ".output"); }
  at::Tensor grad_output_of(int layer) const { return golden("layer." + std::to_string(layer) + ".grad_output"); }

  Model model(at::ScalarType dtype = at::kFloat) const { return load(tiny_directory(), dtype); }
  BoundLayer layer(int i, at::ScalarType dtype = at::kFloat, std::int64_t shift = 0) const {
    return BoundLayer(model(dtype).layers().at(i), dtype, shift);
  }

  std::vector<BoundLayer> all_layers(at::ScalarType dtype, std::int64_t shift = 0) const {
    return bound_layers(model(dtype), shift);
  }

  Tensors arguments() const { return {golden("labels"), golden("divisor")}; }

  const std::map<std::string, at::Tensor> values_ = read_safetensors(golden_directory() / "tiny_values.safetensors");
};

TEST_F(TinyLlama, EmbeddingAgreesWithTransformersForwardAndBackward) {
  BoundLayer embedding = layer(0);
  const at::Tensor y = embedding({golden("ids")})[0];
  EXPECT_TRUE(same_bits(y.detach(), output_of(0)));
  torch::autograd::backward({y}, {grad_output_of(0)});
  EXPECT_LE(relative_difference(embedding.parameters()[0].value.grad(), golden("grad.model.embed_tokens.weight")),
            kTolerance);
}

TEST_F(TinyLlama, EveryDecoderLayerAgreesWithTransformersForwardAndBackward) {
  for (const int i : {1, 2}) {
    BoundLayer decoder_layer = layer(i);
    const at::Tensor x = output_of(i - 1).requires_grad_(true);
    const at::Tensor y = decoder_layer({x})[0];
    EXPECT_LE(relative_difference(y.detach(), output_of(i)), kTolerance);
    torch::autograd::backward({y}, {grad_output_of(i)});
    EXPECT_LE(relative_difference(x.grad(), grad_output_of(i - 1)), kTolerance);
    EXPECT_EQ(decoder_layer.parameters().size(), 16U);
    for (const NamedParameter& parameter : decoder_layer.parameters()) {
      const std::string name = "grad.model.layers." + std::to_string(i - 1) + "." + parameter.name;
      // The gradient of the key's bias is zero except for rounding, because a softmax does not
      // depend on a constant.
      const double scale = parameter.name == "self_attn.k_proj.bias" ? 1e2 : 1;
      EXPECT_LE(relative_difference(parameter.value.grad(), golden(name)), scale * kTolerance) << name;
    }
  }
}

TEST_F(TinyLlama, HeadAndLossAgreeWithTransformersForwardAndBackward) {
  BoundLayer head = layer(3);
  const at::Tensor x = output_of(2).requires_grad_(true);
  const Tensors outputs = head({x});
  EXPECT_LE(relative_difference(outputs[0].detach(), output_of(3)), kTolerance);
  EXPECT_LE(relative_difference(at::linear(outputs[0], outputs[1]).detach(), golden("logits")), kTolerance);
  const at::Tensor loss = causal_lm_loss().function(outputs, arguments()).at(0);
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  EXPECT_LE(relative_difference(loss.detach(), golden("loss")), 1e-6);
  torch::autograd::backward({loss});
  EXPECT_LE(relative_difference(x.grad(), grad_output_of(2)), kTolerance);
  EXPECT_LE(relative_difference(head.parameters()[0].value.grad(), golden("grad.model.norm.weight")), kTolerance);
  EXPECT_LE(relative_difference(head.parameters()[1].value.grad(), golden("grad.lm_head.weight")), kTolerance);
}

TEST_F(TinyLlama, WholeModelLayerByLayerAgreesWithTransformers) {
  std::vector<BoundLayer> layers = all_layers(at::kFloat);
  const at::Tensor loss = run_layer_by_layer(layers, {golden("ids")}, arguments());
  EXPECT_LE(relative_difference(loss, golden("loss")), 2e-6);
  EXPECT_LE(relative_difference(layers[0].parameters()[0].value.grad(), golden("grad.model.embed_tokens.weight")),
            1e-5);
}

TEST_F(TinyLlama, SixteenBitsStayNearTheFp32Values) {
  struct Format {
    at::ScalarType dtype;
    double of_loss, of_gradient;
  };
  for (const Format& format : {Format{at::kBFloat16, 2e-2, 0.1}, Format{at::kHalf, 2e-3, 1e-2}}) {
    std::vector<BoundLayer> layers = all_layers(format.dtype);
    const at::Tensor loss = run_layer_by_layer(layers, {golden("ids")}, arguments());
    EXPECT_LE(relative_difference(loss, golden("loss")), format.of_loss);
    EXPECT_LE(relative_difference(layers[1].parameters()[1].value.grad(),
                                  golden("grad.model.layers.0.self_attn.q_proj.weight")),
              format.of_gradient);
  }
}

TEST_F(TinyLlama, GivesTheSameBitsTwiceAndAtOtherAddresses) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    std::vector<BoundLayer> first = all_layers(dtype), second = all_layers(dtype), shifted = all_layers(dtype, 32 * 7);
    const at::Tensor loss = run_layer_by_layer(first, {golden("ids")}, arguments());
    EXPECT_TRUE(same_bits(loss, run_layer_by_layer(second, {golden("ids")}, arguments())));
    EXPECT_TRUE(same_bits(loss, run_layer_by_layer(shifted, {golden("ids")}, arguments())));
    for (std::size_t i = 0; i < first.size(); ++i) {
      EXPECT_TRUE(same_bits(first[i].gradients(), second[i].gradients())) << i;
      EXPECT_TRUE(same_bits(first[i].gradients(), shifted[i].gradients().slice(0, 32 * 7))) << i;
    }
  }
}

TEST_F(TinyLlama, GradientsAccumulateInPlaceInFp32AlsoForBf16Weights) {
  std::vector<BoundLayer> layers = all_layers(at::kBFloat16);
  (void)run_layer_by_layer(layers, {golden("ids")}, arguments());
  std::vector<at::Tensor> once;
  for (const BoundLayer& layer : layers) once.push_back(layer.gradients().clone());
  (void)run_layer_by_layer(layers, {golden("ids")}, arguments());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    // The gradients of the parameters are still views of the flat array, and a second pass doubles
    // them exactly.
    EXPECT_TRUE(same_bits(layers[i].gradients(), once[i] * 2)) << i;
    for (const NamedParameter& parameter : layers[i].parameters()) {
      EXPECT_EQ(parameter.value.grad().scalar_type(), at::kFloat);
      EXPECT_TRUE(parameter.value.grad().is_alias_of(layers[i].gradients())) << parameter.name;
    }
  }
}

// All sequences of the golden batch are packed into one row.
TEST_F(TinyLlama, PackedDocumentsHaveTheLossAndTheGradientsOfSequencesOfTheirOwn) {
  const at::Tensor ids = golden("ids"), labels = golden("labels");
  const std::int64_t rows = ids.size(0), length = ids.size(1);
  const at::Tensor documents = at::full({1, rows}, length, at::kLong);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const double tolerance = dtype == at::kFloat ? 1e-5 : dtype == at::kHalf ? 3e-3 : 3e-2;
    std::vector<BoundLayer> apart = all_layers(dtype), packed = all_layers(dtype);
    const at::Tensor expected = run_layer_by_layer(apart, {ids}, arguments());
    const at::Tensor loss =
        run_layer_by_layer(packed, {ids.view({1, -1}), documents}, {labels.view({1, -1}), golden("divisor")});
    EXPECT_LE(relative_difference(loss, expected), 0.1 * tolerance);
    for (std::size_t i = 0; i < apart.size(); ++i) {
      EXPECT_LE(relative_difference(packed[i].gradients(), apart[i].gradients()), tolerance) << i;
    }
  }
}

TEST_F(TinyLlama, OneDocumentARowChangesNoBit) {
  const at::Tensor ids = golden("ids");
  std::vector<BoundLayer> plain = all_layers(at::kBFloat16), packed = all_layers(at::kBFloat16);
  const at::Tensor loss = run_layer_by_layer(plain, {ids}, arguments());
  const at::Tensor documents = at::full({ids.size(0), 1}, ids.size(1), at::kLong);
  EXPECT_TRUE(same_bits(loss, run_layer_by_layer(packed, {ids, documents}, arguments())));
  for (std::size_t i = 0; i < plain.size(); ++i)
    EXPECT_TRUE(same_bits(plain[i].gradients(), packed[i].gradients())) << i;
}

TEST_F(TinyLlama, LayerMadeOnceServesMicrobatchesOfDifferentLengths) {
  BoundLayer decoder_layer = layer(1);
  const at::Tensor x = output_of(0);
  const at::Tensor whole = decoder_layer({x})[0].detach();
  const at::Tensor prefix = decoder_layer({x.narrow(1, 0, 4)})[0].detach();
  // Attention is causal: later positions do not change a prefix.
  EXPECT_LE(relative_difference(prefix, whole.narrow(1, 0, 4)), kTolerance);
  EXPECT_TRUE(same_bits(whole, decoder_layer({x})[0].detach()));
}

TEST_F(TinyLlama, PlaceholdersOfALayerTakeNoMemory) {
  const Model described = model();
  for (const LayerSpec& spec : described.layers()) {
    for (const NamedParameter& parameter : spec.make()->parameters()) {
      EXPECT_TRUE(parameter.value.requires_grad());
      EXPECT_TRUE(parameter.value.is_leaf());
      EXPECT_LE(parameter.value.storage().nbytes(), 4U) << parameter.name;
    }
  }
}

}  // namespace
}  // namespace rp::models
