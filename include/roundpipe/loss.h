// roundpipe/loss.h
// The user's loss function.
#pragma once

#include <functional>
#include <string>
#include <type_traits>
#include <utility>

#include "roundpipe/layer.h"

namespace rp {

// A named loss: (outputs of the last layer, arguments of the call) of one microbatch -> one or several scalars, at most 7.
// The backward runs from their sum. A round's losses are the sums over its microbatches, so divide by numbers of the
// whole step, which travel as arguments of the call. Runs in a worker right after the last layer; it may throw.
struct Loss {
  std::string name;
  std::function<Tensors(const Tensors& outputs, const Tensors& arguments)> function;
};

// A loss of one output and one label tensor, as a lambda (Tensor, Tensor) -> Tensor; or one that takes lists. Either may
// give a list.
template <typename Function>
[[nodiscard]] Loss loss(std::string name, Function function) {
  return {std::move(name), [function = std::move(function)](const Tensors& outputs, const Tensors& arguments) -> Tensors {
            if constexpr (std::is_invocable_v<const Function&, const Tensors&, const Tensors&>) {
              return {function(outputs, arguments)};
            } else {
              return {function(outputs.at(0), arguments.at(0))};
            }
          }};
}

}  // namespace rp
