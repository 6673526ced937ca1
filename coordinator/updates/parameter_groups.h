// coordinator/updates/parameter_groups.h
// Which parts of the weight groups belong to which of a step's groups of parameters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "hoststore/catalogue.h"
#include "roundpipe/optimizer.h"

namespace rp {

// Elements [begin, end) of a weight group, which belong to a parameter group.
struct ParameterGroupSpan {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t group = 0;  // the parameter group's number
  bool operator==(const ParameterGroupSpan&) const = default;
};

// For each trained weight group of a pipeline the spans that cover it, in order.
using ParameterGroupSpans = std::map<std::uint32_t, std::vector<ParameterGroupSpan>>;

// Asks the parameter groups for every trained parameter. Throws rp::Error (kUsage) naming a parameter that none
// contains.
[[nodiscard]] ParameterGroupSpans group_parameters(const Catalogue& catalogue, int pipeline,
                                                   const std::vector<ParameterGroup>& groups);

}  // namespace rp
