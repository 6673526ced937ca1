#include "model_files/weights/checkpoint_tensors.h"

#include <functional>
#include <numeric>
#include <set>

#include "common/bad_input.h"
#include "common/text.h"
#include "model_files/config/families/family.h"
#include "model_files/config/linear_shapes.h"
#include "model_files/layer_tensors.h"
#include "model_files/weights/stored_tensors.h"

namespace rp {
namespace {

using Shape = std::vector<std::int64_t>;

// Returns the common prefix of the names that all experts' tensors of a layer have in files.
// `called` is the name of the parameter in files.
std::string start_of_experts(const std::string& called, const LayerTensor& tensor) {
  return called.substr(0, called.size() - name_of_expert_part(tensor.name).size());
}

void add_each_expert(const std::string& called, const LayerTensor& tensor, std::int64_t layer,
                     std::vector<CheckpointTensor>& tensors) {
  const std::string start = start_of_experts(called, tensor);
  for (std::int64_t expert = 0; expert < tensor.shape.front(); ++expert) {
    tensors.push_back({.name = cat(start, expert, ".", called.substr(start.size())),
                       .shape = Shape(tensor.shape.begin() + 1, tensor.shape.end()),
                       .parts = {{.layer = layer, .parameter = tensor.name, .expert = expert}},
                       .format = tensor.file_format});
  }
}

// The tensor of gate's parameters also contains those of up, so gate adds both and up adds nothing.
void add_all_experts(const std::string& called, const LayerTensor& tensor, std::int64_t layer, ExpertLayout layout,
                     std::vector<CheckpointTensor>& tensors) {
  constexpr std::string_view kGate = "gate_proj", kUp = "up_proj", kDown = "down_proj";
  const std::string_view projection = name_of_expert_part(tensor.name);
  const std::string prefix = tensor.name.substr(0, tensor.name.size() - projection.size());
  if (projection.starts_with(kUp)) return;
  const bool is_bias = projection.ends_with(".bias");
  CheckpointTensor fused{.name = cat(start_of_experts(called, tensor),
                                     projection.starts_with(kGate) ? "gate_up_proj" : kDown, is_bias ? "_bias" : ""),
                         .shape = tensor.shape,
                         .parts = {{.layer = layer, .parameter = tensor.name}},
                         .is_of_all_experts = true};
  if (projection.starts_with(kGate)) {
    const bool takes_turns = layout != ExpertLayout::kFused;
    const std::int64_t rows = tensor.shape[1];
    fused.shape[1] = 2 * rows;
    fused.parts.front().row_step = takes_turns ? 2 : 1;
    fused.parts.push_back({.layer = layer,
                           .parameter = cat(prefix, kUp, is_bias ? ".bias" : ".weight"),
                           .first_row = takes_turns ? 1 : rows,
                           .row_step = takes_turns ? 2 : 1});
  }
  if (!is_bias && layout == ExpertLayout::kMxfp4) fused.format = WeightFormat::kMxfp4;
  if (!is_bias && layout == ExpertLayout::kInterleaved) {
    fused.is_transposed = true;
    std::swap(fused.shape[1], fused.shape[2]);
  }
  tensors.push_back(std::move(fused));
}

// Returns the name in files of the weight of a linear layer, for experts that of the first one.
std::string weight_in_checkpoint(const ModelConfig& config, std::int64_t layer, const LinearShape& linear) {
  std::string called = name_in_checkpoint(config, layer, linear.name) + ".weight";
  if (linear.num_experts > 0) called.insert(called.size() - name_of_expert_part(linear.name + ".weight").size(), "0.");
  return called;
}

// Returns the linear layers whose weights the files do not have quantised, by their names in memory.
std::vector<std::string> unquantised_layers(const ModelConfig& config, const WeightFiles& weights) {
  const std::string_view suffix = suffix_of_quantised(*config.quantised_format);
  std::vector<std::string> layers;
  std::size_t num_linears = 0;
  std::string example;
  for (std::int64_t layer = 1; layer <= config.num_layers(); ++layer) {
    for (const LinearShape& linear : linears_of(config.layers[layer - 1], config.hidden)) {
      example = cat(weight_in_checkpoint(config, layer, linear), suffix);
      if (!weights.contains(example)) layers.push_back(name_in_model(config, layer, linear.name));
      ++num_linears;
    }
  }
  if (layers.size() < num_linears) return layers;
  throw bad_input(weights.directory(), "config.json says that the weights are quantised (quantization_config, ",
                  quoted_name(config.quantization), "), but the weight files have no tensor such as ",
                  quoted_name(example), "; remove quantization_config");
}

bool is_leftover(const ModelConfig& config, std::string_view name) {
  return name.ends_with(".rotary_emb.inv_freq") || (config.tied_head && name == head_in_checkpoint(config)) ||
         is_of_unused_keys(config, name);
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

bool is_of_unused_keys(const ModelConfig& config, std::string_view name) {
  for (std::int64_t i = 0; i < config.num_layers(); ++i) {
    if (!config.layers[i].attention.keys_of_layer) continue;
    for (const char* part : {"k_proj.", "v_proj.", "k_norm."}) {
      if (name.starts_with(name_in_checkpoint(config, i + 1, cat("self_attn.", part)))) return true;
    }
  }
  return false;
}

Error untied_head(const ModelConfig& config, const WeightFiles& weights, std::string_view difference) {
  const std::string head = head_in_checkpoint(config);
  return bad_input(weights.file_of(head), "tensor ", quoted_name(head), " ", difference,
                   ", but config.json ties the two (tie_word_embeddings); set that to false if the head has weights of "
                   "its own, or remove the tensor");
}

std::int64_t CheckpointTensor::num_elements() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

void add_slice(const ModelConfig& config, std::int64_t layer, const LayerTensor& tensor, const std::string& called,
               std::vector<CheckpointTensor>& tensors) {
  const std::int64_t slice = layer - 1;
  auto whole = std::ranges::find(tensors, called, &CheckpointTensor::name);
  if (whole == tensors.end()) {
    CheckpointTensor added{.name = called, .shape = tensor.shape, .format = tensor.file_format};
    if (tensor.is_table) added.rows_in_row = config.num_layers();
    if (tensor.tied_group < 0) added.shape[tensor.is_table ? 1 : 0] *= config.num_layers();
    whole = tensors.insert(tensors.end(), std::move(added));
  } else if (tensor.tied_group >= 0) {
    return;
  }
  whole->parts.push_back({.layer = layer,
                          .parameter = tensor.name,
                          .first_row = tensor.is_table ? slice : slice * tensor.shape.front(),
                          .row_step = whole->rows_in_row});
}

std::vector<CheckpointTensor> checkpoint_tensors(const ModelConfig& config, ExpertLayout layout) {
  std::vector<CheckpointTensor> tensors;
  std::int64_t number = 0;
  for (const LayerTensors& layer : tensors_of(config)) {
    for (const LayerTensor& tensor : layer.tensors) {
      if (tensor.name == kHeadTensor && config.tied_head) continue;
      const std::string called = name_in_checkpoint(config, number, tensor.name);
      if (is_of_whole_model(tensor.name)) {
        add_slice(config, number, tensor, called, tensors);
      } else if (!tensor.is_of_experts) {
        tensors.push_back({.name = called,
                           .shape = tensor.shape,
                           .parts = {{.layer = number, .parameter = tensor.name}},
                           .format = tensor.file_format});
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

ModelConfig adapted_to_files(ModelConfig config, const WeightFiles& weights) {
  const std::string table = "embed_tokens.weight";
  for (const std::string& body : {config.file_names.body, std::string(kTextInWrapper)}) {
    if (!weights.contains(body + table)) continue;
    config.file_names.body = body;
    break;
  }
  // Experts in MXFP4 are recognised by the layout (expert_layout.h).
  if (find_expert_layout(config, weights) == ExpertLayout::kMxfp4) {
    config.quantised_format = WeightFormat::kMxfp4;
    config.unquantised_layers.clear();
  } else if (config.quantised_format) {
    config.unquantised_layers = unquantised_layers(config, weights);
  }
  return config;
}

void check_weights(const ModelConfig& config, const WeightFiles& weights) {
  std::set<std::string, std::less<>> expected_names;
  for (const CheckpointTensor& tensor : checkpoint_tensors(config, find_expert_layout(config, weights))) {
    check_stored(tensor, weights);
    for (StoredTensor& stored : stored_tensors(tensor)) expected_names.insert(std::move(stored.name));
    for (std::string& name : activation_scales(tensor)) expected_names.insert(std::move(name));
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
