// model_files/weights/checkpoint_tensors.h
// Lists the tensors that a model's checkpoint consists of, and which parameter of which layer each of them is.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model_files/config/model_config.h"
#include "model_files/layer_tensors.h"
#include "model_files/weights/expert_layout.h"
#include "model_files/weights/weight_files.h"
#include "roundpipe/error.h"

namespace rp {

// Rows of a parameter that are rows of a tensor in files. Rows are what the first dimension counts: a linear layer's
// outputs.
struct TensorPart {
  std::string parameter{};     // its name within the layer (layer_tensors.h)
  std::int64_t expert = -1;    // whose part of the parameter it is; -1: it is all of it
  std::int64_t first_row = 0;  // in the tensor; the others follow at distances of row_step
  std::int64_t row_step = 1;

  bool operator==(const TensorPart&) const = default;
};

// A tensor of the values that a checkpoint or an adapter must have, and which parameters of which layer it is made of.
struct CheckpointTensor {
  enum class Packing : std::uint8_t { kNone, kMxfp4 };

  std::string
      name{};  // as in the files, "model.layers.7.mlp.up_proj.weight"; of a packed one without "_blocks" and "_scales"
  std::vector<std::int64_t> shape{};  // as in the files; of a packed one, the numbers'
  // Place in the sequential model: 0 is the embedding, 1 to num_layers() are the decoder layers, num_layers() + 1 is
  // the head (final norm and LM head). A tied LM head has no tensor of its own.
  std::int64_t layer = 0;
  std::vector<TensorPart> parts{};  // together all of it, in order of their first rows
  bool is_of_all_experts =
      false;  // its first dimension is the expert, as that of its parameters; parts are rows of each expert
  bool is_transposed = false;  // its last two dimensions are [in, out]: rows are the last one
  Packing packing = Packing::kNone;

  [[nodiscard]] std::int64_t num_elements() const;
};

// All of them, in order of layer, where the files hold experts in this layout.
[[nodiscard]] std::vector<CheckpointTensor> checkpoint_tensors(const ModelConfig& config,
                                                               ExpertLayout layout = ExpertLayout::kEach);

// The names and shapes under which the files hold a tensor: one, or, of a packed one, blocks and scales.
struct StoredTensor {
  std::string name{};
  std::vector<std::int64_t> shape{};
};
[[nodiscard]] std::vector<StoredTensor> stored_tensors(const CheckpointTensor& tensor);

// Checks that `weights` holds exactly the tensors of `config`, in one layout of experts, each with its shape and a
// floating dtype that we read (F32, F16, BF16), or as bytes where it is packed. Two leftovers of old exporters are
// ignored: rotary_emb.inv_freq, and the LM head of a tied model if it has the embedding's shape and dtype
// (check_tied_head() of models/checkpoint.h compares the values). So are the tensors of a multimodal model's other
// parts. Throws rp::Error (kBadInput) naming the tensor, and the expected and the found shape.
void check_weights(const ModelConfig& config, const WeightFiles& weights);

// To be thrown: the LM head in the files of a tied model is not the embedding. REQUIRES: it is there.
[[nodiscard]] Error untied_head(const ModelConfig& config, const WeightFiles& weights, std::string_view difference);

}  // namespace rp
