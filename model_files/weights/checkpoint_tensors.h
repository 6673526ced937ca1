// model_files/weights/checkpoint_tensors.h
// Lists the tensors of a model's checkpoint, and the parameters that each consists of.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/quantised_weights.h"
#include "model_files/config/model_config.h"
#include "model_files/layer_tensors.h"
#include "model_files/weights/expert_layout.h"
#include "model_files/weights/weight_files.h"
#include "roundpipe/error.h"

namespace rp {

// Rows of a parameter that are rows of a tensor in files. Rows are counted by the first dimension:
// they are the outputs of a linear layer.
struct TensorPart {
  // The layer's index in the sequential model: 0 is the embedding, 1 to num_layers() are the decoder
  // layers, and num_layers() + 1 is the head (final norm and LM head).
  std::int64_t layer = 0;
  std::string parameter{};     // the parameter's name within the layer (layer_tensors.h)
  std::int64_t expert = -1;    // the expert whose part of the parameter this is; -1: the whole parameter
  std::int64_t first_row = 0;  // in the tensor; the others follow at intervals of row_step
  std::int64_t row_step = 1;

  bool operator==(const TensorPart&) const = default;
};

// A tensor that a checkpoint or an adapter must have, and the parameters that it consists of. They are
// of one layer, except those of is_of_whole_model() (layer_tensors.h).
struct CheckpointTensor {
  // As in the files, "model.layers.7.mlp.up_proj.weight"; without the suffixes that the tensors of a
  // quantised one have (stored_tensors.h).
  std::string name{};
  std::vector<std::int64_t> shape{};  // as in the files; for a quantised tensor the shape of its numbers
  std::vector<TensorPart> parts{};    // together the whole tensor, in order of their first rows
  // Each row of the tensor is this many rows of parameters, one after the other.
  std::int64_t rows_in_row = 1;
  // The first dimension of the tensor and of its parameters is the expert; `parts` are rows of each
  // expert.
  bool is_of_all_experts = false;
  bool is_transposed = false;            // the last two dimensions are [in, out], so rows are counted by the last one
  std::optional<WeightFormat> format{};  // nullopt: not quantised

  [[nodiscard]] std::int64_t num_elements() const;
};

// Adds what layer number `layer` has of a tensor of the whole model to `tensors`. `called`: the
// tensor's name in files.
void add_slice(const ModelConfig& config, std::int64_t layer, const LayerTensor& tensor, const std::string& called,
               std::vector<CheckpointTensor>& tensors);

// Returns all tensors in order of their first layer, for files that store experts in `layout`. A tied
// LM head has no tensor of its own.
[[nodiscard]] std::vector<CheckpointTensor> checkpoint_tensors(const ModelConfig& config,
                                                               ExpertLayout layout = ExpertLayout::kEach);

// Returns the config with what only the files tell. The prefix of their names: a text model that
// transformers took out of a multimodal one is saved under the names that it had there. And if
// weights are quantised, the exact list of the linear layers that are not. Throws rp::Error
// (kBadInput) if the config says that weights are quantised, and none are.
[[nodiscard]] ModelConfig adapted_to_files(ModelConfig config, const WeightFiles& weights);

// Checks that `weights` has exactly the tensors of `config`, in one layout of experts, each stored as
// stored_tensors.h describes. Leftovers are ignored: rotary_emb.inv_freq of old exporters, the LM head
// of a tied model if it has the embedding's shape and dtype (check_tied_head() of models/checkpoint.h
// compares the values), keys and values of layers that use those of another one, and activation_scales(). The tensors
// of a multimodal model's other parts are ignored too. Throws rp::Error (kBadInput) naming the tensor, and the expected
// and the found shape. REQUIRES: adapted_to_files() has returned `config`, or no weights are quantised.
void check_weights(const ModelConfig& config, const WeightFiles& weights);

// Returns true for keys and values of a layer that uses those of another one. Published files have
// them, but no model reads them.
[[nodiscard]] bool is_of_unused_keys(const ModelConfig& config, std::string_view name);

// Returns the error to throw if the LM head in the files of a tied model differs from the
// embedding. REQUIRES: the files have an LM head.
[[nodiscard]] Error untied_head(const ModelConfig& config, const WeightFiles& weights, std::string_view difference);

}  // namespace rp
