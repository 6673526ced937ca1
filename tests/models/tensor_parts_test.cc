#include "models/tensor_parts.h"

#include <gtest/gtest.h>

#include <fstream>

#include "models/checkpoint.h"
#include "tests/model_files/tiny_model.h"
#include "tests/models/bound_layers.h"

namespace rp::models {
namespace {

using nlohmann::json;
using Values = std::map<std::string, at::Tensor>;

// The key of a parameter in Values: "layer.name".
std::string key_of(std::int64_t layer, const std::string& parameter) { return std::to_string(layer) + "." + parameter; }

Values random_parameters(const ModelConfig& config) {
  Values values;
  std::int64_t number = 0;
  for (const LayerTensors& layer : tensors_of(config)) {
    // All values are multiples of one half, so that MXFP4 with a scale of 1 can represent them.
    for (const LayerTensor& tensor : layer.tensors)
      values[key_of(number, tensor.name)] = at::randint(-3, 4, tensor.shape, at::kFloat) / 2;
    ++number;
  }
  return values;
}

std::string file_name(const std::filesystem::path& folder) { return (folder / "model.safetensors").string(); }

void write_file(const std::filesystem::path& path, const Values& tensors) {
  std::vector<TensorDeclaration> declarations;
  for (const auto& [name, value] : tensors) {
    const DType dtype = value.scalar_type() == at::kByte    ? DType::kUInt8
                        : value.scalar_type() == at::kFloat ? DType::kFloat32
                                                            : DType::kBFloat16;
    declarations.push_back({name, dtype, value.sizes().vec()});
  }
  std::ranges::stable_sort(declarations, std::ranges::greater{},
                           [](const TensorDeclaration& tensor) { return dtype_bytes(tensor.dtype); });
  SafetensorsWriter writer = SafetensorsWriter::create(path, declarations);
  for (const TensorDeclaration& tensor : declarations) {
    const at::Tensor value = tensors.at(tensor.name).contiguous();
    writer.write(tensor.name, value.const_data_ptr(), value.nbytes());
  }
  writer.commit();
}

// Packs numbers that MXFP4 represents with scales of 1: blocks [..., n / 32, 16], scales [..., n /
// 32].
std::pair<at::Tensor, at::Tensor> pack(const at::Tensor& numbers) {
  // The codes 0 to 3 represent 0 to 1.5 in steps of one half.
  const at::Tensor halves = (numbers.abs() * 2).to(at::kByte) + (numbers < 0).to(at::kByte) * 8;
  const at::Tensor pairs = halves.unflatten(-1, {-1, 16, 2});
  const at::Tensor blocks = pairs.select(-1, 0) + pairs.select(-1, 1) * 16;
  return {blocks, at::full(blocks.sizes().slice(0, static_cast<std::size_t>(blocks.dim() - 1)), 127, at::kByte)};
}

// Joins gate and up as in transformers' model, without using tensor_parts.cc: [e, 2 i, h], or with
// `takes_turns` with alternating rows of gate and up.
at::Tensor both(const at::Tensor& gate, const at::Tensor& up, bool takes_turns) {
  return takes_turns ? at::stack({gate, up}, 2).flatten(1, 2) : at::cat({gate, up}, 1);
}

Values fused_file(const ModelConfig& config, const Values& parameters, ExpertLayout layout, at::ScalarType dtype) {
  const bool takes_turns = layout != ExpertLayout::kFused;
  Values file;
  const auto add_weight = [&](const std::string& name, const at::Tensor& weight_eoi) {
    if (layout == ExpertLayout::kMxfp4) {
      std::tie(file[name + "_blocks"], file[name + "_scales"]) = pack(weight_eoi);
    } else {
      file[name] = (layout == ExpertLayout::kInterleaved ? weight_eoi.transpose(1, 2) : weight_eoi).to(dtype);
    }
  };
  std::int64_t number = 0;
  for (const LayerTensors& layer : tensors_of(config)) {
    for (const LayerTensor& tensor : layer.tensors) {
      const at::Tensor value = parameters.at(key_of(number, tensor.name));
      const std::string called = name_in_checkpoint(config, number, tensor.name);
      const std::string experts = called.substr(0, called.find("mlp.experts.") + 12);
      const auto up = [&](const char* kind) {
        return parameters.at(key_of(number, std::string("mlp.experts.up_proj") + kind));
      };
      if (called.find("mlp.experts.") == std::string::npos) {
        file[called] = value.to(dtype);
      } else if (called.ends_with("gate_proj.weight")) {
        add_weight(experts + "gate_up_proj", both(value, up(".weight"), takes_turns));
      } else if (called.ends_with("gate_proj.bias")) {
        file[experts + "gate_up_proj_bias"] = both(value, up(".bias"), takes_turns).to(dtype);
      } else if (called.ends_with("down_proj.weight")) {
        add_weight(experts + "down_proj", value);
      } else if (called.ends_with("down_proj.bias")) {
        file[experts + "down_proj_bias"] = value.to(dtype);
      }
    }
    ++number;
  }
  return file;
}

// Reads everything that a folder's files contain, by parameter, in `dtype`.
Values read_all(const std::filesystem::path& folder, const Values& like, at::ScalarType dtype) {
  const ModelConfig config = read_model_config(folder);
  const WeightFiles weights = WeightFiles::open(folder);
  check_weights(config, weights);
  Values values;
  for (const auto& [key, value] : like) values[key] = at::full(value.sizes(), 99, dtype);
  for (const CheckpointTensor& tensor : checkpoint_tensors(config, find_expert_layout(config, weights))) {
    for (const TensorPart& part : tensor.parts)
      read_part(weights, tensor, part, values.at(key_of(part.layer, part.parameter)));
  }
  return values;
}

void expect_same(const Values& found, const Values& expected) {
  for (const auto& [key, value] : expected) EXPECT_TRUE(found.at(key).to(at::kFloat).equal(value)) << key;
}

class TensorPartsTest : public ::testing::Test {
 protected:
  void write_config(const std::filesystem::path& folder, const json& config) {
    std::filesystem::create_directory(folder);
    std::ofstream(folder / "config.json") << config.dump(2) << "\n";
    config_ = read_model_config(folder);
    parameters_ = random_parameters(config_);
  }
  [[nodiscard]] WeightSource source() const {
    return
        [this](std::int64_t layer, const std::string& parameter) { return parameters_.at(key_of(layer, parameter)); };
  }

