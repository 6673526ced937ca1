// roundpipe/model.h
// The description of a sequential model: its layers, its tied parameters, and the dtype of the
// working weights.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "roundpipe/layer.h"

namespace rp {

// One of the places where a tied parameter is used.
struct ParameterUse {
  int layer = 0;          // counted from 0
  std::string parameter;  // its name within the layer
};

// The `inputs`, loss and arguments of one call before they are cut into microbatches, without
// packed lists and nested arguments.
struct CallContents {
  Tensors inputs;
  std::string loss;   // the name of the call's loss; empty for a forward pass only
  Tensors arguments;  // of the loss
};

// The description of a model. It is cheap: it allocates nothing and reads no weights. The same code
// creates it in every process, and its contents must not depend on the process.
class Model {
 public:
  Model() = default;
  // Takes the layers in the order in which they run.
  Model(std::initializer_list<LayerSpec> layers) : layers_(layers) {}
  explicit Model(std::vector<LayerSpec> layers) : layers_(std::move(layers)) {}

  // Appends a layer.
  Model& add(LayerSpec layer) {
    layers_.push_back(std::move(layer));
    return *this;
  }

  // Declares that two parameters of equal shape are one parameter. It is stored once, under the
  // name of the use in the lower layer, and has the initial value of that use. The gradients of its
  // uses are added in layer order. Throws rp::Error if a layer does not exist or both uses are in
  // the same layer. Shapes or names that do not match are reported by Session::start().
  Model& tie(ParameterUse first, ParameterUse second);

  // Sets the dtype in which the layers compute: at::kBFloat16, at::kHalf or at::kFloat (the
  // default). The optimizer's master weights are fp32 unless PipelineOptions::optimizer_dtype is
  // set. Inputs are not converted: pass floating-point inputs in this dtype.
  Model& set_dtype(at::ScalarType dtype) {
    dtype_ = dtype;
    return *this;
  }

  // Sets a function that the coordinator calls for each call, before it accepts the round. The
  // function checks what layers cannot check where they run, such as token ids on a GPU. If it
  // throws rp::Error, the call throws this error. It must be fast compared with a step.
  Model& set_check(std::function<void(const CallContents&)> check) {
    check_ = std::move(check);
    return *this;
  }

  // Sets an example of one microbatch, with the dtypes and shapes of future calls, and the name of
  // a loss if the calls have one. Before its first task, each worker on a GPU runs each kind of
  // layer on it once, forward and backward, with weights of zeros. Kernels are then loaded and
  // libraries initialised before other workers wait for this one. Without an example, this happens
  // in the first tasks. A layer that counts its calls counts these calls, too.
  Model& set_example(CallContents one_microbatch) {
    example_ = std::move(one_microbatch);
    return *this;
  }

  // Return what was described: layers(), in number num_layers(); ties(), in the order in which they
  // were declared; dtype(); check(), which may be empty; example(), which has no inputs if none was
  // set.
  [[nodiscard]] const std::vector<LayerSpec>& layers() const { return layers_; }
  [[nodiscard]] const std::vector<std::pair<ParameterUse, ParameterUse>>& ties() const { return ties_; }
  [[nodiscard]] at::ScalarType dtype() const { return dtype_; }
  [[nodiscard]] const std::function<void(const CallContents&)>& check() const { return check_; }
  [[nodiscard]] const CallContents& example() const { return example_; }
  [[nodiscard]] int num_layers() const { return static_cast<int>(layers_.size()); }

 private:
  std::vector<LayerSpec> layers_;
  std::vector<std::pair<ParameterUse, ParameterUse>> ties_;
  at::ScalarType dtype_ = at::kFloat;
  std::function<void(const CallContents&)> check_;
  CallContents example_;
};

}  // namespace rp
