#include "model_files/weights/expert_layout.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/common/expect_refusal.h"
#include "tests/common/temp_directory.h"
#include "tests/model_files/tiny_model.h"

namespace rp {
namespace {

using nlohmann::json;
using Shape = std::vector<std::int64_t>;

ModelConfig qwen() { return read_with(tiny_moe_json(), json::object()); }
ModelConfig gpt_oss(const json& changes = json::object()) { return read_with(tiny_gpt_oss_json(), changes); }
const json kMxfp4 = {{"quantization_config", {{"quant_method", "mxfp4"}}}};

ExpertLayout layout_of_tensors(const ModelConfig& config, const std::vector<TensorDeclaration>& tensors) {
  const TempDirectory directory;
  write_tensors(directory.file("model.safetensors"), tensors);
  const WeightFiles weights = WeightFiles::open(directory.path());
  check_weights(config, weights);
  return find_expert_layout(config, weights);
}

const CheckpointTensor& tensor_named(const std::vector<CheckpointTensor>& tensors, const std::string& name) {
  return *std::ranges::find(tensors, name, &CheckpointTensor::name);
}

// Removes the tensors whose names contain `part`.
std::vector<TensorDeclaration> without(std::vector<TensorDeclaration> tensors, const std::string& part) {
  std::erase_if(tensors, [&](const TensorDeclaration& tensor) { return tensor.name.find(part) != std::string::npos; });
  return tensors;
}

TEST(ExpertLayout, EachLayoutIsFoundByTheNamesOfItsTensors) {
  EXPECT_EQ(layout_of_tensors(qwen(), declarations(qwen())), ExpertLayout::kEach);
  EXPECT_EQ(layout_of_tensors(qwen(), declarations(qwen(), ExpertLayout::kFused)), ExpertLayout::kFused);
  EXPECT_EQ(layout_of_tensors(gpt_oss(), declarations(gpt_oss())), ExpertLayout::kEach);
  EXPECT_EQ(layout_of_tensors(gpt_oss(), declarations(gpt_oss(), ExpertLayout::kInterleaved)),
            ExpertLayout::kInterleaved);
  EXPECT_EQ(layout_of_tensors(gpt_oss(kMxfp4), declarations(gpt_oss(), ExpertLayout::kMxfp4)), ExpertLayout::kMxfp4);
  EXPECT_EQ(layout_of_tensors(gpt_oss(), declarations(gpt_oss(), ExpertLayout::kMxfp4)), ExpertLayout::kMxfp4);
  const ModelConfig dense = read_with(tiny_llama_json(), json::object());
  EXPECT_EQ(layout_of_tensors(dense, declarations(dense)), ExpertLayout::kEach);
}

TEST(ExpertLayout, FusedTensorsHaveGatesRowsFirst) {
  const auto tensors = checkpoint_tensors(qwen(), ExpertLayout::kFused);
  const CheckpointTensor& gate_up = tensor_named(tensors, "model.layers.1.mlp.experts.gate_up_proj");
  EXPECT_EQ(gate_up.shape, (Shape{6, 8, 8}));
  EXPECT_EQ(gate_up.parts.at(0).layer, 2);
  EXPECT_TRUE(gate_up.is_of_all_experts && !gate_up.is_transposed);
  EXPECT_EQ(gate_up.parts,
            (std::vector<TensorPart>{{.layer = 2, .parameter = "mlp.experts.gate_proj.weight"},
                                     {.layer = 2, .parameter = "mlp.experts.up_proj.weight", .first_row = 4}}));
  EXPECT_EQ(tensor_named(tensors, "model.layers.1.mlp.experts.down_proj").shape, (Shape{6, 8, 4}));
  EXPECT_EQ(tensors.size(), checkpoint_tensors(qwen()).size() - 3U * (6 * 3 - 2));
}

TEST(ExpertLayout, GptOssHasInputsFirstAndGateAndUpInTurns) {
  const auto tensors = checkpoint_tensors(gpt_oss(), ExpertLayout::kInterleaved);
  const CheckpointTensor& gate_up = tensor_named(tensors, "model.layers.0.mlp.experts.gate_up_proj");
  EXPECT_EQ(gate_up.shape, (Shape{3, 32, 128}));
  EXPECT_TRUE(gate_up.is_of_all_experts && gate_up.is_transposed);
  EXPECT_EQ(gate_up.parts,
            (std::vector<TensorPart>{
                {.layer = 1, .parameter = "mlp.experts.gate_proj.weight", .row_step = 2},
                {.layer = 1, .parameter = "mlp.experts.up_proj.weight", .first_row = 1, .row_step = 2}}));
  const CheckpointTensor& bias = tensor_named(tensors, "model.layers.0.mlp.experts.gate_up_proj_bias");
  EXPECT_EQ(bias.shape, (Shape{3, 128}));
  EXPECT_EQ(bias.parts, (std::vector<TensorPart>{
                            {.layer = 1, .parameter = "mlp.experts.gate_proj.bias", .row_step = 2},
                            {.layer = 1, .parameter = "mlp.experts.up_proj.bias", .first_row = 1, .row_step = 2}}));
  EXPECT_EQ(tensor_named(tensors, "model.layers.0.mlp.experts.down_proj").shape, (Shape{3, 64, 32}));
  EXPECT_EQ(tensor_named(tensors, "model.layers.0.mlp.experts.down_proj_bias").shape, (Shape{3, 32}));
  EXPECT_EQ(tensor_named(tensors, "model.layers.0.mlp.router.bias").shape, (Shape{3}));
}

TEST(ExpertLayout, PackedTensorsAreBlocksAndScalesByRowsOfOutputs) {
  const auto tensors = checkpoint_tensors(gpt_oss(), ExpertLayout::kMxfp4);
  const auto stored = stored_tensors(tensor_named(tensors, "model.layers.0.mlp.experts.gate_up_proj"));
  ASSERT_EQ(stored.size(), 2U);
  EXPECT_EQ(stored[0].name, "model.layers.0.mlp.experts.gate_up_proj_blocks");
  EXPECT_EQ(stored[0].shape, (Shape{3, 128, 1, 16}));
  EXPECT_EQ(stored[1].name, "model.layers.0.mlp.experts.gate_up_proj_scales");
  EXPECT_EQ(stored[1].shape, (Shape{3, 128, 1}));
  EXPECT_EQ(stored_tensors(tensor_named(tensors, "model.layers.0.mlp.experts.down_proj"))[0].shape,
            (Shape{3, 32, 2, 16}));
  EXPECT_EQ(stored_tensors(tensor_named(tensors, "model.layers.0.mlp.experts.down_proj_bias")).size(), 1U);
}

TEST(ExpertLayout, ElementsAreCountedAlikeInEveryLayout) {
  const auto count = [](const ModelConfig& config, ExpertLayout layout) {
    std::int64_t elements = 0;
    for (const CheckpointTensor& tensor : checkpoint_tensors(config, layout)) elements += tensor.num_elements();
    return elements;
  };
  EXPECT_EQ(count(qwen(), ExpertLayout::kFused), count(qwen(), ExpertLayout::kEach));
  for (const auto layout : {ExpertLayout::kInterleaved, ExpertLayout::kMxfp4})
    EXPECT_EQ(count(gpt_oss(), layout), count(gpt_oss(), ExpertLayout::kEach));
}

TEST(ExpertLayout, FilesThatMixLayoutsAreRefusedWithATensorOfEach) {
  auto tensors = without(declarations(qwen()), "layers.2.mlp.experts");
  tensors.push_back({"model.layers.2.mlp.experts.gate_up_proj", DType::kFloat32, {6, 8, 8}});
  expect_refusal({"several layouts", "'model.layers.1.mlp.experts.", "'model.layers.2.mlp.experts.gate_up_proj'"},
                 [&] { layout_of_tensors(qwen(), tensors); });
  tensors = without(declarations(gpt_oss(), ExpertLayout::kMxfp4), "down_proj_");
  tensors.push_back({"model.layers.0.mlp.experts.down_proj", DType::kBFloat16, {3, 64, 32}});
  expect_refusal({"several layouts", "'model.layers.0.mlp.experts.down_proj'", "gate_up_proj_blocks'"},
                 [&] { layout_of_tensors(gpt_oss(), tensors); });
}

TEST(ExpertLayout, HalfOfAPairIsRefusedWithBothNames) {
  const auto packed = declarations(gpt_oss(), ExpertLayout::kMxfp4);
  expect_refusal({"no tensor 'model.layers.1.mlp.experts.down_proj_scales'", "[3, 32, 2]",
                  "'model.layers.1.mlp.experts.down_proj_blocks'"},
                 [&] { layout_of_tensors(gpt_oss(), without(packed, "1.mlp.experts.down_proj_scales")); });
  expect_refusal(
      {"no tensor 'model.layers.1.mlp.experts.down_proj_blocks'", "'model.layers.1.mlp.experts.down_proj_scales'"},
      [&] { layout_of_tensors(gpt_oss(), without(packed, "1.mlp.experts.down_proj_blocks")); });
  expect_refusal({"no tensor 'model.layers.0.mlp.experts.down_proj_bias'"},
                 [&] { layout_of_tensors(gpt_oss(), without(packed, "0.mlp.experts.down_proj_bias")); });
  expect_refusal({"no tensor 'model.layers.0.mlp.experts.down_proj'", "[6, 8, 4]"}, [&] {
    layout_of_tensors(qwen(), without(declarations(qwen(), ExpertLayout::kFused), "0.mlp.experts.down_proj"));
  });
}

TEST(ExpertLayout, WrongShapesAndDtypesAreRefused) {
  auto tensors = declarations(gpt_oss(), ExpertLayout::kInterleaved);
  std::ranges::find(tensors, "model.layers.0.mlp.experts.gate_up_proj", &TensorDeclaration::name)->shape = {3, 128, 32};
  expect_refusal({"gate_up_proj'", "[3, 128, 32]", "[3, 32, 128]"}, [&] { layout_of_tensors(gpt_oss(), tensors); });
  tensors = declarations(gpt_oss(), ExpertLayout::kMxfp4);
  std::ranges::find(tensors, "model.layers.0.mlp.experts.gate_up_proj_scales", &TensorDeclaration::name)->dtype =
      DType::kInt8;
  expect_refusal({"gate_up_proj_scales'", "I8", "must be U8"}, [&] { layout_of_tensors(gpt_oss(), tensors); });
  const ModelConfig odd = gpt_oss({{"intermediate_size", 48}});
  expect_refusal({"down_proj'", "[3, 32, 48]", "blocks of 32"},
                 [&] { layout_of_tensors(odd, declarations(odd, ExpertLayout::kMxfp4)); });
}

TEST(ExpertLayout, FilesThatAreNotQuantisedAsTheConfigurationSaysAreRefused) {
  expect_refusal({"'mxfp4'", "quantization_config", "'model.layers.1.mlp.experts."},
                 [&] { layout_of_tensors(gpt_oss(kMxfp4), declarations(gpt_oss(), ExpertLayout::kInterleaved)); });
}

}  // namespace
}  // namespace rp
