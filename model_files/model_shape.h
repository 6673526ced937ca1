// model_files/model_shape.h
// A decoder-only transformer as far as sizes and costs depend on it: no weights, no rotary parameters.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace rp {

// Every value is within bounds, and they fit each other (model_files/decoder_sizes.h).
struct ModelShape {
  std::string name{};  // of the preset or the folder
  std::int64_t num_layers = 0;  // decoder blocks
  std::int64_t hidden = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t vocabulary = 0;
  std::int64_t intermediate = 0;  // of the MLP; where there are experts, of each
  std::int64_t num_experts = 0;   // of a block; 0: one MLP for all tokens
  std::int64_t experts_per_token = 0;
  bool tied_head = false;        // the LM head is the embedding
  bool qk_norm = false;          // RMSNorm of each query and key head
  bool attention_bias = false;   // on q, k, v and o
  bool mlp_bias = false;         // on the MLP's or the experts' linear layers, and on the router
  bool attention_sinks = false;  // one value per query head
  // By block: how many positions a token sees, itself included; 0: all before it. Empty: 0 for all.
  std::vector<std::int64_t> windows{};

  [[nodiscard]] std::int64_t window_of(std::int64_t block) const {
    return windows.empty() ? 0 : windows[static_cast<std::size_t>(block)];
  }
  [[nodiscard]] std::int64_t query_width() const { return num_heads * head_dim; }
  [[nodiscard]] std::int64_t kv_width() const { return num_kv_heads * head_dim; }
  bool operator==(const ModelShape&) const = default;
};

// Names of the presets, sorted; model_files/presets.json has them in the form of config.json.
[[nodiscard]] std::vector<std::string> preset_names();

// Throws rp::Error (kUsage) for a name that is none, with those that there are and the nearest.
[[nodiscard]] ModelShape preset_shape(const std::string& name);

// From the config.json of a model's folder: model_type llama, qwen3, qwen3_moe or gpt_oss. Throws rp::Error (kBadInput)
// naming the file, the key and what it must be.
[[nodiscard]] ModelShape read_model_shape(const std::filesystem::path& folder);

// What a person gives for a model: "preset:NAME", a folder, or the name of a preset. A folder goes first.
[[nodiscard]] ModelShape shape_of_model(const std::string& folder_or_preset);

}  // namespace rp
