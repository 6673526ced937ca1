// model_files/layer_tensors.h
// Lists the parameters of each layer of the sequential model that a config describes: embedding, decoder layers, head. Sizes,
// costs, the layers of models/ and those of `sim:` runs, which have shapes and no weights, come from here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model_files/model_config.h"

namespace rp {

// LoRA: each weight [out, in] gets a pair, "….lora_A.weight" [rank, in] and "….lora_B.weight" [out, rank].
struct LoraSettings {
  int rank = 0;  // 0: none, and all parameters are trained; else those of the pairs only
  // Whether experts and the router have pairs, each expert its own, or attention only (and the MLP where there are no
  // experts). In the published run of Qwen3-235B they have: docs/design/cost-model.md.
  bool on_experts = true;
};

struct LayerTensor {
  std::string name{};  // within its layer, as in checkpoints; the experts of a block lie in one tensor [expert, out, in]
  std::vector<std::int64_t> shape{};
  bool is_trained = true;
  int tied_group = -1;  // 0: the embedding and a tied LM head are one parameter; -1: not tied

  [[nodiscard]] std::int64_t num_elements() const;
};

struct LayerTensors {
  std::string name{};  // "embedding", "block", "head"
  std::vector<LayerTensor> tensors{};
};

// A linear layer of a decoder layer: a weight [out, in]; where it is the experts', one [num_experts, out, in], of which a token goes
// through `uses_per_token`.
struct LinearShape {
  std::string name{};
  std::int64_t out = 0;
  std::int64_t in = 0;
  bool has_bias = false;
  std::int64_t num_experts = 0;  // 0: it is not theirs
  std::int64_t uses_per_token = 1;
  bool is_expert_part = false;  // of experts or router
};
// In the order of the computation.
[[nodiscard]] std::vector<LinearShape> linears_of(const DecoderLayerConfig& layer, std::int64_t hidden);

// Of one layer of the sequential model: 0 is the embedding, num_layers() + 1 the head. Names within a layer are those of its tensors in checkpoints, behind the layer's own prefix.
[[nodiscard]] LayerTensors tensors_of_layer(const ModelConfig& config, std::int64_t layer, const LoraSettings& lora = {});

// Of all num_layers() + 2 layers.
[[nodiscard]] std::vector<LayerTensors> tensors_of(const ModelConfig& config, const LoraSettings& lora = {});

// Tied ones counted once; LoRA pairs count.
[[nodiscard]] std::int64_t num_parameters(const std::vector<LayerTensors>& layers);
[[nodiscard]] std::int64_t num_trained(const std::vector<LayerTensors>& layers);

}  // namespace rp
