#include "model_files/config.h"

#include <string>

#include "common/bad_input.h"
#include "model_files/json_file.h"

namespace rp {
namespace {

using nlohmann::json;

constexpr std::int64_t kMaxWidth = std::int64_t{1} << 20;  // hidden size, heads
constexpr std::int64_t kMaxInner = std::int64_t{1} << 22;  // intermediate size
constexpr std::int64_t kMaxLayers = 10'000;
constexpr std::int64_t kMaxHeadDim = 4096;
constexpr std::int64_t kMaxVocabulary = std::int64_t{1} << 24;
constexpr std::int64_t kMaxPositions = std::int64_t{1} << 31;

// The members of one object of the file, checked as they are read. A null member counts as absent.
class Section {
 public:
  Section(const std::filesystem::path& file, const json& object) : file_(file), object_(object) {}

  [[nodiscard]] bool has(const char* key) const { return object_.contains(key) && !object_.at(key).is_null(); }

  std::int64_t integer(const char* key, std::int64_t max) const {
    const json& value = need(key);
    // A number beyond 2^63 must not wrap on its way to a signed one.
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() < 1 ||
        value.get<std::uint64_t>() > static_cast<std::uint64_t>(max)) {
      throw wrong(key, value, cat("a whole number from 1 to ", max));
    }
    return value.get<std::int64_t>();
  }

  // At least `min`, at most `max`.
  double number(const char* key, double min, double max) const {
    const json& value = need(key);
    const double number = value.is_number() ? value.get<double>() : 0;
    if (!value.is_number() || !(number >= min && number <= max)) {
      throw wrong(key, value, cat("a number from ", min, " to ", max));
    }
    return number;
  }

  bool boolean(const char* key, bool otherwise) const {
    if (!has(key)) return otherwise;
    const json& value = need(key);
    if (!value.is_boolean()) throw wrong(key, value, "true or false");
    return value.get<bool>();
  }

  std::string text(const char* key, const char* otherwise) const {
    if (!has(key)) return otherwise;
    const json& value = need(key);
    if (!value.is_string()) throw wrong(key, value, "a string");
    return value.get<std::string>();
  }

  // An empty one if it is absent.
  Section section(const char* key) const {
    static const json kEmpty = json::object();
    if (!has(key)) return Section(file_, kEmpty);
    const json& value = need(key);
    if (!value.is_object()) throw wrong(key, value, "an object");
    return Section(file_, value);
  }

  // A setting that we have not. One that is spelled out as off counts as absent.
  void require_absent(const char* key) const {
    if (has(key) && need(key) != false) throw wrong(key, need(key), "absent or null; it is not supported");
  }

  // A list of which we have one value only.
  void require_all(const char* key, const char* supported) const {
    if (!has(key)) return;
    for (const json& value : need(key)) {
      if (value != supported) throw wrong(key, value, cat(quoted_name(supported), " only; others are not supported"));
    }
  }

  // The first member that is an object itself, or "".
  [[nodiscard]] std::string nested() const {
    for (const auto& [key, value] : object_.items()) {
      if (value.is_object()) return key;
    }
    return "";
  }

  // A setting of which we have one value only.
  void require(const char* key, double supported) const {
    if (has(key) && number(key, -1e30, 1e30) != supported) {
      throw wrong(key, need(key), cat(supported, "; other values are not supported"));
    }
  }

  template <typename... Pieces>
  Error refuse(const Pieces&... pieces) const {
    return bad_input(file_, pieces...);
  }

 private:
  const json& need(const char* key) const {
    if (!has(key)) throw bad_input(file_, "has no ", key);
    return object_.at(key);
  }

  Error wrong(const char* key, const json& value, const std::string& expected) const {
    return bad_input(file_, key, " is ", quoted_name(value.dump()), ", but must be ", expected);
  }

  const std::filesystem::path& file_;
  const json& object_;
};

struct Rope {
  double theta = 10'000;
  std::optional<Llama3RopeScaling> scaling;

