// model_files/checkpoint_tensors.h
// Lists the tensors that a model's checkpoint consists of, and which parameter of which layer each of them is.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model_files/layer_tensors.h"
#include "model_files/model_config.h"
#include "model_files/weight_files.h"
#include "roundpipe/error.h"

namespace rp {

// A tensor that a checkpoint must have.
struct CheckpointTensor {
  std::string name{};  // as in the files, "model.layers.7.mlp.up_proj.weight"
  std::vector<std::int64_t> shape{};
  // Place in the sequential model: 0 is the embedding, 1 to num_layers() are the decoder layers, num_layers() + 1 is the
  // head (final norm and LM head). A tied LM head has no tensor of its own.
  std::int64_t layer = 0;
  std::string parameter{};  // its name within the layer (layer_tensors.h)
  std::int64_t expert = -1;  // whose part of the parameter it is; -1: it is all of it

  [[nodiscard]] std::int64_t num_elements() const;
};

// All of them, in order of layer.
[[nodiscard]] std::vector<CheckpointTensor> checkpoint_tensors(const ModelConfig& config);

// Checks that `weights` holds exactly the tensors of `config`, each with its shape and a floating dtype that we read
// (F32, F16, BF16). Two leftovers of old exporters are ignored: rotary_emb.inv_freq, and the LM head of a tied model
// if it has the embedding's shape and dtype (check_tied_head() of models/checkpoint.h compares the values).
// Throws rp::Error (kBadInput) naming the tensor, and the expected and the found shape.
void check_weights(const ModelConfig& config, const WeightFiles& weights);

// To be thrown: the LM head in the files of a tied model is not the embedding. REQUIRES: it is there.
[[nodiscard]] Error untied_head(const WeightFiles& weights, std::string_view difference);

}  // namespace rp
