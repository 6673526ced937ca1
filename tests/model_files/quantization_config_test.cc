#include "model_files/config/quantization_config.h"

#include <gtest/gtest.h>

#include "model_files/layer_tensors.h"
#include "tests/common/expect_refusal.h"
#include "tests/model_files/quantised_files.h"

namespace rp {
namespace {

using nlohmann::json;

ModelConfig with(json quantization, const json& changes = json::object()) {
  quantization.update(changes);
  return read_with(tiny_llama_json(), {{"quantization_config", quantization}});
}

TEST(QuantizationConfig, FormatsThatAreReadAreKnown) {
  EXPECT_EQ(with(kFp8Json).quantised_format, WeightFormat::kFp8Blocks);
  EXPECT_EQ(with({{"quant_method", "fp8"}}).quantised_format, WeightFormat::kFp8Blocks);
  EXPECT_EQ(with(kFp8Json, {{"weight_block_size", nullptr}}).quantised_format, WeightFormat::kFp8Tensor);
  EXPECT_EQ(with(kNf4Json).quantised_format, WeightFormat::kNf4Double);
  EXPECT_EQ(with(kNf4Json, {{"bnb_4bit_use_double_quant", false}}).quantised_format, WeightFormat::kNf4);
  EXPECT_EQ(with({{"load_in_4bit", true}, {"bnb_4bit_quant_type", "nf4"}}).quantised_format, WeightFormat::kNf4);
  EXPECT_EQ(with({{"quant_method", "mxfp4"}}).quantised_format, WeightFormat::kMxfp4);
  const ModelConfig plain = read_with(tiny_llama_json(), json::object());
  EXPECT_FALSE(plain.quantised_format.has_value());
  EXPECT_FALSE(is_quantised(plain, "model.layers.0.mlp.up_proj"));
}

TEST(QuantizationConfig, OthersHaveANameAndNoFormat) {
  const std::vector<std::pair<json, std::string>> cases = {
      {{{"quant_method", "gptq"}, {"bits", 4}}, "gptq"},
      {{{"quant_method", "awq"}}, "awq"},
      {{{"quant_method", "compressed-tensors"}, {"format", "nvfp4-pack-quantized"}},
       "compressed-tensors (nvfp4-pack-quantized)"},
      {{{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}}, "modelopt (NVFP4)"},
      {{{"load_in_8bit", true}}, "bitsandbytes with 8 bits"},
      {{{"quant_method", "bitsandbytes"}, {"load_in_8bit", true}, {"load_in_4bit", false}}, "bitsandbytes with 8 bits"},
      {{{"load_in_4bit", true}}, "bitsandbytes with fp4"},
      {{{"load_in_4bit", true}, {"bnb_4bit_quant_type", "nf4"}, {"bnb_4bit_quant_storage", "bfloat16"}},
       "bitsandbytes stored as bfloat16"},
      {{{"quant_method", "fp8"}, {"scale_fmt", "ue8m0"}}, "fp8 with scales of ue8m0"},
      {{{"quant_method", "fp8"}, {"fmt", "e5m2"}}, "fp8 with codes of e5m2"},
      {{{"quant_method", "fp8"}, {"weight_block_size", {1, 128}}}, "fp8 with blocks of [1,128]"}};
  for (const auto& [quantization, name] : cases) {
    const ModelConfig config = with(quantization);
    EXPECT_EQ(config.quantization, name);
    EXPECT_FALSE(config.quantised_format.has_value()) << name;
  }
  expect_refusal({"load_in_4bit", "true or false"}, [] { (void)with({{"load_in_4bit", "yes"}}); });
  expect_refusal({"ignored_layers", "list of strings"}, [] { (void)with(kFp8Json, {{"ignored_layers", 3}}); });
}

TEST(QuantizationConfig, AnExceptionIsABeginningAWholeNameOrAnEnd) {
  const auto quantised = [](const char* exception, const char* layer) {
    return is_quantised(with(kFp8Json, {{"modules_to_not_convert", {"lm_head", exception}}}), layer);
  };
  EXPECT_TRUE(quantised("model.layers.1", "model.layers.11.mlp.up_proj"));
  EXPECT_FALSE(quantised("model.layers.1", "model.layers.1.mlp.up_proj"));
  EXPECT_FALSE(quantised("model.layers.1.", "model.layers.1.mlp.up_proj"));
  EXPECT_FALSE(quantised("model.layers.1.mlp.up_proj", "model.layers.1.mlp.up_proj"));
  EXPECT_FALSE(quantised("up_proj", "model.layers.1.mlp.up_proj"));
  EXPECT_TRUE(quantised("up", "model.layers.1.mlp.up_proj"));
  EXPECT_TRUE(quantised("model.layers.*", "model.layers.1.mlp.up_proj")) << "an expression is literal text";
  EXPECT_FALSE(
      is_quantised(with(kNf4Json, {{"llm_int8_skip_modules", {"o_proj"}}}), "model.layers.0.self_attn.o_proj"));
  EXPECT_FALSE(is_quantised(with(kFp8Json, {{"ignored_layers", {"o_proj"}}}), "model.layers.0.self_attn.o_proj"));
}

TEST(QuantizationConfig, FrozenLinearLayersKeepTheFormatOfTheFiles) {
  const ModelConfig config = with(kNf4Json, {{"llm_int8_skip_modules", {"model.layers.0.self_attn"}}});
  for (const FrozenWeights wanted : {FrozenWeights::kAsInFiles, FrozenWeights::kFp8, FrozenWeights::kNone}) {
    const LayerTensors layer = tensors_of_layer(config, 1, {.lora = {.rank = 2}, .frozen_weights = wanted});
    const auto up = wanted == FrozenWeights::kNone ? std::nullopt : std::optional(WeightFormat::kNf4Double);
    const auto query = wanted == FrozenWeights::kFp8 ? std::optional(WeightFormat::kFp8Blocks) : std::nullopt;
    EXPECT_EQ(layer.find("mlp.up_proj.weight")->format, up);
    EXPECT_EQ(layer.find("self_attn.q_proj.weight")->format, query);
    EXPECT_FALSE(layer.find("input_layernorm.weight")->format.has_value());
    EXPECT_EQ(layer.find("mlp.up_proj.weight")->file_format, WeightFormat::kNf4Double);
  }
  EXPECT_FALSE(tensors_of_layer(config, 1).find("mlp.up_proj.weight")->format.has_value()) << "it is trained";
}

TEST(QuantizationConfig, GatesAreExpanded) {
  const ModelConfig config = read_with(tiny_moe_json(), {{"quantization_config", kFp8Json}});
  const LayerTensors layer = tensors_of_layer(config, 1, {.lora = {.rank = 2}});
  EXPECT_FALSE(layer.find("mlp.gate.weight")->format.has_value());
  EXPECT_EQ(layer.find("mlp.gate.weight")->file_format, WeightFormat::kFp8Blocks) << "unless the files say otherwise";
  EXPECT_EQ(layer.find("mlp.experts.up_proj.weight")->format, WeightFormat::kFp8Blocks);
  const ModelConfig mxfp4 = read_with(tiny_gpt_oss_json(), {{"quantization_config", {{"quant_method", "mxfp4"}}}});
  const LayerTensors packed = tensors_of_layer(mxfp4, 1, {.lora = {.rank = 2}});
  EXPECT_FALSE(packed.find("self_attn.q_proj.weight")->file_format.has_value()) << "only experts";
  EXPECT_EQ(packed.find("mlp.experts.up_proj.weight")->format, WeightFormat::kMxfp4);
}

TEST(QuantizationConfig, LayersOfOtherFormatsAreOtherLayers) {
  EXPECT_NE(text_of_layer(with(kFp8Json), 1), text_of_layer(with(kFp8Json, {{"weight_block_size", nullptr}}), 1));
  EXPECT_NE(text_of_layer(with(kFp8Json), 1), text_of_layer(with(kFp8Json, {{"ignored_layers", {"o_proj"}}}), 1));
}

}  // namespace
}  // namespace rp
