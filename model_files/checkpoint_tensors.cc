#include "model_files/checkpoint_tensors.h"

#include <functional>
#include <numeric>
#include <set>

#include "common/bad_input.h"
#include "common/text.h"
#include "model_files/layer_tensors.h"

namespace rp {
namespace {

// The experts of a layer are one parameter [expert, out, in] each for gate, up and down, and a tensor for each expert in files.
constexpr std::string_view kExperts = "mlp.experts.";

void add_experts(const std::string& called, const LayerTensor& tensor, std::int64_t layer, std::vector<CheckpointTensor>& tensors) {
  const std::vector<std::int64_t> shape(tensor.shape.begin() + 1, tensor.shape.end());
  const std::size_t place = called.size() - tensor.name.size() + kExperts.size();  // of the number
  for (std::int64_t expert = 0; expert < tensor.shape.front(); ++expert) {
    const std::string name = cat(called.substr(0, place), expert, ".", called.substr(place));
    tensors.push_back({.name = name, .shape = shape, .layer = layer, .parameter = tensor.name, .expert = expert});
  }
}

bool is_leftover(const ModelConfig& config, std::string_view name) {
  return name.ends_with(".rotary_emb.inv_freq") || (config.tied_head && name == kHeadTensor);
}

// A head of its own would be lost in a model that ties it to the embedding.
void check_tied_head(const WeightFiles& weights) {
  const TensorInfo& head = weights.tensor(kHeadTensor);
  const TensorInfo& embedding = weights.tensor(kEmbeddingTensor);
  if (head.shape == embedding.shape && head.dtype == embedding.dtype) return;
  throw untied_head(weights, cat("is ", dtype_name(head.dtype), " ", shape_text(head.shape), ", and the embedding ",
                                 dtype_name(embedding.dtype), " ", shape_text(embedding.shape)));
}

}  // namespace

Error untied_head(const WeightFiles& weights, std::string_view difference) {
  return bad_input(weights.file_of(kHeadTensor), "tensor ", quoted_name(kHeadTensor), " ", difference,
                   ", but config.json ties the two (tie_word_embeddings); set that to false if the head has weights of "
                   "its own, or remove the tensor");
}

std::int64_t CheckpointTensor::num_elements() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::vector<CheckpointTensor> checkpoint_tensors(const ModelConfig& config) {
  std::vector<CheckpointTensor> tensors;
  std::int64_t number = 0;
  for (const LayerTensors& layer : tensors_of(config)) {
    for (const LayerTensor& tensor : layer.tensors) {
      if (tensor.name == kHeadTensor && config.tied_head) continue;
      const std::string called = name_in_checkpoint(config, number, tensor.name);
      if (tensor.name.starts_with(kExperts)) {
        add_experts(called, tensor, number, tensors);
      } else {
        tensors.push_back({called, tensor.shape, number, tensor.name});
      }
    }
    ++number;
  }
  return tensors;
}

void check_weights(const ModelConfig& config, const WeightFiles& weights) {
  std::set<std::string, std::less<>> expected_names;
  for (const CheckpointTensor& expected : checkpoint_tensors(config)) {
    if (!weights.contains(expected.name)) {
      throw bad_input(weights.directory(), "the weight files have no tensor ", quoted_name(expected.name), " of shape ",
                      shape_text(expected.shape), ", which config.json calls for");
    }
    const TensorInfo& found = weights.tensor(expected.name);
    if (found.shape != expected.shape) {
      throw bad_input(weights.file_of(expected.name), "tensor ", quoted_name(expected.name), " has shape ",
                      shape_text(found.shape), ", but config.json calls for ", shape_text(expected.shape));
    }
    if (!is_working_dtype(found.dtype)) {
      throw bad_input(weights.file_of(expected.name), "tensor ", quoted_name(expected.name), " has dtype ",
                      dtype_name(found.dtype), "; weights must be F32, F16 or BF16");
    }
    expected_names.insert(expected.name);
  }
  if (config.tied_head && weights.contains(kHeadTensor)) check_tied_head(weights);
  for (const std::string& name : weights.names()) {
    if (!expected_names.contains(name) && !is_leftover(config, name)) {
      throw bad_input(weights.file_of(name), "tensor ", quoted_name(name),
                      " is not part of the model that config.json describes (another architecture?)");
    }
  }
}

}  // namespace rp
