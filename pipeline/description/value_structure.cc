#include "pipeline/description/value_structure.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/check.h"

namespace rp {

namespace {

using nlohmann::json;

constexpr int kTensor = 0;  // first element of an array, for what JSON has no type for
constexpr int kList = 1;

void collect(const Value& value, Tensors& tensors) {
  if (value.is_tensor()) tensors.push_back(value.tensor());
  if (value.is_list()) {
    for (const Value& element : value.list()) collect(element, tensors);
  }
  if (value.is_map()) {
    for (const auto& [_, element] : value.map()) collect(element, tensors);
  }
}

struct Encoder {
  json operator()(std::monostate) const { return nullptr; }
  json operator()(const at::Tensor&) const { return json::array({kTensor}); }
  json operator()(const Value::List& list) const {
    json result = json::array({kList});
    for (const Value& element : list) result.push_back(std::visit(*this, element.variant()));
    return result;
  }
  json operator()(const Value::Map& map) const {
    json result = json::object();
    for (const auto& [key, element] : map) result[key] = std::visit(*this, element.variant());
    return result;
  }
  template <typename T>
  json operator()(const T& plain) const {
    return plain;
  }
};

Value decode(const json& code, const Tensors& tensors, std::size_t& next) {
  switch (code.type()) {
    case json::value_t::boolean: return code.get<bool>();
    case json::value_t::number_integer:
    case json::value_t::number_unsigned: return code.get<std::int64_t>();
    case json::value_t::number_float: return code.get<double>();
    case json::value_t::string: return code.get<std::string>();
    case json::value_t::object: {
      Value::Map map;
      for (const auto& [key, element] : code.items()) map[key] = decode(element, tensors, next);
      return map;
    }
    case json::value_t::array: {
      if (code.at(0).get<int>() == kTensor) return tensors.at(next++);
      Value::List list;
      for (std::size_t i = 1; i < code.size(); ++i) list.push_back(decode(code[i], tensors, next));
      return list;
    }
    default: return {};
  }
}

}  // namespace

Tensors tensors_of(const Value& value) {
  Tensors tensors;
  collect(value, tensors);
  return tensors;
}

std::vector<std::byte> structure_of(const Value& value) {
  const bool is_plain = value.is_list() && std::all_of(value.list().begin(), value.list().end(),
                                                       [](const Value& element) { return element.is_tensor(); });
  if (is_plain) return {};
  const std::vector<std::uint8_t> code = json::to_cbor(std::visit(Encoder(), value.variant()));
  const auto* bytes = reinterpret_cast<const std::byte*>(code.data());
  return {bytes, bytes + code.size()};
}

Value value_of(std::span<const std::byte> structure, const Tensors& tensors) {
  if (structure.empty()) return tensors;
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(structure.data());
  std::size_t num_used = 0;
  Value value = decode(json::from_cbor(bytes, bytes + structure.size()), tensors, num_used);
  RP_ASSERT(num_used == tensors.size());
  return value;
}

}  // namespace rp
