// roundpipe/batch.h
// What a call is given and what it gives back: tensors that are cut into microbatches and put together again.
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

// The outputs of a round where the workers put them: a list of tensors for each microbatch. Given to another pipeline
// they need not come back in between, and nobody waits for them. Copyable; all copies mean the same outputs, which take
// memory of the host store until the last copy is gone. Used while its Pipeline lives.
class PackedTensors {
 public:
  // As many as the round had that made them.
  [[nodiscard]] int num_microbatches() const;

  // The tensors of one microbatch, as copies. Waits for them. Throws WorkerError if the round failed, rp::Error
  // (kUsage) for an index that does not exist and after the end of the session.
  [[nodiscard]] Tensors microbatch(int index) const;

  struct State;
  // PackedTensors and state(): for the library itself.
  explicit PackedTensors(std::shared_ptr<State> state) : state_(std::move(state)) {}
  [[nodiscard]] const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

// A list of tensors (on the CPU; undefined ones stay absent) that is cut into microbatches, followed by the tensors of
// packed lists, which are cut already and must have as many microbatches.
struct Batch {
  Batch() = default;
  // From what a call has at hand: one tensor, a list, packed outputs of another round, or a list and packed ones behind
  // it.
  Batch(at::Tensor tensor) : tensors{std::move(tensor)} {}
  Batch(Tensors list) : tensors(std::move(list)) {}
  Batch(std::initializer_list<at::Tensor> list) : tensors(list) {}
  // Arguments of a loss that are more than a list of tensors. Their tensors are numbered in order (maps by key) for
  // Split.
  Batch(Value nested_arguments) : nested(std::move(nested_arguments)) {}
  Batch(Value::Map map) : nested(std::move(map)) {}
  Batch(Value::List list) : nested(std::move(list)) {}
  Batch(PackedTensors list) : packed{std::move(list)} {}
  Batch(Tensors list, std::vector<PackedTensors> packed_lists)
      : tensors(std::move(list)), packed(std::move(packed_lists)) {}

  // What is cut; dimension 0 is the batch, unless a Split says otherwise.
  Tensors tensors;
  // What is cut already; its tensors follow those of `tensors` in each microbatch.
  std::vector<PackedTensors> packed;
  std::optional<Value> nested;  // instead of both
};

// How the tensors of a Batch are cut. By default along dimension 0, into parts as equal as possible, the first ones
// larger by one; what has no dimensions goes to all microbatches whole.
struct Split {
  // A tensor that all microbatches get whole.
  static constexpr int kWhole = -1;

  // For each tensor the dimension that is cut, or kWhole; empty: the default.
  std::vector<int> dimensions{};
  // Instead: gives the lists of all microbatches. It must give `num_microbatches` lists of equal length. Not for inputs
  // that require gradients.
  std::function<std::vector<Tensors>(const Tensors& tensors, int num_microbatches)> function{};
};

// How the outputs of the microbatches become one list. By default floating-point scalars are averaged, other scalars
// must be equal, and the rest is concatenated along dimension 0.
struct Merge {
  // For each tensor the dimension along which it is concatenated; empty: the default. Scalars ignore it.
  std::vector<int> dimensions{};
  // Instead: gets the lists of all microbatches. Not for outputs with gradients.
  std::function<Tensors(const std::vector<Tensors>& microbatches)> function{};
};

}  // namespace rp
