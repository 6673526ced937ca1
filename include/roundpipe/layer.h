// roundpipe/layer.h
// The elements of a model: layers, which are described by factories so that no process ever holds
// the whole model.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace rp {

// The data between two layers: an ordered list of tensors, each of which may be absent (undefined).
using Tensors = std::vector<at::Tensor>;

// A parameter of a layer: its `name` within the layer, and its `value`, the leaf tensor that the
// layer's forward() reads. A parameter that does not require a gradient is frozen: it is not
// updated, and needs no memory for gradients and optimizer state.
struct NamedParameter {
  std::string name;  // such as "linear.weight"
  at::Tensor value;
  // The parameter is stored in the dtype of `value`, which may be any, and not in the model's. Only
  // for frozen parameters and corrections.
  bool keeps_dtype = false;
  // The parameter is the correction of a router, which balances the loads of its experts: a step adds
  // StepOptions::router_bias_update_rate to each element whose load is below the mean, and subtracts
  // it where the load is above. Its gradient must be the loads: the number of tokens of the microbatch
  // that chose each expert. No rule, norm, clipping or loss scale applies to it. It has one dimension
  // and at most 65,536 elements, requires a gradient, is fp32, keeps its dtype, and is not tied.
  bool is_correction = false;
};

// A buffer of a layer, such as BatchNorm's running statistics: its `name` within the layer, and its
// `value`, a tensor of any dtype. forward() reads it and, in training, may change it in place; no
// optimizer updates it.
struct NamedBuffer {
  std::string name;
  at::Tensor value;
};

// One element of the sequential model, as it exists in a process. Created by the LayerSpec's
// factory, owned by the runtime, used by one thread at a time.
//
// A layer that is read from files creates its parameters as placeholders (see placeholder()), which
// have the right shape and dtype but no memory. The runtime points each parameter at its weights
// (`set_data`) before it calls forward().
class Layer {
 public:
  virtual ~Layer() = default;

  // Returns the parameters: always the same leaves in the same order.
  [[nodiscard]] virtual std::vector<NamedParameter> parameters() = 0;

  // Returns the buffers: always the same tensors in the same order. In training each microbatch of
  // a round finds them as the previous microbatch left them, although forward() may run twice for a
  // microbatch. An evaluation does not change them.
  [[nodiscard]] virtual std::vector<NamedBuffer> buffers() { return {}; }

  // Selects whether the next forward() is part of training or of an evaluation, as for dropout.
  virtual void train(bool on) { (void)on; }

  // Called in a worker before the first forward() of a task, when the parameters point at their
  // weights. Until end_task() a layer may keep what depends on its weights alone, such as weights that
  // it has expanded from fewer bits.
  virtual void begin_task() {}
  // Called when the task does not need the weights any more. If a task failed or was abandoned, this
  // is called before the next task begins.
  virtual void end_task() {}

  // Runs the layer on one microbatch and returns its outputs, whose shapes may differ from call to
  // call. Must not change the inputs. May throw: the exception reaches the user's call as a
  // WorkerError that names the stage, layer and microbatch.
  [[nodiscard]] virtual Tensors forward(const Tensors& inputs) = 0;
};

// Returns a tensor of this shape and dtype that needs no memory: one element, expanded with zero
// strides. It requires a gradient if the dtype is a floating one.
[[nodiscard]] at::Tensor placeholder(at::IntArrayRef shape, at::ScalarType dtype);

// The cost of a layer for one microbatch. Opaque to programs.
struct LayerCost;

// The description of a layer of a model, from which each process can build the layer.
struct LayerSpec {
  // The kind of layer, such as "DecoderLayer 7". Part of the fingerprint that all processes
  // compare.
  std::string name;
  // A hash of all arguments of the factory that can be hashed. Part of the fingerprint.
  std::uint64_t arguments_hash = 0;
  // Builds the layer. Called twice in the coordinator, for the description and for the initial
  // values, and at most once in each worker, when a stage first needs the layer.
  std::function<std::unique_ptr<Layer>()> make;
  // Writes the initial value of the named parameter to `value`, which has the parameter's shape, and
  // is fp32 unless the parameter keeps its dtype.
  // Called in the coordinator only. Empty for a layer whose factory fills its parameters, as that
  // of a torch::nn module does.
  std::function<void(const std::string& parameter, const at::Tensor& value)> initialize;
  // The relative cost of a forward pass, for the plan of the first rounds; later plans use measured
  // times. 0 stands for the bytes of the layer's parameters. Either all layers of a model or none
  // should have a cost.
  double forward_cost = 0;
  // The cost by which an emulated device (--device sim:NAME) computes times; set by
  // models::emulated(). Null: not known.
  std::shared_ptr<const LayerCost> cost;
};

}  // namespace rp
