// roundpipe/loss.h
// The user's loss function.
#pragma once

#include <functional>
#include <string>
#include <type_traits>
#include <utility>

#include "roundpipe/layer.h"
#include "roundpipe/value.h"

namespace rp {

// A named loss: (outputs of the last layer, arguments of the call) of one microbatch -> one or several scalars, at
// most 7. The backward runs from their sum. A round's losses are the sums over its microbatches, so divide by numbers
// of the whole step, which travel as arguments of the call. Runs in a worker right after the last layer; it may throw.
struct Loss {
  // For messages, and for a call that chooses between several (CallOptions::loss).
  std::string name;
  // The outputs and the arguments of the microbatch in (arguments that were given as tensors are a list of them); each
  // scalar that it gives is one number of RoundResult::losses().
  std::function<Tensors(const Tensors& outputs, const Value& arguments)> function;
};

// A loss of one output and one label tensor, as a lambda (Tensor, Tensor) -> Tensor; of lists, (Tensors, Tensors); or
// of nested arguments, (Tensors, Value) or (Tensor, Value). Each may give a list.
template <typename Function>
[[nodiscard]] Loss loss(std::string name, Function function) {
  return {std::move(name), [function = std::move(function)](const Tensors& outputs, const Value& arguments) -> Tensors {
            if constexpr (std::is_invocable_v<const Function&, const Tensors&, const Value&>) {
              return {function(outputs, arguments)};
            } else if constexpr (std::is_invocable_v<const Function&, const Tensors&, const Tensors&>) {
              return {function(outputs, arguments.tensors())};
            } else if constexpr (std::is_invocable_v<const Function&, const at::Tensor&, const Value&>) {
              return {function(outputs.at(0), arguments)};
            } else {
              return {function(outputs.at(0), arguments.at(0).tensor())};
            }
          }};
}

}  // namespace rp