  bool operator==(const Rope&) const = default;
};

void check_architecture(const Section& file) {
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
std::int64_t read_padding_id(const Section& file, std::int64_t vocabulary) {
  constexpr const char* kKey = "pad_token_id";
  if (!file.has(kKey)) return -1;
  const auto id = static_cast<std::int64_t>(file.number(kKey, -static_cast<double>(vocabulary), static_cast<double>(vocabulary - 1)));
  return id < 0 ? vocabulary + id : id;
}

void read_sizes(const Section& file, LlamaConfig& config) {
  config.hidden_size = file.integer("hidden_size", kMaxWidth);
  config.intermediate_size = file.integer("intermediate_size", kMaxInner);
  config.num_layers = file.integer("num_hidden_layers", kMaxLayers);
  config.num_heads = file.integer("num_attention_heads", kMaxWidth);
  config.num_kv_heads =
      file.has("num_key_value_heads") ? file.integer("num_key_value_heads", kMaxWidth) : config.num_heads;
  config.vocabulary = file.integer("vocab_size", kMaxVocabulary);
  config.padding_id = read_padding_id(file, config.vocabulary);
  config.max_sequence_length =
      file.has("max_position_embeddings") ? file.integer("max_position_embeddings", kMaxPositions) : 2048;
  if (config.num_heads % config.num_kv_heads != 0) {
    throw file.refuse("num_key_value_heads ", config.num_kv_heads, " does not divide num_attention_heads ",
                      config.num_heads);
  }
  if (file.has("head_dim")) {
    config.head_dim = file.integer("head_dim", kMaxHeadDim);
  } else {
    if (config.hidden_size % config.num_heads != 0) {
      throw file.refuse("has no head_dim, and num_attention_heads ", config.num_heads, " does not divide hidden_size ",
                        config.hidden_size);
    }
    config.head_dim = config.hidden_size / config.num_heads;
  }
  if (config.head_dim % 2 != 0 || config.head_dim > kMaxHeadDim) {
    throw file.refuse("head_dim is ", config.head_dim, ", but must be even (rotary halves) and at most ", kMaxHeadDim);
  }
  if (config.num_heads * config.head_dim > kMaxWidth) {
    throw file.refuse("num_attention_heads ", config.num_heads, " of head_dim ", config.head_dim, " are wider than ",
                      kMaxWidth);
  }
}

// Some exporters write it beside the rotary parameters; transformers then prefers it to theirs.
std::int64_t original_positions(const Section& file, const Section& rope, const LlamaConfig& config) {
  constexpr const char* kKey = "original_max_position_embeddings";
  if (file.has(kKey) && rope.has(kKey) && file.integer(kKey, kMaxPositions) != rope.integer(kKey, kMaxPositions)) {
    throw file.refuse(kKey, " is ", file.integer(kKey, kMaxPositions), " beside and ", rope.integer(kKey, kMaxPositions),
                      " within the rotary parameters; remove the wrong one");
  }
  if (rope.has(kKey)) return rope.integer(kKey, kMaxPositions);
  return file.has(kKey) ? file.integer(kKey, kMaxPositions) : config.max_sequence_length;
}

Rope read_rope(const Section& file, const char* key, const LlamaConfig& config) {
  const Section rope = file.section(key);
  if (const std::string member = rope.nested(); !member.empty()) {
    throw file.refuse(key, " has parameters of its own for ", quoted_name(member), "; different ones by type of layer are "
                      "not supported");
  }
  Rope result;
  const Section& theta_place = rope.has("rope_theta") ? rope : file;
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
Rope read_rope(const Section& file, const LlamaConfig& config) {
  file.require("partial_rotary_factor", 1);
  const Rope rope = read_rope(file, file.has("rope_parameters") ? "rope_parameters" : "rope_scaling", config);
  if (file.has("rope_scaling") && read_rope(file, "rope_scaling", config) != rope) {
    throw file.refuse("rope_parameters and rope_scaling describe different rotary frequencies; remove the wrong one");
  }
  return rope;
}

TensorDType read_dtype(const Section& file) {
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
  const Section file(path, object);
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
