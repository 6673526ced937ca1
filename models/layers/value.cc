#include "roundpipe/value.h"

#include <array>

#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

constexpr std::array<const char*, 8> kNames = {"nothing",  "a tensor", "a boolean", "an integer",
                                               "a number", "a text",   "a list",    "a map"};

[[noreturn]] void refuse(const Value& value, const char* wanted) {
  throw Error(ExitCode::kUsage, cat("an argument of the call is ", kNames[value.variant().index()], ", not ", wanted));
}

template <typename T>
const T& get(const Value& value, const char* wanted) {
  if (const T* held = std::get_if<T>(&value.variant())) return *held;
  refuse(value, wanted);
}

}  // namespace

const at::Tensor& Value::tensor() const { return get<at::Tensor>(*this, "a tensor"); }
bool Value::boolean() const { return get<bool>(*this, "a boolean"); }
std::int64_t Value::integer() const { return get<std::int64_t>(*this, "an integer"); }
const std::string& Value::text() const { return get<std::string>(*this, "a text"); }
const Value::List& Value::list() const { return get<List>(*this, "a list"); }
const Value::Map& Value::map() const { return get<Map>(*this, "a map"); }

double Value::number() const {
  if (const auto* integer = std::get_if<std::int64_t>(&value_)) return static_cast<double>(*integer);
  return get<double>(*this, "a number");
}

Tensors Value::tensors() const {
  Tensors result;
  for (const Value& value : list()) result.push_back(value.tensor());
  return result;
}

const Value& Value::at(std::size_t index) const {
  const List& values = list();
  if (index < values.size()) return values[index];
  throw Error(ExitCode::kUsage, cat("the arguments of the call have no number ", index, ": the list has ",
                                    values.size(), ", counted from 0"));
}

const Value& Value::at(const std::string& key) const {
  const Map& values = map();
  const auto found = values.find(key);
  if (found != values.end()) return found->second;
  std::vector<std::string> keys;
  for (const auto& [name, _] : values) keys.push_back(name);
  throw Error(ExitCode::kUsage, cat("the arguments of the call have no '", key, "'", did_you_mean(key, keys)));
}

}  // namespace rp
