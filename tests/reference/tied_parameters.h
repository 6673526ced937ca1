// tests/reference/tied_parameters.h
// Which parameters of a model are one.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "roundpipe/model.h"

namespace rp::reference {

// Where a parameter stands: layer, name.
using Place = std::pair<int, std::string>;

// Of every tied parameter the first of those that are one with it.
inline std::map<Place, Place> first_uses(const Model& model) {
  std::map<Place, Place> first;
  for (const auto& [one, other] : model.ties()) {
    const Place a{one.layer, one.parameter}, b{other.layer, other.parameter};
    first.try_emplace(a, a);
    first.try_emplace(b, b);
    const auto [lower, higher] = std::minmax({first.at(a), first.at(b)});
    for (auto& [_, group] : first) {
      if (group == higher) group = lower;
    }
  }
  return first;
}

}  // namespace rp::reference
