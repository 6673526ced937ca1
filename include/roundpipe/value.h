// roundpipe/value.h
// Nested arguments of a call: lists and maps of tensors, numbers, booleans and strings.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "roundpipe/layer.h"

namespace rp {

// One of these: nothing, a tensor (absent if it is undefined), a boolean, an integer, a number, a
// text, a list, a map. If it is an argument of forward_backward(), its tensors are cut into
// microbatches, and the loss of each microbatch receives a value of the same structure. Everything
// else is passed to every microbatch unchanged.
//
//   pipe.forward_backward(inputs, rp::Value::Map{{"labels", labels},
//                                                 {"smoothing", 0.1},
//                                                 {"parts", rp::Value::List{a, b}}});
//
// The accessors throw rp::Error (kUsage), naming the actual kind of the value, if it is of another
// kind.
class Value {
 public:
  using List = std::vector<Value>;           // in order
  using Map = std::map<std::string, Value>;  // by name

  // Make nothing, or a value of one of the kinds.
  Value() = default;
  Value(at::Tensor tensor) : value_(std::move(tensor)) {}
  Value(bool boolean) : value_(boolean) {}
  Value(int integer) : value_(std::int64_t{integer}) {}
  Value(std::int64_t integer) : value_(integer) {}
  Value(double number) : value_(number) {}
  Value(const char* text) : value_(std::string(text)) {}
  Value(std::string text) : value_(std::move(text)) {}
  Value(List list) : value_(std::move(list)) {}
  Value(Map map) : value_(std::move(map)) {}
  // Makes a list of tensors.
  Value(const Tensors& tensors) : value_(List(tensors.begin(), tensors.end())) {}

  // Return whether the value is of a kind: is_nothing() (an argument that is left out), is_tensor()
  // (true also for an absent one), is_list(), is_map().
  [[nodiscard]] bool is_nothing() const { return std::holds_alternative<std::monostate>(value_); }
  [[nodiscard]] bool is_tensor() const { return std::holds_alternative<at::Tensor>(value_); }
  [[nodiscard]] bool is_list() const { return std::holds_alternative<List>(value_); }
  [[nodiscard]] bool is_map() const { return std::holds_alternative<Map>(value_); }

  // Return the value as one of the kinds: tensor(), boolean(), integer(), number() (an integer,
  // too), text(), list(), map().
  [[nodiscard]] const at::Tensor& tensor() const;
  [[nodiscard]] bool boolean() const;
  [[nodiscard]] std::int64_t integer() const;
  [[nodiscard]] double number() const;
  [[nodiscard]] const std::string& text() const;
  [[nodiscard]] const List& list() const;
  [[nodiscard]] const Map& map() const;
  // Returns the tensors of a list that contains only tensors.
  [[nodiscard]] Tensors tensors() const;

  // Return an element of a list, or of a map. Throw rp::Error (kUsage), naming the elements that
  // exist, if there is no such element.
  [[nodiscard]] const Value& at(std::size_t index) const;
  [[nodiscard]] const Value& at(const std::string& key) const;

  // For visitors: variant() returns the value as a Variant.
  using Variant = std::variant<std::monostate, at::Tensor, bool, std::int64_t, double, std::string, List, Map>;
  [[nodiscard]] const Variant& variant() const { return value_; }

 private:
  Variant value_;
};

}  // namespace rp
