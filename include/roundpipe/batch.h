// roundpipe/batch.h
// The tensors that a call takes and returns, and the rules by which they are cut into microbatches
// and joined again.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "roundpipe/layer.h"
#include "roundpipe/value.h"

namespace rp {

// The outputs of a round, stored where the workers wrote them: one list of tensors for each
// microbatch. Given to another pipeline as inputs or arguments, they need not be returned to the
// caller in between, and no thread waits for them. Copyable; all copies refer to the same outputs,
// which occupy memory of the host store until the last copy is destroyed. Must be used while its
// Pipeline exists.
class PackedTensors {
 public:
  // Returns the number of microbatches of the round that computed the outputs.
  [[nodiscard]] int num_microbatches() const;

  // Returns copies of the tensors of one microbatch. Blocks until they have been computed. Throws
  // WorkerError if the round failed, and rp::Error (kUsage) if there is no such microbatch or the
  // session has ended.
  [[nodiscard]] Tensors microbatch(int index) const;

  struct State;
  // The constructor and state() are for the library itself.
  explicit PackedTensors(std::shared_ptr<State> state) : state_(std::move(state)) {}
  [[nodiscard]] const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

// The tensors of a call: a list of tensors (on the CPU; undefined ones stay absent), which is cut
// into microbatches, followed by the tensors of packed lists, which are already cut and must have
// the same number of microbatches. Arguments of a loss may be a nested value instead.
struct Batch {
  Batch() = default;
  // Converts from one tensor, a list of tensors, or (below) packed outputs of another round.
  Batch(at::Tensor tensor) : tensors{std::move(tensor)} {}
  Batch(Tensors list) : tensors(std::move(list)) {}
  Batch(std::initializer_list<at::Tensor> list) : tensors(list) {}
  // Converts from nested arguments of a loss. Split counts their tensors in order (in a map, in the
  // order of its keys).
  Batch(Value nested_arguments) : nested(std::move(nested_arguments)) {}
  Batch(Value::Map map) : nested(std::move(map)) {}
  Batch(Value::List list) : nested(std::move(list)) {}
  Batch(PackedTensors list) : packed{std::move(list)} {}
  // Converts from a list of tensors followed by packed outputs.
  Batch(Tensors list, std::vector<PackedTensors> packed_lists)
      : tensors(std::move(list)), packed(std::move(packed_lists)) {}

  // The tensors to be cut. Dimension 0 is the batch unless a Split names another dimension.
  Tensors tensors;
  // Lists that are already cut. In each microbatch their tensors follow those of `tensors`.
  std::vector<PackedTensors> packed;
  std::optional<Value> nested;  // if set, `tensors` and `packed` must be empty
};

// The rule by which the tensors of a Batch are cut. By default they are cut along dimension 0 into
// parts whose sizes differ by at most one, the larger ones first. A tensor without dimensions is
// passed to every microbatch whole.
struct Split {
  // In `dimensions`: the tensor is passed to every microbatch whole.
  static constexpr int kWhole = -1;

  // For each tensor the dimension along which it is cut, or kWhole. Empty: the default.
  std::vector<int> dimensions{};
  // If set, used instead of `dimensions`: returns the lists of tensors of all microbatches. It must
  // return `num_microbatches` lists of equal length. Not allowed for inputs that require gradients.
  std::function<std::vector<Tensors>(const Tensors& tensors, int num_microbatches)> function{};
};

// The rule by which the outputs of the microbatches become one list. By default floating-point
// scalars are averaged, other scalars must be equal, and all other tensors are concatenated along
// dimension 0.
struct Merge {
  // For each tensor the dimension along which it is concatenated. Empty: the default. Ignored for
  // scalars.
  std::vector<int> dimensions{};
  // If set, used instead of `dimensions`: receives the lists of all microbatches. Not allowed for
  // outputs with gradients.
  std::function<Tensors(const std::vector<Tensors>& microbatches)> function{};
};

}  // namespace rp
