// coordinator/updates/parameter_groups.h
// Which parts of the weight blocks belong to which of a step's groups of parameters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "hoststore/catalogue.h"
#include "roundpipe/optimizer.h"

namespace rp {

// Elements [begin, end) of a block.
struct GroupSpan {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t group = 0;
  bool operator==(const GroupSpan&) const = default;
};

// For each trained block of a pipeline the spans that cover it, in order.
using GroupSpans = std::map<std::uint32_t, std::vector<GroupSpan>>;

// Asks the groups for every trained parameter. Throws rp::Error (kUsage) naming a parameter that no group contains.
[[nodiscard]] GroupSpans group_parameters(const Catalogue& catalogue, int pipeline, const std::vector<ParameterGroup>& groups);

}  // namespace rp
