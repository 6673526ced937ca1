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

// A named loss: a function of the outputs of the last layer and the arguments of the call, both of
// one microbatch, that returns 1 to 7 scalars. The backward pass starts from the sum of the
// scalars. The losses of a round are sums over its microbatches, so divide by numbers that describe
// the whole step, and pass these as arguments of the call. Runs in a worker directly after the last
// layer. May throw.
struct Loss {
  // Used in messages, and by calls that choose one of several losses (CallOptions::loss).
  std::string name;
  // Computes the loss from the outputs and the arguments of a microbatch. Arguments that the caller
  // gave as tensors arrive as a list of tensors. Each scalar that it returns is one number of
  // RoundResult::losses().
  std::function<Tensors(const Tensors& outputs, const Value& arguments)> function;
};

// Makes a Loss from a function of one output and one label tensor, (Tensor, Tensor) -> Tensor; of
// lists of tensors, (Tensors, Tensors); or of nested arguments, (Tensors, Value) or (Tensor,
// Value). Each of them may return a list instead of a tensor.
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
