// Files with quantised weights: what they must contain, and that each damage is an error which names it.
#include <gtest/gtest.h>

#include <functional>

#include "model_files/weights/exported_files.h"
#include "model_files/weights/nf4_state.h"
#include "model_files/weights/stored_tensors.h"
#include "tests/common/expect_refusal.h"
#include "tests/common/temp_directory.h"
#include "tests/model_files/quantised_files.h"

namespace rp {
namespace {

using nlohmann::json;
using Shape = std::vector<std::int64_t>;

const std::string kQuery = "model.layers.0.self_attn.q_proj.weight";

json model_with(const json& quantization, json model = tiny_llama_json()) {
  model["quantization_config"] = quantization;
  return model;
}

class QuantisedFilesTest : public ::testing::Test {
 protected:
  // Returns the config, adapted to these files, which are checked.
  ModelConfig read(const json& config, const FileTensors& files) {
    (void)directory_.write(kConfigFile, config.dump());
    std::filesystem::remove(directory_.file("model.safetensors"));
    write_files(directory_.file("model.safetensors"), files);
    const WeightFiles weights = WeightFiles::open(directory_.path());
    const ModelConfig adapted = adapted_to_files(read_model_config(directory_.path()), weights);
    check_weights(adapted, weights);
    return adapted;
  }

  // Checks that the model is refused after `damage`, with these parts of a message.
  void refuses(const json& quantization, const std::vector<std::string>& parts,
               const std::function<void(FileTensors&)>& damage) {
    FileTensors files = quantised_files(read_with(model_with(quantization), json::object()));
    damage(files);
    expect_refusal(parts, [&] { (void)read(model_with(quantization), files); });
  }

