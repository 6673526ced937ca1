// models/layer_parameters.h
// The parameters of one layer, by name.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "model_files/layer_tensors.h"
#include "models/layers/linear.h"
#include "roundpipe/layer.h"
#include "roundpipe/trained_parts.h"

namespace rp::models {

// Makes and finds the parameters of a layer. They are placeholders until the runtime points them at
// weights, and are the same tensors for all that ask for them by name.
class LayerParameters {
 public:
  LayerParameters(const LayerTensors& layer, const LoraSettings& lora, at::ScalarType dtype);

  // Returns all parameters in the order of the layer's tensors.
  [[nodiscard]] const std::vector<NamedParameter>& all() const { return all_; }

  // Returns an undefined tensor if there is no parameter of this name.
  [[nodiscard]] at::Tensor tensor(const std::string& name) const;

  // Returns the weight, the bias and the LoRA pair of a linear layer, of which all but the weight
  // may be undefined.
  [[nodiscard]] LinearWeights linear(const std::string& name) const;

 private:
  const LoraSettings lora_;
  std::vector<NamedParameter> all_;
  std::map<std::string, at::Tensor> by_name_;
};

}  // namespace rp::models
