// model_files/layer_tensors.h
// Lists the parameters of each layer of the sequential model that a config describes: embedding,
// decoder layers, head. Sizes and costs are derived from these lists, and so are the layers of
// models/ and those of `sim:` runs, which have shapes and no weights.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/quantised_weights.h"
#include "model_files/config/linear_shapes.h"
#include "model_files/config/model_config.h"
#include "roundpipe/trained_parts.h"

namespace rp {

// The name of the LM head's weight within the last layer. If the head is tied, the weight is the
// embedding's.
inline constexpr std::string_view kHeadTensor = "lm_head.weight";

struct LayerTensor {
  // Within its layer, as in checkpoints. All experts of a decoder layer are one tensor [expert,
  // out, in].
  std::string name{};
  std::vector<std::int64_t> shape{};
  bool is_trained = true;
  bool is_pair = false;        // of LoRA, and so in no checkpoint
  bool is_buffer = false;      // is no parameter: it has no gradient of the loss
  bool is_fp32 = false;        // whatever the model's dtype
  bool is_correction = false;  // of a router: a buffer that is trained by its own rule (TrainedParts::corrections)
  bool is_of_experts = false;  // its first dimension is the expert
  bool is_table = false;       // rows of it are gathered by token ids
  // Tensors of different layers with the same number are one parameter: 0 the embedding and a tied LM head, 1 the norm
  // of per-layer inputs. -1: not tied.
  int tied_group = -1;
  // The format in which the store has it, as bytes; nullopt: in the model's dtype.
  std::optional<WeightFormat> format{};
  std::optional<WeightFormat> file_format{};  // in which the files have it; nullopt: not quantised

  [[nodiscard]] std::int64_t num_elements() const;
  // REQUIRES: format has a value.
  [[nodiscard]] QuantisedShape quantised_shape() const;
  [[nodiscard]] std::int64_t quantised_bytes() const;
};

struct LayerTensors {
  std::string name{};  // "embedding", "block", "head"
  std::vector<LayerTensor> tensors{};

  // Returns nullptr if there is no tensor of this name.
  [[nodiscard]] const LayerTensor* find(std::string_view wanted) const;
};

// Returns the sizes of a quantised tensor of this shape. If its first dimension is the expert, each
// expert is a matrix.
[[nodiscard]] QuantisedShape quantised_shape(WeightFormat format, const std::vector<std::int64_t>& shape,
                                             bool is_of_experts);

// Returns the tensors of one layer of the sequential model: 0 is the embedding, num_layers() + 1
// the head. LoRA pairs follow the weight of their linear layer: "NAME.lora_A.weight" [rank, in],
// "NAME.lora_B.weight" [out, rank], and with DoRA "NAME.lora_magnitude_vector" [out]. For experts
// the shapes begin with the number of experts. Throws rp::Error (kUsage) for parts that
// PartSelection refuses.
[[nodiscard]] LayerTensors tensors_of_layer(const ModelConfig& config, std::int64_t layer,
                                            const TrainedParts& parts = {});

// Tensors of decoder layers that files have once, for the whole model. Each layer has a slice of two of them: its
// columns of the table [vocabulary, layers * width], and its rows of the weight of kPerLayerProjection, [layers *
// width, hidden]. The norm is one parameter of all layers.
inline constexpr std::string_view kPerLayerTable = "embed_tokens_per_layer.weight";
inline constexpr std::string_view kPerLayerNorm = "per_layer_projection_norm.weight";
[[nodiscard]] bool is_of_whole_model(std::string_view name);

// Returns the tensors of all num_layers() + 2 layers.
[[nodiscard]] std::vector<LayerTensors> tensors_of(const ModelConfig& config, const TrainedParts& parts = {});

// Returns the name of a layer's parameter or module in weight files, usually "model.layers.7."
// followed by `name`. Names of experts contain no expert number.
[[nodiscard]] std::string name_in_checkpoint(const ModelConfig& config, std::int64_t layer, const std::string& name);
[[nodiscard]] std::string embedding_in_checkpoint(const ModelConfig& config);
[[nodiscard]] std::string head_in_checkpoint(const ModelConfig& config);

// Returns the name in memory, which differs from the one in files for the text part of a multimodal
// model. Adapters use these names, and so does the selection of what is trained.
[[nodiscard]] std::string name_in_model(const ModelConfig& config, std::int64_t layer, const std::string& name);
[[nodiscard]] std::string embedding_in_model(const ModelConfig& config);
[[nodiscard]] std::string head_in_model(const ModelConfig& config);

// Return the number of elements. Tied parameters are counted once; LoRA pairs are included, buffers
// are not.
[[nodiscard]] std::int64_t num_parameters(const std::vector<LayerTensors>& layers);
[[nodiscard]] std::int64_t num_trained(const std::vector<LayerTensors>& layers);

}  // namespace rp
