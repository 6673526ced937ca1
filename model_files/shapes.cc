#include "model_files/shapes.h"

#include <set>

#include "common/bad_input.h"

namespace rp {
namespace {

constexpr std::string_view kLmHead = "lm_head.weight";
constexpr std::string_view kEmbedding = "model.embed_tokens.weight";

void add_block(const LlamaConfig& config, std::int64_t index, std::vector<ExpectedTensor>& tensors) {
  const std::string prefix = "model.layers." + std::to_string(index) + ".";
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t q_width = config.num_heads * config.head_dim;
  const std::int64_t kv_width = config.num_kv_heads * config.head_dim;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape) {
    tensors.push_back({prefix + name, std::move(shape), index + 1});
  };
  const auto add_linear = [&](const std::string& name, std::int64_t out, std::int64_t in, bool has_bias) {
    add(name + ".weight", {out, in});
    if (has_bias) add(name + ".bias", {out});
  };
  add("input_layernorm.weight", {hidden});
  add_linear("self_attn.q_proj", q_width, hidden, config.attention_bias);
  add_linear("self_attn.k_proj", kv_width, hidden, config.attention_bias);
  add_linear("self_attn.v_proj", kv_width, hidden, config.attention_bias);
  add_linear("self_attn.o_proj", hidden, q_width, config.attention_bias);
  add("post_attention_layernorm.weight", {hidden});
  add_linear("mlp.gate_proj", config.intermediate_size, hidden, config.mlp_bias);
  add_linear("mlp.up_proj", config.intermediate_size, hidden, config.mlp_bias);
  add_linear("mlp.down_proj", hidden, config.intermediate_size, config.mlp_bias);
}

bool is_leftover(const LlamaConfig& config, std::string_view name) {
  return name.ends_with(".rotary_emb.inv_freq") || (config.tie_word_embeddings && name == kLmHead);
}

// A head of its own would be lost in a model that ties it to the embedding.
void check_tied_head(const WeightFiles& weights) {
  const TensorInfo& head = weights.tensor(kLmHead);
  const TensorInfo& embedding = weights.tensor(kEmbedding);
  if (head.shape == embedding.shape && head.dtype == embedding.dtype) return;
  throw untied_head(weights, cat("is ", dtype_name(head.dtype), " ", shape_text(head.shape), ", and the embedding ",
                                 dtype_name(embedding.dtype), " ", shape_text(embedding.shape)));
}

}  // namespace

Error untied_head(const WeightFiles& weights, std::string_view difference) {
  return bad_input(weights.file_of(kLmHead), "tensor ", quoted_name(kLmHead), " ", difference,
                   ", but config.json ties the two (tie_word_embeddings); set that to false if the head has weights of "
                   "its own, or remove the tensor");
}

std::vector<ExpectedTensor> llama_tensors(const LlamaConfig& config) {
  std::vector<ExpectedTensor> tensors;
  tensors.push_back({std::string(kEmbedding), {config.vocabulary, config.hidden_size}, 0});
  for (std::int64_t i = 0; i < config.num_layers; ++i) add_block(config, i, tensors);
  tensors.push_back({"model.norm.weight", {config.hidden_size}, config.num_layers + 1});
  if (!config.tie_word_embeddings) {
    tensors.push_back({std::string(kLmHead), {config.vocabulary, config.hidden_size}, config.num_layers + 1});
  }
  return tensors;
}

void check_weights(const LlamaConfig& config, const WeightFiles& weights) {
  std::set<std::string, std::less<>> expected_names;
  for (const ExpectedTensor& expected : llama_tensors(config)) {
    if (!weights.contains(expected.name)) {
      throw bad_input(weights.directory(), "the weight files have no tensor ", quoted_name(expected.name), " of shape ",
                      shape_text(expected.shape), ", which config.json calls for");
    }
    const TensorInfo& found = weights.tensor(expected.name);
    if (found.shape != expected.shape) {
      throw bad_input(weights.file_of(expected.name), "tensor ", quoted_name(expected.name), " has shape ",
                      shape_text(found.shape), ", but config.json calls for ", shape_text(expected.shape));
    }
    if (found.dtype != TensorDType::kF32 && found.dtype != TensorDType::kF16 && found.dtype != TensorDType::kBF16) {
      throw bad_input(weights.file_of(expected.name), "tensor ", quoted_name(expected.name), " has dtype ",
                      dtype_name(found.dtype), "; weights must be F32, F16 or BF16");
    }
    expected_names.insert(expected.name);
  }
  if (config.tie_word_embeddings && weights.contains(kLmHead)) check_tied_head(weights);
  for (const std::string& name : weights.names()) {
    if (!expected_names.contains(name) && !is_leftover(config, name)) {
      throw bad_input(weights.file_of(name), "tensor ", quoted_name(name),
                      " is not part of the model that config.json describes (another architecture?)");
    }
  }
}

}  // namespace rp