  const TempDirectory directory_;
  const std::filesystem::path given_ = directory_.file("given"), written_ = directory_.file("written");
  ModelConfig config_;
  Values parameters_;
};

TEST_F(TensorPartsTest, FusedTensorsAreReadIntoParametersAndWrittenAsTheyWere) {
  const std::vector<std::pair<json, ExpertLayout>> cases = {{tiny_moe_json(), ExpertLayout::kFused},
                                                            {tiny_gpt_oss_json(), ExpertLayout::kInterleaved}};
  int number = 0;
  for (auto [config, layout] : cases) {
    config["tie_word_embeddings"] = false;
    for (const at::ScalarType stored : {at::kFloat, at::kBFloat16}) {
      const auto given = directory_.file("given" + std::to_string(++number)),
                 written = directory_.file("written" + std::to_string(number));
      write_config(given, config);
      const Values file = fused_file(config_, parameters_, layout, stored);
      write_file(file_name(given), file);
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf})
        expect_same(read_all(given, parameters_, dtype), parameters_);
      export_checkpoint(given, written, source());
      for (const auto& [name, value] : read_safetensors(file_name(written)))
        EXPECT_TRUE(same_bits(value, file.at(name))) << name;
      std::ifstream a(file_name(given), std::ios::binary), b(file_name(written), std::ios::binary);
      EXPECT_EQ(std::string(std::istreambuf_iterator<char>(a), {}), std::string(std::istreambuf_iterator<char>(b), {}));
    }
  }
}

json tiny_gemma4_json() {
  return {{"model_type", "gemma4_text"}, {"hidden_size", 64},  {"intermediate_size", 12},
          {"num_hidden_layers", 3},      {"head_dim", 4},      {"global_head_dim", 4},
          {"num_attention_heads", 2},    {"vocab_size", 10},   {"vocab_size_per_layer_input", 11},
          {"num_key_value_heads", 1},    {"dtype", "float32"}, {"hidden_size_per_layer_input", 6}};
}

