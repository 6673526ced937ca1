#include "models/layers/quantised_weights.h"

#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>

#include "models/checkpoint.h"
#include "roundpipe/models.h"
#include "tests/common/temp_directory.h"
#include "tests/models/expected_values.h"

namespace rp::models {
namespace {

constexpr FrozenWeights kFormats[] = {FrozenWeights::kNf4, FrozenWeights::kFp8};

TrainedParts pairs_with(FrozenWeights format, bool is_dora = false) {
  return {.lora = {.rank = 2, .is_dora = is_dora, .targets = "q_proj,down_proj"}, .frozen_weights = format};
}

TEST(QuantisedWeights, ExpandAloneAndTogetherToTheSameBits) {
  at::manual_seed(3);
  const at::Tensor values = at::randn({3, 70, 96});
  for (const WeightFormat format : {WeightFormat::kNf4, WeightFormat::kNf4Double, WeightFormat::kMxfp4,
                                    WeightFormat::kFp8Blocks, WeightFormat::kFp8Tensor}) {
    const QuantisedShape shape{.format = format, .matrices = 3, .rows = 70, .columns = 96};
    const at::Tensor bytes = at::zeros({static_cast<std::int64_t>(QuantisedLayout(shape).num_bytes)}, at::kByte);
    for (std::int64_t matrix = 0; matrix < 3; ++matrix) EXPECT_TRUE(quantise(values[matrix], shape, matrix, bytes));
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const at::Tensor all = expanded(bytes, shape, {3, 70, 96}, dtype);
      EXPECT_LE(relative_difference(all.to(at::kFloat), values), 0.25);
      for (std::int64_t matrix = 0; matrix < 3; ++matrix)
        EXPECT_TRUE(same_bits(expanded_matrix(bytes, shape, matrix, dtype), all[matrix]));
    }
  }
  EXPECT_FALSE(quantise(at::full({2, 32}, std::numeric_limits<float>::infinity()),
                        {.format = WeightFormat::kMxfp4, .rows = 2, .columns = 32}, 0, at::zeros({128}, at::kByte)));
}

// Returns the values of a frozen weight of the tiny model after it was quantised.
at::Tensor through(const LayerSpec& spec, const LayerTensor& tensor, at::ScalarType dtype) {
  const at::Tensor bytes = at::empty({tensor.quantised_bytes()}, at::kByte);
  spec.initialize(tensor.name, bytes);
  return expanded(bytes, tensor.quantised_shape(), tensor.shape, dtype);
}

TEST(QuantisedWeights, LayersComputeWithTheExpandedValues) {
  const ModelConfig config = read_model_config(tiny_directory());
  for (const FrozenWeights format : kFormats) {
    const TrainedParts parts = pairs_with(format);
    const Model quantised = load(tiny_directory(), at::kFloat, parts),
                plain = load(tiny_directory(), at::kFloat, pairs_with(FrozenWeights::kNone));
    BoundLayer layer(quantised.layers().at(1), at::kFloat), expected(plain.layers().at(1), at::kFloat);
    std::int64_t num_quantised = 0;
    for (const LayerTensor& tensor : tensors_of_layer(config, 1, parts).tensors) {
      if (!tensor.format) continue;
      ++num_quantised;
      for (NamedParameter& parameter : expected.parameters()) {
        const c10::NoGradGuard no_grad;
        if (parameter.name == tensor.name) parameter.value.copy_(through(quantised.layers()[1], tensor, at::kFloat));
      }
    }
    EXPECT_EQ(num_quantised, 7) << "q, k, v, o, gate, up, down";
    for (NamedParameter& parameter : expected.parameters()) {  // the pairs' initial values are random
      const c10::NoGradGuard no_grad;
      for (const NamedParameter& own : layer.parameters()) {
        if (own.name == parameter.name && !own.keeps_dtype) parameter.value.copy_(own.value);
      }
    }
    const at::Tensor x = at::randn({2, 5, config.hidden}), grad = at::randn({2, 5, config.hidden});
    const at::Tensor own_x = x.clone().requires_grad_(true), expected_x = x.clone().requires_grad_(true);
    const at::Tensor y = layer({own_x})[0], expected_y = expected({expected_x})[0];
    EXPECT_TRUE(same_bits(y.detach(), expected_y.detach()));
    torch::autograd::backward({y, expected_y}, {grad, grad});
    EXPECT_TRUE(same_bits(own_x.grad(), expected_x.grad()));
  }
}

TEST(QuantisedWeights, LengthsOfDoraAreThoseOfTheQuantisedRows) {
  const ModelConfig config = read_model_config(tiny_directory());
  const TrainedParts parts = pairs_with(FrozenWeights::kNf4, /*is_dora=*/true);
  const Model model = load(tiny_directory(), at::kFloat, parts);
  const LayerTensors tensors = tensors_of_layer(config, 1, parts);
  const at::Tensor rows = through(model.layers()[1], *tensors.find("self_attn.q_proj.weight"), at::kFloat);
  const at::Tensor lengths = at::empty({rows.size(0)});
  model.layers()[1].initialize("self_attn.q_proj.lora_magnitude_vector", lengths);
  EXPECT_TRUE(same_bits(lengths, at::linalg_vector_norm(rows, 2, at::IntArrayRef{1})));
}

// Without training, the pairs are zero, so what is exported are the quantised weights themselves.
TEST(QuantisedWeights, AMergedModelHasWhatWasTrained) {
  const ModelConfig config = read_model_config(tiny_directory());
  const TrainedParts parts = pairs_with(FrozenWeights::kNf4);
  const Model model = load(tiny_directory(), at::kFloat, parts);
  const TempDirectory directory;
  const auto weight = [&](std::int64_t layer, const std::string& name) {
    for (const NamedParameter& parameter : model.layers()[layer].make()->parameters()) {
      if (parameter.name != name) continue;
      const at::Tensor value = at::empty(parameter.value.sizes(), parameter.value.scalar_type());
      model.layers()[layer].initialize(name, value);
      return value;
    }
    throw std::logic_error(name);
  };
  export_checkpoint(tiny_directory(), directory.file("merged"), weight, parts);
  const auto merged = read_safetensors(directory.file("merged") / "model.safetensors"),
             source = read_safetensors(tiny_directory() / "model.safetensors");
  ASSERT_EQ(merged.size(), source.size());
  for (std::int64_t layer = 1; layer <= config.num_layers(); ++layer) {
    for (const LayerTensor& tensor : tensors_of_layer(config, layer, parts).tensors) {
      if (tensor.is_pair) continue;
      const std::string name = name_in_checkpoint(config, layer, tensor.name);
      const at::Tensor& value = merged.at(name);
      EXPECT_EQ(value.scalar_type(), source.at(name).scalar_type());
      const at::Tensor expected =
          tensor.format ? through(model.layers()[layer], tensor, value.scalar_type()) : source.at(name);
      EXPECT_TRUE(same_bits(value, expected)) << name;
    }
  }
}

}  // namespace
}  // namespace rp::models
