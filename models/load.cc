// Implements rp::models::load() and inspect(), which describe a Hugging Face directory as layers.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>

#include "common/bad_input.h"
#include "common/check.h"
#include "common/text.h"
#include "model_files/config/model_config.h"
#include "model_files/layer_tensors.h"
#include "model_files/part_selection.h"
#include "model_files/weights/adapter_config.h"
#include "model_files/weights/checkpoint_tensors.h"
#include "model_files/weights/exported_files.h"
#include "model_files/weights/quantised_tensors.h"
#include "model_files/weights/side_files.h"
#include "model_files/weights/weight_files.h"
#include "models/batch_check.h"
#include "models/checkpoint.h"
#include "models/decoder.h"
#include "models/layers/quantised_weights.h"
#include "models/layers/scalar_type.h"
#include "models/tensor_parts.h"
#include "roundpipe/error.h"
#include "roundpipe/models.h"

namespace rp::models {

namespace {

// Returns multiply-adds per token. The embedding counts as one copy, a decoder layer as its
// matrices, and the head as its product. The cost of attention depends on the length of the
// sequences, and is left to measurements.
double forward_cost(const ModelConfig& config, std::int64_t layer) {
  if (layer == 0) return static_cast<double>(config.hidden);
  if (layer == config.num_layers() + 1) return static_cast<double>(config.vocabulary * config.hidden);
  double cost = 0;
  for (const LinearShape& linear : linears_of(config.layers[layer - 1], config.hidden)) {
    cost += static_cast<double>(linear.in * linear.out * linear.uses_per_token);
  }
  return cost;
}

// Returns the uses of tied parameters, each after the first use of its parameter.
std::vector<std::pair<ParameterUse, ParameterUse>> ties_of(const ModelConfig& config) {
  std::map<int, ParameterUse> first;
  std::vector<std::pair<ParameterUse, ParameterUse>> ties;
  const std::vector<LayerTensors> layers = tensors_of(config);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (const LayerTensor& tensor : layers[i].tensors) {
      if (tensor.tied_group < 0) continue;
      const ParameterUse use{static_cast<int>(i), tensor.name};
      const auto [place, is_first] = first.emplace(tensor.tied_group, use);
      if (!is_first) ties.emplace_back(place->second, use);
    }
  }
  return ties;
}

ModelConfig trainable_config(const std::filesystem::path& directory) {
  ModelConfig config = read_model_config(directory);
  if (const std::optional<std::string> missing = what_is_missing(config)) {
    throw bad_input(directory / "config.json", "this model of the family ", quoted_name(config.family),
                    " can be planned (rp-plan), but not trained yet: it has ", *missing);
  }
  return config;
}

std::filesystem::path path_of(const WeightFiles& files) { return files.directory(); }
std::filesystem::path path_of(const SafetensorsFile& file) { return file.path(); }

// Uses the sum, because it is as fast as memory and is not finite if a value is not finite.
void check_finite(const std::filesystem::path& path, const std::string& tensor, const at::Tensor& value) {
  if (std::isfinite(value.sum().item<double>())) return;
  const std::int64_t num_finite = value.isfinite().sum().item<std::int64_t>();
  if (num_finite == value.numel()) return;  // only the sum is too large
  throw bad_input(
      path, "tensor ", tensor, ": ", value.numel() - num_finite, " of its ", value.numel(),
      " values are NaN or infinite: the file is damaged, or a training spoiled this model; take another one");
}

// Looks only at matrices whose scales are so large that a value could exceed the dtype.
void check_expanded(const std::filesystem::path& path, const std::string& tensor, const at::Tensor& bytes,
                    const QuantisedShape& shape, at::ScalarType dtype) {
  const float largest = dtype == at::kHalf       ? float{std::numeric_limits<c10::Half>::max()}
                        : dtype == at::kBFloat16 ? float{std::numeric_limits<c10::BFloat16>::max()}
                                                 : std::numeric_limits<float>::max();
  const QuantisedWeights weights{.shape = shape, .bytes = static_cast<const std::byte*>(bytes.const_data_ptr())};
  for (std::int64_t matrix = 0; matrix < shape.matrices; ++matrix) {
    if (bound_of_values(weights, matrix) > largest)
      check_finite(path, tensor, expanded_matrix(bytes, shape, matrix, dtype));
  }
}

// The tensors of weight files or of an adapter, and the parts of them in which each parameter is
// stored.
class FileTensors {
 public:
  FileTensors() = default;
  FileTensors(std::vector<CheckpointTensor> tensors, std::int64_t num_layers)
      : tensors_(std::move(tensors)), places_(num_layers) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      for (std::size_t part = 0; part < tensors_[i].parts.size(); ++part) {
        const TensorPart& of = tensors_[i].parts[part];
        places_[of.layer][of.parameter].emplace_back(i, part);
      }
    }
  }

  // Reads a quantised parameter. Returns false if the files do not have it in its format. `dtype`: in
  // which its values must be finite.
  [[nodiscard]] bool read_quantised(const WeightFiles& files, std::int64_t layer, const LayerTensor& parameter,
                                    at::ScalarType dtype, const at::Tensor& bytes) const {
    const auto& places = places_[layer].at(parameter.name);
    for (const auto& [tensor, part] : places) {
      if (tensors_[tensor].format != parameter.format) return false;
      read_quantised_part(files, tensors_[tensor], tensors_[tensor].parts[part], parameter.quantised_shape(),
                          static_cast<std::byte*>(bytes.mutable_data_ptr()));
    }
    check_expanded(path_of(files), tensors_[places.front().first].name, bytes, parameter.quantised_shape(), dtype);
    return true;
  }

  // Makes the other uses of tied parameters read from where the first one is stored.
  void tie(const std::vector<std::pair<ParameterUse, ParameterUse>>& ties) {
    for (const auto& [first, other] : ties) {
      const auto stored = places_[first.layer].find(first.parameter);
      if (stored != places_[first.layer].end()) places_[other.layer][other.parameter] = stored->second;
    }
  }

  // Returns false if the files have no such parameter.
  template <typename Files>
  [[nodiscard]] bool read(const Files& files, std::int64_t layer, const std::string& parameter,
                          const at::Tensor& value) const {
    const auto& of_layer = places_[layer];
    const auto found = of_layer.find(parameter);
    if (found == of_layer.end()) return false;
    for (const auto& [tensor, part] : found->second)
      read_part(files, tensors_[tensor], tensors_[tensor].parts[part], value);
    check_finite(path_of(files), tensors_[found->second.front().first].name, value);
    return true;
  }

 private:
  std::vector<CheckpointTensor> tensors_;
  // The tensors and parts of each parameter, by layer.
  std::vector<std::map<std::string, std::vector<std::pair<std::size_t, std::size_t>>>> places_;
};

