// rp::models::load() and inspect(): a Hugging Face directory as a description of layers.
#include <functional>
#include <map>
#include <memory>

#include "common/bad_input.h"
#include "common/text.h"
#include "model_files/checkpoint_tensors.h"
#include "model_files/layer_tensors.h"
#include "model_files/model_config.h"
#include "model_files/weight_files.h"
#include "models/batch_check.h"
#include "models/checkpoint.h"
#include "models/decoder.h"
#include "roundpipe/error.h"
#include "roundpipe/models.h"

namespace rp::models {

namespace {

// Multiply-adds per token: of the embedding a copy, of a decoder layer its matrices (attention's share depends on the length of
// the sequences, and is left to measurement), of the head its product.
double forward_cost(const ModelConfig& config, std::int64_t layer) {
  if (layer == 0) return static_cast<double>(config.hidden);
  if (layer == config.num_layers() + 1) return static_cast<double>(config.vocabulary * config.hidden);
  double cost = 0;
  for (const LinearShape& linear : linears_of(config.layers[static_cast<std::size_t>(layer - 1)], config.hidden)) {
    cost += static_cast<double>(linear.in * linear.out * linear.uses_per_token);
  }
  return cost;
}

ModelConfig trainable_config(const std::filesystem::path& directory) {
  ModelConfig config = read_model_config(directory);
  if (const std::optional<std::string> missing = what_is_missing(config)) {
    throw bad_input(directory / "config.json", "this model of the family ", quoted_name(config.family),
                    " can be planned (rp-plan), but not trained yet: it has ", *missing);
  }
  return config;
}

// What all layers of a model are made from.
struct Source {
  ModelConfig config;
  WeightFiles weights;
  // By layer: of each parameter its tensors in the files, one for each expert where they are the experts'.
  std::vector<std::map<std::string, std::vector<std::string>>> tensors_of;
};

std::shared_ptr<const Source> open_source(const std::filesystem::path& directory) {
  ModelConfig config = trainable_config(directory);
  WeightFiles weights = WeightFiles::open(directory);
  check_weights(config, weights);
  std::vector<std::map<std::string, std::vector<std::string>>> tensors_of(static_cast<std::size_t>(config.num_layers()) + 2);
  for (const CheckpointTensor& tensor : checkpoint_tensors(config)) {
    tensors_of[static_cast<std::size_t>(tensor.layer)][tensor.parameter].push_back(tensor.name);
  }
  if (config.tied_head) tensors_of.back()[std::string(kHeadTensor)] = {std::string(kEmbeddingTensor)};
  return std::make_shared<const Source>(Source{std::move(config), std::move(weights), std::move(tensors_of)});
}

LayerSpec describe(const std::shared_ptr<const Source>& source, std::int64_t layer, at::ScalarType dtype) {
  const ModelConfig& config = source->config;
  LayerSpec spec;
  // Processes that read different files differ here.
  spec.arguments_hash = std::hash<std::string>()(cat(text_of_layer(config, layer), static_cast<int>(dtype)));
  spec.forward_cost = forward_cost(config, layer);
  if (layer == 0) {
    spec.name = "Embedding";
    spec.make = [source, dtype] { return make_embedding(source->config, dtype); };
  } else if (layer <= config.num_layers()) {
    spec.name = cat("DecoderLayer ", layer - 1);
    spec.make = [source, layer, dtype] { return make_decoder_layer(source->config, layer - 1, dtype); };
  } else {
    spec.name = "Head";
    spec.make = [source, dtype] { return make_head(source->config, dtype); };
  }
  spec.initialize = [source, layer](const std::string& parameter, const at::Tensor& value) {
    if (layer == 0) check_tied_head(source->config, source->weights);
    const std::vector<std::string>& tensors = source->tensors_of[static_cast<std::size_t>(layer)].at(parameter);
    if (tensors.size() == 1) return read_tensor(source->weights, tensors.front(), value.view(source->weights.tensor(tensors.front()).shape));
    for (std::size_t i = 0; i < tensors.size(); ++i) read_tensor(source->weights, tensors[i], value[static_cast<std::int64_t>(i)]);
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
  const std::shared_ptr<const Source> source = open_source(directory);
  const ModelConfig& config = source->config;
  Model model;
  const std::int64_t head = config.num_layers() + 1;
  for (std::int64_t layer = 0; layer <= head; ++layer) model.add(describe(source, layer, dtype));
  if (config.tied_head) model.tie({0, "weight"}, {static_cast<int>(head), std::string(kHeadTensor)});
  model.set_check([vocabulary = config.vocabulary](const CallContents& call) { check_batch(vocabulary, call); });
  model.set_example(causal_lm_example(1, std::min<std::int64_t>(kExampleTokens, config.max_sequence_length)));
  return std::move(model.set_dtype(dtype));
}

ModelInfo inspect(const std::filesystem::path& directory) {
  const ModelConfig config = trainable_config(directory);
  check_weights(config, WeightFiles::open(directory));
  ModelInfo info;
  info.architecture = config.family;
  info.vocabulary = config.vocabulary;
  info.max_sequence_length = config.max_sequence_length;
  info.num_layers = static_cast<int>(config.num_layers()) + 2;
  for (const CheckpointTensor& tensor : checkpoint_tensors(config)) info.num_parameters += tensor.num_elements();
  return info;
}

}  // namespace rp::models
