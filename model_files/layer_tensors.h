// model_files/layer_tensors.h
// Lists the parameters of each layer of the sequential model that a config describes: embedding, decoder layers, head.
// Sizes, costs, the layers of models/ and those of `sim:` runs, which have shapes and no weights, come from here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model_files/config/linear_shapes.h"
#include "model_files/config/model_config.h"
#include "roundpipe/trained_parts.h"

namespace rp {

// The LM head's weight, within the last layer. A tied one is the embedding's.
inline constexpr std::string_view kHeadTensor = "lm_head.weight";

struct LayerTensor {
  std::string name{};  // within its layer, as in checkpoints; the experts of a decoder layer lie in one tensor [expert,
                       // out, in]
  std::vector<std::int64_t> shape{};
  bool is_trained = true;
  bool is_pair = false;  // of LoRA: it is in no checkpoint
  int tied_group = -1;   // 0: the embedding and a tied LM head are one parameter; -1: not tied

  [[nodiscard]] std::int64_t num_elements() const;
};

struct LayerTensors {
  std::string name{};  // "embedding", "block", "head"
  std::vector<LayerTensor> tensors{};

  // nullptr: there is none of this name.
  [[nodiscard]] const LayerTensor* find(std::string_view name) const;
};

// Of one layer of the sequential model: 0 is the embedding, num_layers() + 1 the head. Pairs of LoRA stand behind the
// weight of their linear layer: "NAME.lora_A.weight" [rank, in], "NAME.lora_B.weight" [out, rank], with DoRA
// "NAME.lora_magnitude_vector" [out]; of experts, with their number in front. Throws rp::Error (kUsage) for what
// PartSelection refuses.
[[nodiscard]] LayerTensors tensors_of_layer(const ModelConfig& config, std::int64_t layer,
                                            const TrainedParts& parts = {});

// Of all num_layers() + 2 layers.
[[nodiscard]] std::vector<LayerTensors> tensors_of(const ModelConfig& config, const TrainedParts& parts = {});

// What a parameter, or a module, of a layer is called in weight files: "model.layers.7." and its name, as a rule.
// Experts have no number in it.
[[nodiscard]] std::string name_in_checkpoint(const ModelConfig& config, std::int64_t layer, const std::string& name);
[[nodiscard]] std::string embedding_in_checkpoint(const ModelConfig& config);
[[nodiscard]] std::string head_in_checkpoint(const ModelConfig& config);

// The same in memory, which for the text part of a multimodal model differs: by these names go adapters, and what is to
// be trained.
[[nodiscard]] std::string name_in_model(const ModelConfig& config, std::int64_t layer, const std::string& name);
[[nodiscard]] std::string embedding_in_model(const ModelConfig& config);
[[nodiscard]] std::string head_in_model(const ModelConfig& config);

// Tied ones counted once; LoRA pairs count.
[[nodiscard]] std::int64_t num_parameters(const std::vector<LayerTensors>& layers);
[[nodiscard]] std::int64_t num_trained(const std::vector<LayerTensors>& layers);

}  // namespace rp
