// tests/model_files/tiny_model.h
// Configurations of tiny models, and matching checkpoints that tests can damage.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model_files/weights/checkpoint_tensors.h"
#include "model_files/weights/safetensors_writer.h"
#include "model_files/weights/stored_tensors.h"
#include "tests/common/temp_directory.h"

namespace rp {

inline nlohmann::json tiny_llama_json() {
  return {{"model_type", "llama"},  {"hidden_size", 8},         {"intermediate_size", 12},
          {"num_hidden_layers", 2}, {"num_attention_heads", 4}, {"num_key_value_heads", 2},
          {"head_dim", 2},          {"vocab_size", 10},         {"max_position_embeddings", 64},
          {"rms_norm_eps", 1e-5},   {"rope_theta", 10000.0},    {"tie_word_embeddings", true},
          {"hidden_act", "silu"},   {"dtype", "bfloat16"}};
}

inline nlohmann::json tiny_moe_json() {
  return {{"model_type", "qwen3_moe"}, {"hidden_size", 8},         {"moe_intermediate_size", 4},
          {"num_experts", 6},          {"num_experts_per_tok", 2}, {"num_hidden_layers", 3},
          {"num_attention_heads", 4},  {"num_key_value_heads", 2}, {"head_dim", 2},
          {"vocab_size", 10},          {"decoder_sparse_step", 1}, {"mlp_only_layers", nlohmann::json::array()}};
}

// Sizes that divide into blocks of 32.
inline nlohmann::json tiny_gpt_oss_json() {
  return {{"model_type", "gpt_oss"},  {"hidden_size", 32},        {"intermediate_size", 64},
          {"num_local_experts", 3},   {"num_experts_per_tok", 2}, {"num_hidden_layers", 2},
          {"num_attention_heads", 4}, {"num_key_value_heads", 2}, {"head_dim", 2},
          {"vocab_size", 10},         {"sliding_window", 4},      {"dtype", "bfloat16"}};
}

// Returns `config` with some members replaced, as read from a file. A null does not remove the
// member, as in the files.
inline ModelConfig read_with(nlohmann::json config, const nlohmann::json& changes) {
  const TempDirectory directory;
  config.update(changes);
  return read_model_config(directory.write("config.json", config.dump()).parent_path());
}

// Writes tensors that contain zeros.
inline void write_tensors(const std::filesystem::path& path, const std::vector<TensorDeclaration>& tensors) {
  auto writer = SafetensorsWriter::create(path, tensors);
  for (const TensorDeclaration& tensor : tensors) {
    std::uint64_t bytes = dtype_bytes(tensor.dtype);
    for (const std::int64_t dimension : tensor.shape) bytes *= static_cast<std::uint64_t>(dimension);
    const std::string zeros(bytes, '\0');
    writer.write(tensor.name, zeros.data(), bytes);
  }
  writer.commit();
}

inline std::vector<TensorDeclaration> declarations(const ModelConfig& config,
                                                   ExpertLayout layout = ExpertLayout::kEach) {
  std::vector<TensorDeclaration> tensors;
  for (const CheckpointTensor& tensor : checkpoint_tensors(config, layout)) {
    for (const StoredTensor& stored : stored_tensors(tensor)) {
      const DType dtype = tensor.format ? stored.dtypes.front() : config.dtype.value_or(DType::kFloat32);
      tensors.push_back({stored.name, dtype, stored.shape});
    }
  }
  return tensors;
}

}  // namespace rp