// The data from which all layers of a model are made.
struct Source {
  ModelConfig config;
  TrainedParts parts;
  at::ScalarType dtype;
  WeightFiles weights;
  FileTensors tensors;
  std::optional<SafetensorsFile> adapter{};  // the adapter from which the pairs start
  FileTensors adapter_tensors{};
};

std::shared_ptr<const Source> open_source(const std::filesystem::path& directory, at::ScalarType dtype,
                                          const TrainedParts& parts) {
  ModelConfig config = trainable_config(directory);  // first: it names a family that is not supported
  WeightFiles weights = WeightFiles::open(directory);
  config = adapted_to_files(std::move(config), weights);
  check_weights(config, weights);
  (void)summarise(config, parts);
  const std::int64_t num_layers = config.num_layers() + 2;
  FileTensors tensors(checkpoint_tensors(config, find_expert_layout(config, weights)), num_layers);
  tensors.tie(ties_of(config));

  auto source =
      std::make_shared<Source>(Source{std::move(config), parts, dtype, std::move(weights), std::move(tensors)});
  if (!parts.adapter.empty()) {
    source->adapter = SafetensorsFile::open(parts.adapter / kAdapterWeightsFile);
    check_adapter(source->config, parts, *source->adapter);
    source->adapter_tensors = FileTensors(adapter_tensors(source->config, parts), num_layers);
    source->adapter_tensors.tie(ties_of(source->config));
  }
  return source;
}