  const TempDirectory directory_;
};

TEST_F(QuantisedFilesTest, StoreCodesScalesAndDescriptions) {
  const auto stored = [](WeightFormat format) {
    std::map<std::string, Shape> shapes;
    for (const StoredTensor& each : stored_tensors({.name = "a.weight", .shape = {300, 129}, .format = format}))
      shapes[each.name] = each.shape;
    return shapes;
  };
  using Shapes = std::map<std::string, Shape>;
  EXPECT_EQ(stored(WeightFormat::kFp8Blocks), (Shapes{{"a.weight", {300, 129}}, {"a.weight_scale_inv", {3, 2}}}));
  EXPECT_EQ(stored(WeightFormat::kFp8Tensor), (Shapes{{"a.weight", {300, 129}}, {"a.weight_scale_inv", {}}}));
  EXPECT_EQ(stored(WeightFormat::kNf4), (Shapes{{"a.weight", {19350, 1}},
                                                {"a.weight.absmax", {605}},
                                                {"a.weight.quant_map", {16}},
                                                {"a.weight.quant_state.bitsandbytes__nf4", {-1}}}));
  EXPECT_EQ(stored(WeightFormat::kNf4Double), (Shapes{{"a.weight", {19350, 1}},
                                                      {"a.weight.absmax", {605}},
                                                      {"a.weight.nested_absmax", {3}},
                                                      {"a.weight.nested_quant_map", {256}},
                                                      {"a.weight.quant_map", {16}},
                                                      {"a.weight.quant_state.bitsandbytes__nf4", {-1}}}));
}

TEST_F(QuantisedFilesTest, OfEveryFormatAreAccepted) {
  json simple = kNf4Json, whole = kFp8Json;
  simple["bnb_4bit_use_double_quant"] = false;
  whole["weight_block_size"] = nullptr;
  for (const json& quantization : {kFp8Json, whole, kNf4Json, simple}) {
    for (const json& model : {tiny_llama_json(), tiny_moe_json()}) {
      const json config = model_with(quantization, model);
      const ModelConfig adapted = read(config, quantised_files(read_with(config, json::object())));
      EXPECT_TRUE(adapted.unquantised_layers.empty());
    }
  }
}

TEST_F(QuantisedFilesTest, DecideWhichLayersAreQuantised) {
  json quantization = kFp8Json;
  quantization["modules_to_not_convert"] = {"model.layers.0.self_attn.q_proj"};
  const ModelConfig config = read_with(model_with(quantization), json::object());
  quantization["modules_to_not_convert"] = {"up_proj"};
  EXPECT_EQ(read(model_with(quantization), quantised_files(config)).unquantised_layers,
            std::vector<std::string>{"model.layers.0.self_attn.q_proj"});
  quantization.erase("modules_to_not_convert");
  EXPECT_EQ(read(model_with(quantization), quantised_files(config)).unquantised_layers,
            std::vector<std::string>{"model.layers.0.self_attn.q_proj"});
}

// transformers 5 writes the experts of a layer as one tensor, which bitsandbytes does not quantise.
TEST_F(QuantisedFilesTest, MayHaveUnquantisedExperts) {
  json quantization = kNf4Json;
  quantization["llm_int8_skip_modules"] = {"gate_proj", "up_proj", "down_proj"};
  const ModelConfig config = read_with(model_with(quantization, tiny_moe_json()), json::object());
  const ModelConfig adapted = read(model_with(kNf4Json, tiny_moe_json()), quantised_files(config));
  EXPECT_EQ(adapted.unquantised_layers.size(), 3U * 3);
  const LayerTensors layer = tensors_of_layer(adapted, 1, {.lora = {.rank = 2}});
  EXPECT_FALSE(layer.find("mlp.experts.up_proj.weight")->format.has_value());
  EXPECT_EQ(layer.find("self_attn.v_proj.weight")->format, WeightFormat::kNf4Double);
}

TEST_F(QuantisedFilesTest, WithoutAnyQuantisedWeightDoNotFitAConfigThatHasAMethod) {
  const FileTensors files = quantised_files(read_with(tiny_llama_json(), json::object()));
  expect_refusal({"'fp8'", "quantization_config", "_proj.weight_scale_inv'"},
                 [&] { (void)read(model_with(kFp8Json), files); });
  expect_refusal({"'bitsandbytes'", "_proj.weight.quant_state.bitsandbytes__nf4'"},
                 [&] { (void)read(model_with(kNf4Json), files); });
}

TEST_F(QuantisedFilesTest, OfFp8ThatAreDamagedAreRefused) {
  const std::string scale = kQuery + "_scale_inv";
  refuses(kFp8Json, {"'" + kQuery + "'", "F8_E4M3", "scales are missing"},
          [&](FileTensors& files) { files.erase(scale); });
  refuses(kFp8Json, {"no tensor '" + kQuery + "'", "'" + scale + "'"},
          [&](FileTensors& files) { files.erase(kQuery); });
  refuses(kFp8Json, {"'" + scale + "'", "[1, 2]", "[1, 1]"}, [&](FileTensors& files) {
    files[scale] = {DType::kFloat32, {1, 2}, std::string(8, '\0')};
  });
  refuses(kFp8Json, {"'" + scale + "'", "U8", "F32, BF16"}, [&](FileTensors& files) {
    files[scale] = {DType::kUInt8, {1, 1}, std::string(1, '\0')};
  });
  refuses(kFp8Json, {"'" + kQuery + "'", "U8", "F8_E4M3"},
          [&](FileTensors& files) { files[kQuery].dtype = DType::kUInt8; });
  json whole = kFp8Json;
  whole["weight_block_size"] = nullptr;
  refuses(whole, {"'" + scale + "'", "[1, 1]", "[]"}, [&](FileTensors& files) { files[scale].shape = {1, 1}; });
}

TEST_F(QuantisedFilesTest, OfNf4ThatAreDamagedAreRefused) {
  const std::string state = kQuery + std::string(kNf4State), map = kQuery + std::string(kNf4Map),
                    nested_map = kQuery + std::string(kNf4NestedMap);
  refuses(kNf4Json, {"'" + kQuery + "'", "U8", "scales are missing"}, [&](FileTensors& files) { files.erase(state); });
  for (const auto suffix : {kNf4Scales, kNf4Map, kNf4NestedScales, kNf4NestedMap}) {
    const std::string name = kQuery + std::string(suffix);
    refuses(kNf4Json, {"no tensor '" + name + "'"}, [&](FileTensors& files) { files.erase(name); });
  }
  refuses(kNf4Json, {"'" + kQuery + "'", "[1, 32]", "[32, 1]"}, [&](FileTensors& files) {
    files[kQuery].shape = {1, 32};
  });
  refuses(kNf4Json, {"'" + map + "'", "code 3", "-0.39491"}, [&](FileTensors& files) { files[map].bytes[15] = 0; });
  refuses(kNf4Json, {"'" + nested_map + "'", "code 255"},
          [&](FileTensors& files) { files[nested_map].bytes[4 * 255] = 1; });
  const auto changed = [&](const char* key, const json& value, const std::vector<std::string>& parts) {
    std::vector<std::string> all = parts;
    all.insert(all.end(), {"model.safetensors", "'" + state + "'", key});
    refuses(kNf4Json, all, [&](FileTensors& files) {
      json text = nf4_state({8, 8});
      text[key] = value;
      files[state] = tensor_of(text.dump());
    });
  };
  changed("quant_type", "fp4", {"'fp4'", "'nf4'"});
  changed("blocksize", 128, {"is 128", "64"});
  changed("nested_blocksize", 512, {"is 512", "256"});
  changed("shape", {8, 9}, {"[8, 9]", "[8, 8]"});
  changed("nested_offset", nullptr, {"has no"});
  refuses(kNf4Json, {"'" + state + "'"}, [&](FileTensors& files) { files[state] = tensor_of(std::string("{\"")); });
  refuses(kNf4Json, {"'" + state + "'", "bytes"},
          [&](FileTensors& files) { files[state] = tensor_of(std::string(70'000, ' ')); });
}

TEST_F(QuantisedFilesTest, HaveAllExpertsOfALayerQuantisedOrNone) {
  const std::string up = "model.layers.1.mlp.experts.3.up_proj.weight";
  for (const auto& [quantization, suffix, shape] :
       {std::tuple(kFp8Json, kFp8Scales, "[1, 1]"), std::tuple(kNf4Json, kNf4State, "[any]")}) {
    const json config = model_with(quantization, tiny_moe_json());
    FileTensors files = quantised_files(read_with(config, json::object()));
    const std::string name = up + std::string(suffix);
    files.erase(name);
    expect_refusal({"no tensor '" + name + "'", shape, "'" + up}, [&] { (void)read(config, files); });
  }
}

TEST_F(QuantisedFilesTest, MayHaveScalesOfActivations) {
  FileTensors files = quantised_files(read_with(model_with(kFp8Json), json::object()));
  const std::string scale = "model.layers.0.self_attn.q_proj.activation_scale";
  files[scale] = {DType::kBFloat16, {}, std::string(2, '\0')};
  const ModelConfig config = read(model_with(kFp8Json), files);
  for (const ExportedFile& file : exported_files(config, WeightFiles::open(directory_.path())).files) {
    for (const TensorDeclaration& tensor : file.declarations) EXPECT_NE(tensor.name, scale);
  }
  refuses(kNf4Json, {"'" + scale + "'", "another architecture"}, [&](FileTensors& nf4) {
    nf4[scale] = {DType::kBFloat16, {}, std::string(2, '\0')};
  });
}

TEST_F(QuantisedFilesTest, AreExportedAsBf16WithoutScales) {
  for (const json& quantization : {kFp8Json, kNf4Json}) {
    json model = tiny_moe_json();
    model.update({{"dtype", "bfloat16"}, {"num_nextn_predict_layers", 1}});
    const json config = model_with(quantization, model);
    FileTensors files = quantised_files(read_with(config, json::object()));
    // A quantised tensor that is no part of what is trained stays as it is.
    const std::string further = "mtp.fc.weight";
    files[further] = {DType::kFloat8E4m3, {2, 2}, std::string(4, '\0')};
    const ModelConfig adapted = read(config, files);
    const ExportedFiles exported = exported_files(adapted, WeightFiles::open(directory_.path()));
    std::map<std::string, Shape> expected{{further, {2, 2}}}, found;
    for (const CheckpointTensor& tensor : checkpoint_tensors(read_with(model, json::object())))
      expected[tensor.name] = tensor.shape;
    for (const TensorDeclaration& tensor : exported.files.at(0).declarations) {
      EXPECT_EQ(tensor.dtype, tensor.name == further ? DType::kFloat8E4m3 : DType::kBFloat16) << tensor.name;
      found[tensor.name] = tensor.shape;
    }
    EXPECT_EQ(found, expected);
    EXPECT_EQ(exported.num_carried(), 1U);
    EXPECT_FALSE(json::parse(exported.config).contains("quantization_config"));
  }
}

TEST_F(QuantisedFilesTest, LeaveNoScalesInAnIndex) {
  for (const json& quantization : {kFp8Json, kNf4Json}) {
    const FileTensors files = quantised_files(read_with(model_with(quantization), json::object()));
    const std::string shard = quantization.at("quant_method").get<std::string>() + ".safetensors";
    json index = {{"metadata", {{"total_size", 1}}}};
    for (const auto& [name, tensor] : files) index["weight_map"][name] = shard;
    write_files(directory_.file(shard), files);
    (void)directory_.write(kIndexFile, index.dump());
    (void)directory_.write(kConfigFile, model_with(quantization).dump());
    const WeightFiles weights = WeightFiles::open(directory_.path());
    const ExportedFiles exported =
        exported_files(adapted_to_files(read_model_config(directory_.path()), weights), weights);
    index["weight_map"].clear();
    std::uint64_t bytes = 0;
    for (const CheckpointTensor& tensor : checkpoint_tensors(read_with(tiny_llama_json(), json::object()))) {
      index["weight_map"][tensor.name] = shard;
      bytes += 2 * static_cast<std::uint64_t>(tensor.num_elements());
    }
    index["metadata"]["total_size"] = bytes;
    EXPECT_EQ(json::parse(exported.index), index);
  }
}

}  // namespace
}  // namespace rp
