// roundpipe/model.h
// A sequential model, described: a list of layers, which parameters are tied, and the dtype of the working weights.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "roundpipe/layer.h"

namespace rp {

// One of the places at which a tied parameter is used.
struct ParameterUse {
  int layer = 0;          // counted from 0
  std::string parameter;  // its name within the layer
};

// What one call gives a model, before it is cut into microbatches; without packed lists and nested arguments.
struct CallContents {
  Tensors inputs;     // as given
  std::string loss;   // the name of its loss; empty: a forward
  Tensors arguments;  // of the loss
};

// The description of a model. Cheap: nothing is allocated and no weight is read. Made by the same code in every
// process; what it says must not depend on the process.
class Model {
 public:
  Model() = default;
  // The layers in the order in which they run.
  Model(std::initializer_list<LayerSpec> layers) : layers_(layers) {}
  explicit Model(std::vector<LayerSpec> layers) : layers_(std::move(layers)) {}

  // Appends a layer.
  Model& add(LayerSpec layer) {
    layers_.push_back(std::move(layer));
    return *this;
  }

  // Says that two parameters of equal shape are one: it is stored once (under the name of the use in the lower layer),
  // its gradients are added in layer order, and the first use gives the initial value. Throws rp::Error if a layer does
  // not exist or is the same; a shape or name that does not fit is found by Session::start().
  Model& tie(ParameterUse first, ParameterUse second);

  // The dtype that the layers compute in: at::kBFloat16, at::kHalf or at::kFloat (the default). The optimizer's master
  // weights are fp32 unless PipelineOptions::optimizer_dtype says otherwise. Inputs are not cast: give floating-point
  // ones in this dtype.
  Model& set_dtype(at::ScalarType dtype) {
    dtype_ = dtype;
    return *this;
  }

  // A look at each call in the coordinator, before its round is accepted: for what layers cannot refuse where they run,
  // as a token id on a GPU. It throws rp::Error, which the call throws then; it must be quick beside a step.
  Model& set_check(std::function<void(const CallContents&)> check) {
    check_ = std::move(check);
    return *this;
  }

  // Gives an example of one microbatch, with the dtypes and shapes of the calls to come and the name of a loss if there
  // is one. Before its first task each worker on a GPU runs each kind of layer on it once, forward and backward, with
  // weights of zeros. Kernels are then loaded, and libraries set up, before other workers wait for this one. Without an
  // example the first tasks do that. A layer that counts its calls counts these, too.
  Model& set_example(CallContents one_microbatch) {
    example_ = std::move(one_microbatch);
    return *this;
  }

  // What was described: layers(), as many as num_layers(); ties() in the order in which they were said; dtype();
  // check(), which may be empty; example(), without inputs where there is none.
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
