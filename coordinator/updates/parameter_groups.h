// coordinator/updates/parameter_groups.h
// Assigns the parts of weight groups to the parameter groups of a step.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "hoststore/catalogue.h"
#include "roundpipe/optimizer.h"

namespace rp {

// Elements [begin, end) of a weight group, which all belong to one parameter group.
struct ParameterGroupSpan {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t group = 0;  // the number of the parameter group
  bool operator==(const ParameterGroupSpan&) const = default;
};

// For each trained weight group of a pipeline that is no correction, the spans that cover it, in order.
using ParameterGroupSpans = std::map<GroupId, std::vector<ParameterGroupSpan>>;

// Assigns every trained parameter, except corrections, to the first parameter group that contains it. Throws rp::Error
// (kUsage) naming a parameter that no group contains.
[[nodiscard]] ParameterGroupSpans group_parameters(const Catalogue& catalogue, int pipeline,
                                                   const std::vector<ParameterGroup>& groups);

}  // namespace rp
