#include "model_files/weights/checkpoint_tensors.h"

#include <functional>
#include <numeric>
#include <set>

#include "common/bad_input.h"
#include "common/text.h"
#include "kernels/quantised_weights.h"
#include "model_files/config/families/family.h"
#include "model_files/layer_tensors.h"

namespace rp {
namespace {

using Shape = std::vector<std::int64_t>;

// Returns the common prefix of the names that all experts' tensors of a layer have in files.
// `called` is the name of the parameter in files.
std::string start_of_experts(const std::string& called, const LayerTensor& tensor) {
  return called.substr(0, called.size() - tensor.name.size() + kExpertsPrefix.size());
}

void add_each_expert(const std::string& called, const LayerTensor& tensor, std::int64_t layer,
                     std::vector<CheckpointTensor>& tensors) {
  const std::string start = start_of_experts(called, tensor);
  for (std::int64_t expert = 0; expert < tensor.shape.front(); ++expert) {
    tensors.push_back({.name = cat(start, expert, ".", called.substr(start.size())),
                       .shape = Shape(tensor.shape.begin() + 1, tensor.shape.end()),
                       .layer = layer,
                       .parts = {{.parameter = tensor.name, .expert = expert}}});
  }
}

// The tensor of gate's parameters also contains those of up, so gate adds both and up adds nothing.
void add_all_experts(const std::string& called, const LayerTensor& tensor, std::int64_t layer, ExpertLayout layout,
                     std::vector<CheckpointTensor>& tensors) {
  constexpr std::string_view kGate = "gate_proj", kUp = "up_proj", kDown = "down_proj";
  const std::string_view projection = std::string_view(tensor.name).substr(kExpertsPrefix.size());
  if (projection.starts_with(kUp)) return;
  const bool is_bias = projection.ends_with(".bias");
  CheckpointTensor fused{.name = cat(start_of_experts(called, tensor),
                                     projection.starts_with(kGate) ? "gate_up_proj" : kDown, is_bias ? "_bias" : ""),
                         .shape = tensor.shape,
                         .layer = layer,
                         .parts = {{.parameter = tensor.name}},
                         .is_of_all_experts = true};
  if (projection.starts_with(kGate)) {
    const bool takes_turns = layout != ExpertLayout::kFused;
    const std::int64_t rows = tensor.shape[1];
    fused.shape[1] = 2 * rows;
    fused.parts.front().row_step = takes_turns ? 2 : 1;
    fused.parts.push_back({.parameter = cat(kExpertsPrefix, kUp, is_bias ? ".bias" : ".weight"),
                           .first_row = takes_turns ? 1 : rows,
                           .row_step = takes_turns ? 2 : 1});
  }
  if (!is_bias && layout == ExpertLayout::kMxfp4) fused.packing = CheckpointTensor::Packing::kMxfp4;
  if (!is_bias && layout == ExpertLayout::kInterleaved) {
    fused.is_transposed = true;
    std::swap(fused.shape[1], fused.shape[2]);
  }
  tensors.push_back(std::move(fused));
}

bool is_leftover(const ModelConfig& config, std::string_view name) {
  return name.ends_with(".rotary_emb.inv_freq") || (config.tied_head && name == head_in_checkpoint(config));
}

// Returns true if a tensor belongs to one of the layers after the last one that predict further tokens.
bool predicts_further_token(const ModelConfig& config, std::string_view name) {
  if (name.starts_with("mtp.")) return true;
  for (std::int64_t i = 0; i < config.num_further_layers; ++i) {
    if (name.starts_with(cat(config.file_names.body, "layers.", config.num_layers() + i, "."))) return true;
  }
  return false;
}

// Returns true if a tensor of a multimodal model belongs to another part than the text.
bool is_of_other_part(const ModelConfig& config, std::string_view name) {

    return !config.wrapper.empty() && !name.starts_with(config.file_names.body) &&
         !name.starts_with(config.file_names.head + "lm_head.");
}

void check_tensor(const CheckpointTensor& tensor, const WeightFiles& weights) {
  const bool is_packed = tensor.packing != CheckpointTensor::Packing::kNone;
  if (is_packed && tensor.shape.back() % kMxfp4Block != 0) {
    throw bad_input(weights.directory(), "tensor ", quoted_name(tensor.name), " of shape ", shape_text(tensor.shape),
                    ", which config.json calls for, ", "does not divide into blocks of ", kMxfp4Block,
                    ", but the weight files hold experts in such blocks");
  }
  const std::vector<StoredTensor> all_stored = stored_tensors(tensor);
  for (const StoredTensor& stored : all_stored) {
    if (!weights.contains(stored.name)) {
      const StoredTensor& other = stored.name == all_stored.front().name ? all_stored.back() : all_stored.front();
      throw bad_input(weights.directory(), "the weight files have no tensor ", quoted_name(stored.name), " of shape ",
                      shape_text(stored.shape), ", which config.json calls for",
                      is_packed ? cat(" together with ", quoted_name(other.name)) : "");
    }
    const TensorInfo& found = weights.tensor(stored.name);
    if (found.shape != stored.shape) {
      throw bad_input(weights.file_of(stored.name), "tensor ", quoted_name(stored.name), " has shape ",
                      shape_text(found.shape), ", but config.json calls for ", shape_text(stored.shape));
    }
    if (is_packed ? found.dtype != DType::kUInt8 : !is_working_dtype(found.dtype)) {
      throw bad_input(weights.file_of(stored.name), "tensor ", quoted_name(stored.name), " has dtype ",
                      dtype_name(found.dtype),
                      is_packed ? "; blocks and scales must be U8" : "; weights must be F32, F16 or BF16");
    }
  }
}

// A model whose head is tied to the embedding would lose the weights of a separate head.
void check_tied_head(const ModelConfig& config, const WeightFiles& weights) {
  const TensorInfo& head = weights.tensor(head_in_checkpoint(config));
  const TensorInfo& embedding = weights.tensor(embedding_in_checkpoint(config));
  if (head.shape == embedding.shape && head.dtype == embedding.dtype) return;
  throw untied_head(config, weights,
                    cat("is ", dtype_name(head.dtype), " ", shape_text(head.shape), ", and the embedding ",
                        dtype_name(embedding.dtype), " ", shape_text(embedding.shape)));
}

}  // namespace

Error untied_head(const ModelConfig& config, const WeightFiles& weights, std::string_view difference) {
  const std::string head = head_in_checkpoint(config);
  return bad_input(weights.file_of(head), "tensor ", quoted_name(head), " ", difference,
                   ", but config.json ties the two (tie_word_embeddings); set that to false if the head has weights of "
                   "its own, or remove the tensor");
}

std::int64_t CheckpointTensor::num_elements() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::vector<StoredTensor> stored_tensors(const CheckpointTensor& tensor) {
  if (tensor.packing == CheckpointTensor::Packing::kNone) return {{tensor.name, tensor.shape}};
  Shape scales = tensor.shape;
  scales.back() /= kMxfp4Block;
  Shape blocks = scales;
  blocks.push_back(kMxfp4Block / 2);
  return {{tensor.name + "_blocks", blocks}, {tensor.name + "_scales", scales}};
}

std::vector<CheckpointTensor> checkpoint_tensors(const ModelConfig& config, ExpertLayout layout) {
  std::vector<CheckpointTensor> tensors;
  std::int64_t number = 0;
  for (const LayerTensors& layer : tensors_of(config)) {
    for (const LayerTensor& tensor : layer.tensors) {
      if (tensor.name == kHeadTensor && config.tied_head) continue;
      const std::string called = name_in_checkpoint(config, number, tensor.name);
      if (!tensor.is_of_experts) {
        tensors.push_back(
            {.name = called, .shape = tensor.shape, .layer = number, .parts = {{.parameter = tensor.name}}});
      } else if (layout == ExpertLayout::kEach) {
        add_each_expert(called, tensor, number, tensors);
      } else {
        add_all_experts(called, tensor, number, layout, tensors);
      }
    }
    ++number;
  }
  return tensors;
}

ModelConfig with_names_of(ModelConfig config, const WeightFiles& weights) {
  const std::string table = "embed_tokens.weight";
  for (const std::string& body : {config.file_names.body, std::string(kTextInWrapper)}) {
    if (!weights.contains(body + table)) continue;
    config.file_names.body = body;
    break;
  }
  return config;
}

void check_weights(const ModelConfig& config, const WeightFiles& weights) {
  std::set<std::string, std::less<>> expected_names;
  for (const CheckpointTensor& tensor : checkpoint_tensors(config, find_expert_layout(config, weights))) {
    check_tensor(tensor, weights);
    for (StoredTensor& stored : stored_tensors(tensor)) expected_names.insert(std::move(stored.name));
  }
  if (config.tied_head && weights.contains(head_in_checkpoint(config))) check_tied_head(config, weights);
  for (const std::string& name : weights.names()) {
        if (!expected_names.contains(name) && !is_leftover(config, name) && !is_of_other_part(config, name) &&
        !predicts_further_token(config, name)) {
      throw bad_input(weights.file_of(name), "tensor ", quoted_name(name),
                      " is not part of the model that config.json describes (another architecture?)");
    }
  }
}

}  // namespace rp