TEST_F(TensorPartsTest, SlicesOfLayersAreColumnsOfATableAndRowsOfAProjection) {
  write_config(given_, tiny_gemma4_json());
  Values file;
  std::vector<at::Tensor> tables, projections;
  for (std::int64_t layer = 0; layer <= 4; ++layer) {
    for (const LayerTensor& tensor : tensors_of_layer(config_, layer).tensors) {
      const at::Tensor value = parameters_.at(key_of(layer, tensor.name));
      if (tensor.name == kPerLayerTable) {
        tables.push_back(value);
      } else if (tensor.name.starts_with(kPerLayerProjection)) {
        projections.push_back(value);
      } else if (!(layer == 4 && tensor.name == kHeadTensor)) {
        file.emplace(name_in_checkpoint(config_, layer, tensor.name), value);
      }
    }
  }
  file["model.embed_tokens_per_layer.weight"] = at::cat(tables, 1);
  file["model.per_layer_model_projection.weight"] = at::cat(projections, 0);
  for (const std::int64_t other : {2, 3})  // all layers have the first one's norm
    parameters_[key_of(other, std::string(kPerLayerNorm))] = parameters_.at(key_of(1, std::string(kPerLayerNorm)));
  write_file(file_name(given_), file);
  Values stored = parameters_;
  stored.erase(key_of(2, std::string(kPerLayerNorm)));
  stored.erase(key_of(3, std::string(kPerLayerNorm)));
  stored.erase(key_of(4, std::string(kHeadTensor)));
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) expect_same(read_all(given_, stored, dtype), stored);
  export_checkpoint(given_, written_, source());
  const Values found = read_safetensors(file_name(written_));
  EXPECT_EQ(found.size(), file.size());
  for (const auto& [name, value] : file) EXPECT_TRUE(same_bits(found.at(name), value)) << name;
}

TEST_F(TensorPartsTest, PackedExpertsAreExpandedAndWrittenAsBf16) {
  json config = tiny_gpt_oss_json();
  config["quantization_config"] = {{"quant_method", "mxfp4"}};
  write_config(given_, config);
  write_file(file_name(given_), fused_file(config_, parameters_, ExpertLayout::kMxfp4, at::kBFloat16));
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    expect_same(read_all(given_, parameters_, dtype), parameters_);
  export_checkpoint(given_, written_, source());
  const Values expected = fused_file(config_, parameters_, ExpertLayout::kInterleaved, at::kBFloat16);
  const Values found = read_safetensors(file_name(written_));
  EXPECT_EQ(found.size(), expected.size());
  for (const auto& [name, value] : expected) EXPECT_TRUE(same_bits(found.at(name), value)) << name;
  EXPECT_TRUE(read_model_config(written_).quantization.empty());
  expect_same(read_all(written_, parameters_, at::kFloat), parameters_);
}

TEST_F(TensorPartsTest, PairsOfExpertsAreMergedIntoEveryLayout) {
  const std::vector<std::tuple<json, ExpertLayout, ExpertLayout>> cases = {
      {tiny_moe_json(), ExpertLayout::kFused, ExpertLayout::kFused},
      {tiny_gpt_oss_json(), ExpertLayout::kInterleaved, ExpertLayout::kInterleaved},
      {tiny_gpt_oss_json(), ExpertLayout::kMxfp4, ExpertLayout::kInterleaved}};
  // The values of source() are not quantised.
  const TrainedParts parts{.lora = {.rank = 2, .alpha = 3, .targets = "up_proj,down_proj", .on_experts = true},
                           .frozen_weights = FrozenWeights::kNone};
  int number = 0;
  for (const auto& [config, layout, written_as] : cases) {
    const auto given = directory_.file("given" + std::to_string(++number)),
               written = directory_.file("written" + std::to_string(number));
    write_config(given, config);
    write_file(file_name(given), fused_file(config_, parameters_, layout, at::kBFloat16));
    Values merged = parameters_;
    std::int64_t layer = 0;
    for (const LayerTensors& tensors : tensors_of(config_, parts)) {
      for (const LayerTensor& tensor : tensors.tensors) {
        if (tensor.is_pair) parameters_[key_of(layer, tensor.name)] = at::randn(tensor.shape);
      }
      ++layer;
    }
    for (auto& [key, value] : merged) {
      if (!key.ends_with("up_proj.weight") && !key.ends_with("down_proj.weight")) continue;
      const std::string linear = key.substr(0, key.rfind('.'));
      value = value +
              1.5 * at::matmul(parameters_.at(linear + ".lora_B.weight"), parameters_.at(linear + ".lora_A.weight"));
    }
    export_checkpoint(given, written, source(), parts);
    const Values found = read_safetensors(file_name(written));
    for (const auto& [name, value] : fused_file(config_, merged, written_as, at::kFloat)) {
      EXPECT_LT(relative_difference(found.at(name), value), 0.01) << name;
      EXPECT_EQ(found.at(name).scalar_type(), at::kBFloat16);
    }
  }
}

}  // namespace
}  // namespace rp::models
