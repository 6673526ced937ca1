// tests/reference/tied_parameters.h
// Finds the parameters of a model that are tied to each other.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "roundpipe/model.h"

namespace rp::reference {

// The layer and the name of a parameter.
using Place = std::pair<int, std::string>;

// Returns, for each tied parameter, the first of the parameters that are tied to it.
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
