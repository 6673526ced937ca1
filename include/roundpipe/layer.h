// roundpipe/layer.h
// What a model is made of: layers, given as factories so that no process ever holds the whole model.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace rp {

// What crosses a border between two layers: an ordered list of tensors, each possibly absent (undefined).
using Tensors = std::vector<at::Tensor>;

// A parameter of a layer: its `name` within the layer and its `value`, the leaf tensor that the layer's forward reads.
// One that does not require a gradient is frozen: it is neither updated nor does it take memory for gradients and
// optimizer state.
struct NamedParameter {
  std::string name;  // as "linear.weight"
  at::Tensor value;
};

// A buffer of a layer, as BatchNorm's running statistics: its `name` within the layer and its `value`, a tensor of any
// dtype that forward() reads, and in training may change in place, but that no optimizer updates.
struct NamedBuffer {
  std::string name;
  at::Tensor value;
};

// One element of the sequential model while it lives in a process. Made by the LayerSpec's factory, owned by the
// runtime, used by one thread at a time.
//
// A layer that is read from files constructs its parameters as placeholders (see placeholder()): the right shape and
// dtype without memory. The runtime points each parameter at its weights (`set_data`) before it calls forward().
class Layer {
 public:
  virtual ~Layer() = default;

  // The parameters, always the same leaves in the same order.
  [[nodiscard]] virtual std::vector<NamedParameter> parameters() = 0;

  // The buffers, always the same tensors in the same order. In training each microbatch of a round finds them as the
  // one before left them, though a forward may run twice; an evaluation changes nothing.
  [[nodiscard]] virtual std::vector<NamedBuffer> buffers() { return {}; }

  // Whether the next forward() is part of training or of an evaluation, as for dropout.
  virtual void train(bool on) { (void)on; }

  // Runs the layer on one microbatch. Output shapes are free. The inputs must stay as they are. May throw: the
  // exception reaches the user's call as a WorkerError that names stage, layer and microbatch.
  [[nodiscard]] virtual Tensors forward(const Tensors& inputs) = 0;
};

// A tensor of this shape and dtype that takes no memory: one element, expanded with zero strides.
[[nodiscard]] at::Tensor placeholder(at::IntArrayRef shape, at::ScalarType dtype);

// What a layer costs for one microbatch; opaque to programs.
struct LayerCost;

// One layer of a model as it is described, before any process builds it.
struct LayerSpec {
  // What it is, as "DecoderLayer 7"; part of the fingerprint that all processes compare.
  std::string name;
  // A hash of the factory's arguments, as far as they can be hashed; part of the fingerprint.
  std::uint64_t arguments_hash = 0;
  // Builds the layer. Called twice in the coordinator, for the description and for initial values, and in each worker
  // at most once, when a stage first needs it.
  std::function<std::unique_ptr<Layer>()> make;
  // Writes the initial value of the named parameter into `value` (fp32, the parameter's shape; coordinator only). Empty
  // for a layer whose factory fills its parameters, as torch::nn modules do.
  std::function<void(const std::string& parameter, const at::Tensor& value)> initialize;
  // The relative cost of a forward, for the plan of the first rounds; later plans use measured times. Either all layers
  // give one or none does: 0 takes the bytes of the parameters.
  double forward_cost = 0;
  // Of models::emulated(): what an emulated device (--device sim:NAME) goes by. Null: nobody knows.
  std::shared_ptr<const LayerCost> cost;
};

}  // namespace rp
