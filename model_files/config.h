// model_files/config.h
// What config.json says about a model of the Llama architecture.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "model_files/tensor_dtype.h"

namespace rp {

// rope_type "llama3": how the rotary frequencies are stretched for long contexts (Llama 3.1).
struct Llama3RopeScaling {
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  std::int64_t original_max_position_embeddings = 0;

  bool operator==(const Llama3RopeScaling&) const = default;
};

// Every value is within the bounds that config.cc states, and they fit each other: heads divide, head_dim is even.
struct LlamaConfig {
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_layers = 0;  // decoder blocks
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;  // divides num_heads
  std::int64_t head_dim = 0;      // need not be hidden_size / num_heads
  std::int64_t vocabulary = 0;
  std::int64_t max_sequence_length = 0;
  std::int64_t padding_id = -1;  // the token whose embedding is not trained, as in transformers; -1: none
  double rms_norm_eps = 0;
  double rope_theta = 0;
  std::optional<Llama3RopeScaling> rope_scaling;  // absent: plain rotary frequencies
  bool tie_word_embeddings = false;
  bool attention_bias = false;            // on q, k, v and o
  bool mlp_bias = false;                  // on gate, up and down
  TensorDType dtype = TensorDType::kF32;  // of the weights, as the file says: kF32, kF16 or kBF16
};

// Reads and checks a config.json. Rotary parameters are understood in the spelling of transformers 5 (rope_parameters)
// and before (rope_theta, rope_scaling); where both are there they must agree. Settings that would change the model's
// mathematics and that we do not have are errors; keys that we do not know are ignored, as every reader of these files
// must.
// Throws rp::Error (kBadInput) naming the file, the key and what it must be.
[[nodiscard]] LlamaConfig read_llama_config(const std::filesystem::path& path);

}  // namespace rp