// Fills in the bytes of a quantised parameter.
void initialize_quantised(const Source& source, std::int64_t layer, const LayerTensor& parameter,
                          const at::Tensor& bytes) {
  if (source.tensors.read_quantised(source.weights, layer, parameter, source.dtype, bytes)) return;
  const QuantisedShape shape = parameter.quantised_shape();
  const at::Tensor values = at::empty({shape.matrices, shape.rows, shape.columns}, source.dtype);
  const bool is_read = source.tensors.read(source.weights, layer, parameter.name, values.view(parameter.shape));
  RP_ASSERT(is_read);
  bytes.zero_();  // also the gaps
  at::parallel_for(0, shape.matrices, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t matrix = begin; matrix < end; ++matrix) {
      const bool is_finite = quantise(values[matrix], shape, matrix, bytes);
      RP_ASSERT(is_finite);  // read() has checked it
    }
  });
}

// Returns the values that a layer computes with, in fp32.
at::Tensor initial_values(const Source& source, std::int64_t layer, const LayerTensor& parameter) {
  if (parameter.format) {
    const at::Tensor bytes = at::empty({parameter.quantised_bytes()}, at::kByte);
    initialize_quantised(source, layer, parameter, bytes);
    return expanded(bytes, parameter.quantised_shape(), parameter.shape, source.dtype).to(at::kFloat);
  }
  const at::Tensor values = at::empty(parameter.shape, at::kFloat);
  const bool is_read = source.tensors.read(source.weights, layer, parameter.name, values);
  RP_ASSERT(is_read);
  return values;
}

// Sets the initial value of a pair, for which W x + scale B A x = W x; or for DoRA the lengths of
// the rows of W.
void begin_pair(const Source& source, std::int64_t layer, const std::string& parameter, const at::Tensor& value) {
  if (parameter.ends_with(".lora_A.weight")) {
    const double bound = 1 / std::sqrt(static_cast<double>(value.size(-1)));
    value.uniform_(-bound, bound);
  } else if (parameter.ends_with(".lora_B.weight")) {
    value.zero_();
  } else {
    const std::string weight = parameter.substr(0, parameter.rfind('.')) + ".weight";
    const LayerTensors tensors = tensors_of_layer(source.config, layer, source.parts);
    const at::Tensor rows = initial_values(source, layer, *tensors.find(weight));
    value.copy_(at::linalg_vector_norm(rows, 2, at::IntArrayRef{1}));
  }
}

void initialize(const Source& source, std::int64_t layer, const std::string& parameter, const at::Tensor& value) {
  if (layer == 0) check_tied_head(source.config, source.weights);
  const LayerTensors tensors = tensors_of_layer(source.config, layer, source.parts);
  const LayerTensor* tensor = tensors.find(parameter);
  if (tensor->format) return initialize_quantised(source, layer, *tensor, value);
  if (source.adapter && source.adapter_tensors.read(*source.adapter, layer, parameter, value)) return;
  if (!source.tensors.read(source.weights, layer, parameter, value)) begin_pair(source, layer, parameter, value);
}

LayerSpec describe(const std::shared_ptr<const Source>& source, std::int64_t layer, at::ScalarType dtype) {
  const ModelConfig& config = source->config;
  LayerSpec spec;
  // The hash differs between processes that have read different files.
  spec.arguments_hash =
      std::hash<std::string>()(cat(text_of_layer(config, layer), static_cast<int>(dtype), source->parts.lora.scale(),
                                   static_cast<int>(source->parts.frozen_weights), source->parts.corrections));
  spec.forward_cost = forward_cost(config, layer);
  if (layer == 0) {
    spec.name = "Embedding";
    spec.make = [source, dtype] { return make_embedding(source->config, source->parts, dtype); };
  } else if (layer <= config.num_layers()) {
    spec.name = cat("DecoderLayer ", layer - 1);
    spec.make = [source, layer, dtype] { return make_decoder_layer(source->config, layer - 1, source->parts, dtype); };
  } else {
    spec.name = "Head";
    spec.make = [source, dtype] { return make_head(source->config, source->parts, dtype); };
  }
  spec.initialize = [source, layer](const std::string& parameter, const at::Tensor& value) {
    initialize(*source, layer, parameter, value);
  };
  return spec;
}

