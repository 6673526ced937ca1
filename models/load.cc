// rp::models::load() and inspect(): a Hugging Face directory as a description of layers.
#include <functional>
#include <memory>
#include <numeric>

#include "common/text.h"
#include "model_files/config.h"
#include "model_files/shapes.h"
#include "model_files/weight_files.h"
#include "models/batch_check.h"
#include "models/llama.h"
#include "models/llama_weights.h"
#include "roundpipe/error.h"
#include "roundpipe/models.h"

namespace rp::models {

namespace {

std::int64_t num_elements(const ExpectedTensor& tensor) {
  return std::accumulate(tensor.shape.begin(), tensor.shape.end(), std::int64_t{1}, std::multiplies<>());
}

// All that a layer's factory captures, as one number: processes that read different files differ here.
std::uint64_t hash_of(const LlamaConfig& config, at::ScalarType dtype) {
  std::string text = cat(config.hidden_size, ' ', config.intermediate_size, ' ', config.num_layers, ' ',
                         config.num_heads, ' ', config.num_kv_heads, ' ', config.head_dim, ' ', config.vocabulary, ' ',
                         config.padding_id, ' ', std::hexfloat, config.rms_norm_eps, ' ', config.rope_theta, ' ', config.tie_word_embeddings,
                         ' ', config.attention_bias, ' ', config.mlp_bias, ' ', static_cast<int>(dtype));
  if (config.rope_scaling) {
    const Llama3RopeScaling& scaling = *config.rope_scaling;
    text += cat(' ', std::hexfloat, scaling.factor, ' ', scaling.low_freq_factor, ' ', scaling.high_freq_factor, ' ',
                scaling.original_max_position_embeddings);
  }
  return std::hash<std::string>()(text);
}

// Multiply-adds per token: of the embedding a copy, of a block its matrices (attention's share depends on the length of
// the sequences, and is left to measurement), of the head its product.
double forward_cost(const LlamaConfig& config, std::int64_t layer) {
  if (layer == 0) return static_cast<double>(config.hidden_size);
  if (layer == config.num_layers + 1) return static_cast<double>(config.vocabulary * config.hidden_size);
  const std::int64_t projections = 2 * (config.num_heads + config.num_kv_heads) * config.head_dim;
  return static_cast<double>(config.hidden_size * (projections + 3 * config.intermediate_size));
}

LayerSpec describe(const LlamaConfig& config, std::int64_t layer, at::ScalarType dtype,
                   const std::shared_ptr<const WeightFiles>& weights) {
  LayerSpec spec;
  spec.arguments_hash = hash_of(config, dtype);
  spec.forward_cost = forward_cost(config, layer);
  if (layer == 0) {
    spec.name = "LlamaEmbedding";
    spec.make = [config, dtype] { return make_llama_embedding(config, dtype); };
  } else if (layer <= config.num_layers) {
    spec.name = cat("LlamaBlock ", layer - 1);
    spec.make = [config, dtype] { return make_llama_block(config, dtype); };
  } else {
    spec.name = "LlamaHead";
    spec.make = [config, dtype] { return make_llama_head(config, dtype); };
  }
  spec.initialize = [config, layer, weights](const std::string& parameter, const at::Tensor& value) {
    if (layer == 0) check_tied_head(config, *weights);
    read_tensor(*weights, llama_tensor_name(config, layer, parameter), value);
  };
  return spec;
}

// Of the example that a model has before its user gives one.
constexpr std::int64_t kExampleTokens = 64;

}  // namespace

Model load(const std::filesystem::path& directory, at::ScalarType dtype) {
  if (dtype != at::kBFloat16 && dtype != at::kHalf && dtype != at::kFloat) {
    throw Error(ExitCode::kUsage, cat("models::load(): weights of dtype ", c10::toString(dtype),
                                      " are not supported; use bf16 (at::kBFloat16), fp16 (at::kHalf) or fp32 (at::kFloat)"));
  }
  const LlamaConfig config = read_llama_config(directory / "config.json");
  const auto weights = std::make_shared<const WeightFiles>(WeightFiles::open(directory));
  check_weights(config, *weights);
  Model model;
  const std::int64_t head = config.num_layers + 1;
  for (std::int64_t layer = 0; layer <= head; ++layer) model.add(describe(config, layer, dtype, weights));
  if (config.tie_word_embeddings) model.tie({0, "weight"}, {static_cast<int>(head), "lm_head.weight"});
  model.set_check([vocabulary = config.vocabulary](const CallContents& call) { check_batch(vocabulary, call); });
  model.set_example(causal_lm_example(1, std::min<std::int64_t>(kExampleTokens, config.max_sequence_length)));
  return std::move(model.set_dtype(dtype));
}

ModelInfo inspect(const std::filesystem::path& directory) {
  const LlamaConfig config = read_llama_config(directory / "config.json");
  check_weights(config, WeightFiles::open(directory));
  ModelInfo info;
  info.architecture = "llama";
  info.vocabulary = config.vocabulary;
  info.max_sequence_length = config.max_sequence_length;
  info.num_layers = static_cast<int>(config.num_layers) + 2;
  for (const ExpectedTensor& tensor : llama_tensors(config)) info.num_parameters += num_elements(tensor);
  return info;
}

}  // namespace rp::models
