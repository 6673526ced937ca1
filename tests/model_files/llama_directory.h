// tests/model_files/llama_directory.h
// A tiny Llama checkpoint on disk: configuration and weights that fit each other, to be spoilt by tests.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model_files/safetensors_writer.h"
#include "model_files/shapes.h"

namespace rp {

inline nlohmann::json tiny_llama_json() {
  return {{"model_type", "llama"},  {"hidden_size", 8},         {"intermediate_size", 12},
          {"num_hidden_layers", 2}, {"num_attention_heads", 4}, {"num_key_value_heads", 2},
          {"head_dim", 2},          {"vocab_size", 10},         {"max_position_embeddings", 64},
          {"rms_norm_eps", 1e-5},   {"rope_theta", 10000.0},    {"tie_word_embeddings", true},
          {"hidden_act", "silu"},   {"dtype", "bfloat16"}};
}

// Writes tensors of zeros.
inline void write_tensors(const std::filesystem::path& path, const std::vector<TensorDeclaration>& tensors) {
  auto writer = SafetensorsWriter::create(path, tensors);
  for (const TensorDeclaration& tensor : tensors) {
    std::uint64_t bytes = element_bytes(tensor.dtype);
    for (const std::int64_t dimension : tensor.shape) bytes *= static_cast<std::uint64_t>(dimension);
    const std::string zeros(bytes, '\0');
    writer.write(tensor.name, zeros.data(), bytes);
  }
  writer.commit();
}

inline std::vector<TensorDeclaration> declarations(const LlamaConfig& config) {
  std::vector<TensorDeclaration> tensors;
  for (const ExpectedTensor& tensor : llama_tensors(config)) {
    tensors.push_back({tensor.name, config.dtype, tensor.shape});
  }
  return tensors;
}

}  // namespace rp
