// roundpipe/loss.h
// The user's loss function.
#pragma once

#include <functional>
#include <string>
#include <type_traits>
#include <utility>

#include "roundpipe/layer.h"

namespace rp {

// A named loss: (outputs of the last layer, arguments of the call) of one microbatch -> a scalar. A round's loss is the
// sum over its microbatches, so divide by numbers of the whole step, which travel as arguments of the call. Runs in a
// worker right after the last layer; it may throw.
struct Loss {
  std::string name;
  std::function<at::Tensor(const Tensors& outputs, const Tensors& arguments)> function;
};

// A loss of one output and one label tensor, as a lambda (Tensor, Tensor) -> Tensor; or one that takes lists.
template <typename Function>
[[nodiscard]] Loss loss(std::string name, Function function) {
  if constexpr (std::is_invocable_v<Function, const Tensors&, const Tensors&>) {
    return {std::move(name), std::move(function)};
  } else {
    return {std::move(name), [function = std::move(function)](const Tensors& outputs, const Tensors& arguments) {
              return function(outputs.at(0), arguments.at(0));
            }};
  }
}

}  // namespace rp
