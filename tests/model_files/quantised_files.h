// tests/model_files/quantised_files.h
// Files of tiny models with quantised weights, which tests can damage.
#pragma once

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "tests/model_files/tiny_model.h"

namespace rp {

struct FileTensor {
  DType dtype = DType::kUInt8;
  std::vector<std::int64_t> shape{};
  std::string bytes{};
};
using FileTensors = std::map<std::string, FileTensor>;

inline const nlohmann::json kFp8Json = {
    {"quant_method", "fp8"}, {"fmt", "e4m3"}, {"activation_scheme", "dynamic"}, {"weight_block_size", {128, 128}}};
inline const nlohmann::json kNf4Json = {{"quant_method", "bitsandbytes"},
                                        {"load_in_4bit", true},
                                        {"bnb_4bit_quant_type", "nf4"},
                                        {"bnb_4bit_quant_storage", "uint8"},
                                        {"bnb_4bit_use_double_quant", true}};

inline FileTensor tensor_of(std::span<const float> values) {
  FileTensor tensor{
      DType::kFloat32, {static_cast<std::int64_t>(values.size())}, std::string(values.size_bytes(), '\0')};
  std::memcpy(tensor.bytes.data(), values.data(), values.size_bytes());
  return tensor;
}

inline FileTensor tensor_of(const std::string& text) {
  return {DType::kUInt8, {static_cast<std::int64_t>(text.size())}, text};
}

// Returns the description of a weight with double quantisation.
inline nlohmann::json nf4_state(const std::vector<std::int64_t>& shape) {
  return {{"quant_type", "nf4"},     {"blocksize", 64},           {"dtype", "bfloat16"},   {"shape", shape},
          {"nested_blocksize", 256}, {"nested_dtype", "float32"}, {"nested_offset", 0.125}};
}

// Returns the tensors of the files of a model: zeros, except for the maps and descriptions of NF4.
inline FileTensors quantised_files(const ModelConfig& config) {
  FileTensors files;
  for (const CheckpointTensor& tensor : checkpoint_tensors(config)) {
    for (const StoredTensor& stored : stored_tensors(tensor)) {
      const DType dtype = tensor.format ? stored.dtypes.front() : config.dtype.value_or(DType::kFloat32);
      if (stored.name.ends_with(kNf4State)) {
        files[stored.name] = tensor_of(nf4_state(tensor.shape).dump());
      } else if (stored.name.ends_with(kNf4NestedMap)) {
        files[stored.name] = tensor_of(kNestedMap.at);
      } else if (stored.name.ends_with(kNf4Map)) {
        files[stored.name] = tensor_of(kNf4Codes.at);
      } else {
        const std::uint64_t bytes = TensorDeclaration{stored.name, dtype, stored.shape}.bytes();
        files[stored.name] = {dtype, stored.shape, std::string(bytes, '\0')};
      }
    }
  }
  return files;
}

inline void write_files(const std::filesystem::path& path, const FileTensors& files) {
  std::vector<TensorDeclaration> declarations;
  for (const auto& [name, tensor] : files) declarations.push_back({name, tensor.dtype, tensor.shape});
  std::ranges::stable_sort(declarations, std::ranges::greater{},
                           [](const TensorDeclaration& tensor) { return dtype_bytes(tensor.dtype); });
  SafetensorsWriter writer = SafetensorsWriter::create(path, declarations);
  for (const TensorDeclaration& tensor : declarations)
    writer.write(tensor.name, files.at(tensor.name).bytes.data(), files.at(tensor.name).bytes.size());
  writer.commit();
}

}  // namespace rp