CausalLmLossSettings loss_settings_of(const ModelConfig& config) {
  CausalLmLossSettings settings{.logit_softcap = config.logit_softcap};
  for (const DecoderLayerConfig& layer : config.layers) {
    if (layer.mlp.experts) settings.balance = layer.mlp.experts->balance_coefficient;
  }
  return settings;
}

// The length of the example that a model has until the user sets another one.
constexpr std::int64_t kExampleTokens = 64;

}  // namespace

Model load(const std::filesystem::path& directory, at::ScalarType dtype, const TrainedParts& parts) {
  if (!is_working_dtype(dtype)) {
    throw Error(ExitCode::kUsage,
                cat("models::load(): weights of dtype ", c10::toString(dtype),
                    " are not supported; use bf16 (at::kBFloat16), fp16 (at::kHalf) or fp32 (at::kFloat)"));
  }
  const std::shared_ptr<const Source> source = open_source(directory, dtype, parts);
  const ModelConfig& config = source->config;
  Model model;
  const std::int64_t head = config.num_layers() + 1;
  for (std::int64_t layer = 0; layer <= head; ++layer) model.add(describe(source, layer, dtype));
  for (const auto& [first, other] : ties_of(config)) model.tie(first, other);
  model.set_check([vocabulary = config.vocabulary, softcap = config.logit_softcap](const CallContents& call) {
    check_batch(vocabulary, softcap, call);
  });
  model.set_example(causal_lm_example(1, std::min<std::int64_t>(kExampleTokens, config.max_sequence_length),
                                      loss_settings_of(config)));
  return std::move(model.set_dtype(dtype));
}

ModelInfo inspect(const std::filesystem::path& directory, const TrainedParts& parts) {
  ModelConfig config = trainable_config(directory);
  const WeightFiles weights = WeightFiles::open(directory);
  config = adapted_to_files(std::move(config), weights);
  check_weights(config, weights);
  check_tied_head(config, weights);
  const SelectionSummary selection = summarise(config, parts);
  if (!parts.adapter.empty()) check_adapter(config, parts, SafetensorsFile::open(parts.adapter / kAdapterWeightsFile));
  ModelInfo info;
  info.num_trained = selection.num_trained;
  info.num_adapted = selection.num_adapted;
  for (const LayerTensors& layer : tensors_of(config, parts)) {
    info.has_frozen = info.has_frozen || !std::ranges::all_of(layer.tensors, &LayerTensor::is_trained);
  }
  info.num_quantised = selection.num_quantised;
  info.quantised_bytes = selection.quantised_bytes;
  for (const auto& [name, count] : selection.adapted)
    info.adapted += cat(info.adapted.empty() ? "" : ", ", name, " x", count);
  info.architecture = config.family;
  info.vocabulary = config.vocabulary;
  info.max_sequence_length = config.max_sequence_length;
  info.num_layers = static_cast<int>(config.num_layers()) + 2;
  for (const DecoderLayerConfig& layer : config.layers) {
    if (layer.mlp.experts) info.num_experts = layer.mlp.experts->num;
  }
  const ExportedFiles exported = exported_files(config, weights);
  info.weight_bytes = exported.bytes();
  info.num_carried = static_cast<std::int64_t>(exported.num_carried());
  info.wrapper = config.wrapper;
  info.left_out = find_side_files(weights).left_out;
  info.num_parameters = num_parameters(tensors_of(config));

  return info;
}

CausalLmLossSettings causal_lm_loss_settings(const std::string& folder_or_preset) {
  return loss_settings_of(config_of_model(folder_or_preset));
}

TrainedParts read_adapter(const std::filesystem::path& folder) { return read_adapter_config(folder); }

}  // namespace rp::models
