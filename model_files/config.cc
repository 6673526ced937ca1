#include "model_files/config.h"

#include <string>

#include "common/bad_input.h"
#include "model_files/config_section.h"
#include "model_files/decoder_sizes.h"
#include "model_files/json_file.h"

namespace rp {
namespace {

using nlohmann::json;

constexpr std::int64_t kMaxPositions = std::int64_t{1} << 31;

struct Rope {
  double theta = 10'000;
  std::optional<Llama3RopeScaling> scaling;

  bool operator==(const Rope&) const = default;
};

void check_architecture(const ConfigSection& file) {
  const std::string type = file.text("model_type", "");
  if (type != "llama") {
    throw file.refuse("model_type is ", quoted_name(type), "; the supported one is 'llama'");
  }
  if (file.has("quantization_config")) {
    throw file.refuse("the weights are quantized (quantization_config); convert them to bf16 first");
  }
  const std::string activation = file.text("hidden_act", "silu");
  if (activation != "silu") {
    throw file.refuse("hidden_act is ", quoted_name(activation), "; the supported one is 'silu'");
  }
  if (file.boolean("use_sliding_window", true)) file.require_absent("sliding_window");
  file.require_all("layer_types", "full_attention");
  file.require("attention_dropout", 0);
  // What relatives of this architecture add to it.
  for (const char* key : {"embedding_multiplier", "residual_multiplier", "logits_scaling"}) file.require(key, 1);
  for (const char* key : {"attention_multiplier", "attn_logit_softcapping", "final_logit_softcapping", "clip_qkv",
                          "rope_interleaved"}) {
    file.require_absent(key);
  }
}

// torch counts a negative one from the end of the vocabulary.
std::int64_t read_padding_id(const ConfigSection& file, std::int64_t vocabulary) {
  constexpr const char* kKey = "pad_token_id";
  if (!file.has(kKey)) return -1;
  const auto id = static_cast<std::int64_t>(file.number(kKey, -static_cast<double>(vocabulary), static_cast<double>(vocabulary - 1)));
  return id < 0 ? vocabulary + id : id;
}

void read_sizes(const ConfigSection& file, LlamaConfig& config) {
  const DecoderSizes sizes = read_decoder_sizes(file);
  config.hidden_size = sizes.hidden;
  config.intermediate_size = file.integer("intermediate_size", kMaxInner);
  config.num_layers = sizes.num_layers;
  config.num_heads = sizes.num_heads;
  config.num_kv_heads = sizes.num_kv_heads;
  config.head_dim = sizes.head_dim;
  config.vocabulary = sizes.vocabulary;
  config.padding_id = read_padding_id(file, config.vocabulary);
  config.max_sequence_length =
      file.has("max_position_embeddings") ? file.integer("max_position_embeddings", kMaxPositions) : 2048;
}

// Some exporters write it beside the rotary parameters; transformers then prefers it to theirs.
std::int64_t original_positions(const ConfigSection& file, const ConfigSection& rope, const LlamaConfig& config) {
  constexpr const char* kKey = "original_max_position_embeddings";
  if (file.has(kKey) && rope.has(kKey) && file.integer(kKey, kMaxPositions) != rope.integer(kKey, kMaxPositions)) {
    throw file.refuse(kKey, " is ", file.integer(kKey, kMaxPositions), " beside and ", rope.integer(kKey, kMaxPositions),
                      " within the rotary parameters; remove the wrong one");
  }
  if (rope.has(kKey)) return rope.integer(kKey, kMaxPositions);
  return file.has(kKey) ? file.integer(kKey, kMaxPositions) : config.max_sequence_length;
}

Rope read_rope(const ConfigSection& file, const char* key, const LlamaConfig& config) {
  const ConfigSection rope = file.section(key);
  if (const std::string member = rope.nested(); !member.empty()) {
    throw file.refuse(key, " has parameters of its own for ", quoted_name(member), "; different ones by type of layer are "
                      "not supported");
  }
  Rope result;
  const ConfigSection& theta_place = rope.has("rope_theta") ? rope : file;
  if (theta_place.has("rope_theta")) result.theta = theta_place.number("rope_theta", 1, 1e15);
  rope.require("partial_rotary_factor", 1);
  const std::string type = rope.text("rope_type", rope.text("type", "default").c_str());
  if (type == "default") return result;
  if (type != "llama3") {
    throw file.refuse(key, ": rope_type is ", quoted_name(type), "; the supported ones are 'default' and 'llama3'");
  }
  Llama3RopeScaling scaling;
  scaling.factor = rope.number("factor", 1, 1e6);
  scaling.low_freq_factor = rope.number("low_freq_factor", 1e-6, 1e6);
  scaling.high_freq_factor = rope.number("high_freq_factor", 1e-6, 1e6);
  scaling.original_max_position_embeddings = original_positions(file, rope, config);
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    throw file.refuse(key, ": high_freq_factor ", scaling.high_freq_factor, " is not above low_freq_factor ",
                      scaling.low_freq_factor);
  }
  result.scaling = scaling;
  return result;
}

// Readers disagree about which of the two spellings counts, so that both must say the same.
Rope read_rope(const ConfigSection& file, const LlamaConfig& config) {
  file.require("partial_rotary_factor", 1);
  const Rope rope = read_rope(file, file.has("rope_parameters") ? "rope_parameters" : "rope_scaling", config);
  if (file.has("rope_scaling") && read_rope(file, "rope_scaling", config) != rope) {
    throw file.refuse("rope_parameters and rope_scaling describe different rotary frequencies; remove the wrong one");
  }
  return rope;
}

TensorDType read_dtype(const ConfigSection& file) {
  const std::string name = file.text("dtype", file.text("torch_dtype", "float32").c_str());
  if (name == "bfloat16") return TensorDType::kBF16;
  if (name == "float16") return TensorDType::kF16;
  if (name == "float32") return TensorDType::kF32;
  throw file.refuse("dtype is ", quoted_name(name), "; the supported ones are 'bfloat16', 'float16' and 'float32'");
}

}  // namespace

LlamaConfig read_llama_config(const std::filesystem::path& path) {
  constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{1} << 20;
  const json object = read_json_file(path, kMaxConfigBytes);
  const ConfigSection file(path, object);
  check_architecture(file);
  LlamaConfig config;
  read_sizes(file, config);
  config.rms_norm_eps = file.has("rms_norm_eps") ? file.number("rms_norm_eps", 1e-15, 1) : 1e-6;
  const Rope rope = read_rope(file, config);
  config.rope_theta = rope.theta;
  config.rope_scaling = rope.scaling;
  config.tie_word_embeddings = file.boolean("tie_word_embeddings", false);
  config.attention_bias = file.boolean("attention_bias", false);
  config.mlp_bias = file.boolean("mlp_bias", false);
  config.dtype = read_dtype(file);
  return config;
}

}  // namespace rp
