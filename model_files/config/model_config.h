// model_files/config/model_config.h
// Describes a decoder-only transformer: all that its mathematics, its sizes and its costs depend on except the weights.
//
// Filled from a config.json by the file of its family (model_files/config/families/). Everything else that must know a
// model is written once over this description: the tensors of its layers and of its files (layer_tensors.h), what
// layers cost (layer_costs.h), the layers themselves (models/decoder.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "kernels/formulas.h"

namespace rp {

// Rotary position embedding of the first elements of a head, in two halves.
struct RopeConfig {
  enum class Kind : std::uint8_t { kNone, kPlain, kLinear, kLlama3, kYarn };
  Kind kind = Kind::kPlain;
  double theta = 10'000;
  double factor = 1;  // by which positions are stretched: all but kPlain
  // Positions that the model was first trained on: kLlama3, kYarn.
  std::int64_t original_positions = 0;
  double low_freq_factor = 1, high_freq_factor = 4;  // kLlama3
  double beta_fast = 32, beta_slow = 1;              // kYarn
  bool truncates = true;                             // kYarn: bounds of the ramp are whole numbers
  double attention_factor = 1;                       // kYarn: cosine and sine are multiplied by it
  bool rounds_table = true;                          // cosine and sine have the precision of activations; false: fp32

  bool operator==(const RopeConfig&) const = default;
};

struct AttentionConfig {
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;  // divides num_heads
  std::int64_t head_dim = 0;      // even; need not be hidden / num_heads
  double scale = 0;               // of the scores
  std::int64_t window = 0;        // positions that a token sees, itself included; 0: all before it
  bool qkv_bias = false;
  bool output_bias = false;
  // Of queries and keys before the rotation: each head by itself, or all heads of a token as one row.
  enum class HeadNorm : std::uint8_t { kNone, kEachHead, kWholeRow };
  HeadNorm head_norm = HeadNorm::kNone;
  bool has_sinks = false;  // one more logit a query head
  RopeConfig rope{};
  // Queries at position p of their document are multiplied by 1 + growth * ln(1 + floor(p / positions)), rounded,
  // behind the rotation, which there must be. 0: they are not.
  double query_growth = 0;
  std::int64_t query_growth_positions = 0;

  [[nodiscard]] std::int64_t query_width() const { return num_heads * head_dim; }
  [[nodiscard]] std::int64_t kv_width() const { return num_kv_heads * head_dim; }
  bool operator==(const AttentionConfig&) const = default;
};

// Many MLPs, of which a token goes through a few.
struct ExpertsConfig {
  std::int64_t num = 0;
  std::int64_t per_token = 0;
  // kSoftmaxFirst: softmax over all experts, then the largest; kLargestFirst: softmax over the largest.
  enum class Router : std::uint8_t { kSoftmaxFirst, kLargestFirst };
  Router router = Router::kSoftmaxFirst;
  bool normalises = false;         // kSoftmaxFirst: weights of a token's experts are divided by their sum
  double balance_coefficient = 0;  // of the auxiliary loss
  std::string router_name = "mlp.gate";
  bool is_interleaved = false;  // where files hold all experts in one tensor: ExpertLayout::kInterleaved, else kFused

  bool operator==(const ExpertsConfig&) const = default;
};

struct MlpConfig {
  std::int64_t intermediate = 0;  // where there are experts, of each
  Activation activation = Activation::kSilu;
  bool has_bias = false;  // also of the router
  std::optional<ExpertsConfig> experts{};

  // Rows of it that a token goes through.
  [[nodiscard]] std::int64_t uses_per_token() const { return experts ? experts->per_token : 1; }
  bool operator==(const MlpConfig&) const = default;
};

// A decoder layer: x += post(attention(pre(x))); x += post(mlp(pre(x))). A norm without a name is not there.
struct DecoderLayerConfig {
  AttentionConfig attention{};
  MlpConfig mlp{};
  std::string attention_norm = "input_layernorm", mlp_norm = "post_attention_layernorm";
  std::string attention_post_norm{}, mlp_post_norm{};

  bool operator==(const DecoderLayerConfig&) const = default;
};

// How the names of a model's tensors begin.
struct NamePrefixes {
  std::string body = "model.";  // of the embedding, the decoder layers and the final norm
  std::string head{};           // of "lm_head.weight"

  bool operator==(const NamePrefixes&) const = default;
};

// Every value is within the bounds that model_config.cc and the families state, and they fit each other.
struct ModelConfig {
  std::string name{};     // of the preset or the folder
  std::string family{};   // model_type, as "qwen3"
  std::string wrapper{};  // model_type of the multimodal model whose text part this is, as "gemma3"; empty: it is all
                          // of the model
  NamePrefixes file_names{};    // in weight files
  NamePrefixes module_names{};  // in memory: those of adapters, and of what is to be trained
  std::int64_t hidden = 0;
  std::int64_t vocabulary = 0;
  std::int64_t max_sequence_length = 0;
  std::int64_t padding_id = -1;  // the token whose embedding is not trained, as in transformers; -1: none
  double norm_epsilon = 1e-6;
  NormKind norm = NormKind::kRounded;
  double embedding_scale = 1;    // rounded to the activations' dtype
  double logit_softcap = 0;      // c: logits are c * tanh(logits / c); 0: none
  bool tied_head = false;        // the LM head is the embedding
  std::optional<DType> dtype{};  // as the file says: one of the working ones
  std::string quantization{};    // method of the files' weights, as "mxfp4"; empty: they are not quantised
  std::vector<DecoderLayerConfig> layers{};

  [[nodiscard]] std::int64_t num_layers() const { return static_cast<std::int64_t>(layers.size()); }
  bool operator==(const ModelConfig&) const = default;
};

inline constexpr const char* kConfigFile = "config.json";

// From the config.json of a model's folder. Rotary parameters are understood in the spelling of transformers 5
// (rope_parameters) and before (rope_theta, rope_scaling); where both are there they must agree. Settings that would
// change the model's mathematics and that its family does not have are errors; keys that nobody knows are ignored, as
// every reader of these files must. Of a multimodal model's folder the text part is read. Throws rp::Error (kBadInput)
// naming the file, the key and what it must be; for an unknown family with the nearest.
[[nodiscard]] ModelConfig read_model_config(const std::filesystem::path& folder);

// What a layer of the sequential model is made from, as one line: all of the config but its name and other decoder
// layers. 0 is the embedding, num_layers() + 1 the head.
[[nodiscard]] std::string text_of_layer(const ModelConfig& config, std::int64_t layer);

// Names of the presets, sorted; model_files/config/presets.json has them in the form of config.json.
[[nodiscard]] std::vector<std::string> preset_names();

// Throws rp::Error (kUsage) for a name that is none, with those that there are and the nearest.
[[nodiscard]] ModelConfig preset_config(const std::string& name);

// What a person gives for a model: "preset:NAME", a folder, or the name of a preset. A folder goes first.
[[nodiscard]] ModelConfig config_of_model(const std::string& folder_or_preset);

}  // namespace rp
