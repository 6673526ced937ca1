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

// Returns a parameter as the store has it, without memory: bytes if the tensor is quantised, and
// otherwise in fp32 if it is a buffer, or in `dtype`.
[[nodiscard]] NamedParameter stored_parameter(const LayerTensor& tensor, at::ScalarType dtype);

// Makes and finds the parameters of a layer. They are placeholders until the runtime points them at
// weights, and are the same tensors for all that ask for them by name.
class LayerParameters {
 public:
  LayerParameters(const LayerTensors& layer, const LoraSettings& lora, at::ScalarType dtype);

  // Returns all parameters in the order of the layer's tensors.
  [[nodiscard]] const std::vector<NamedParameter>& all() const { return all_; }

  // Returns an undefined tensor if there is no parameter of this name. A quantised weight can be read
  // between begin_task() and end_task().
  [[nodiscard]] at::Tensor tensor(const std::string& name) const;

  // Expands the quantised weights, and releases what they were expanded to.
  void begin_task();
  void end_task();

  // Returns the weight, the bias and the LoRA pair of a linear layer, of which all but the weight
  // may be undefined.
  [[nodiscard]] LinearWeights linear(const std::string& name) const;

 private:
  // A weight that the store has quantised.
  struct Quantised {
    at::Tensor bytes;  // the parameter
    QuantisedShape shape;
    std::vector<std::int64_t> sizes;
    at::Tensor value;  // what the layer reads
  };

  const at::ScalarType dtype_;
  const LoraSettings lora_;
  std::vector<NamedParameter> all_;
  std::map<std::string, at::Tensor> by_name_;
  std::vector<Quantised> quantised_;
};

}  // namespace rp::models
