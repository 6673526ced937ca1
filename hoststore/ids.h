// hoststore/ids.h
// Defines the types of the numbers by which processes refer to things in the host store.
#pragma once

#include <cstdint>

#include "common/strong_number.h"

namespace rp {

// Numbers a weight group: its index in Catalogue::weight_groups().
using GroupId = StrongNumber<struct GroupIdTag, std::uint32_t>;

// Numbers a use of a weight group by a layer: its index in Catalogue::uses().
using UseId = StrongNumber<struct UseIdTag, std::uint32_t>;

// Numbers a layer in the catalogue, which counts the layers of all pipelines in one numbering. The number of a layer
// within its pipeline is a plain int.
using CatalogueLayer = StrongNumber<struct CatalogueLayerTag, std::uint32_t>;

// Numbers the versions of a pipeline's weights, each of which is the result of a step. Versions only grow, also when a
// state is loaded.
using Version = StrongNumber<struct VersionTag, std::uint64_t>;

// Numbers an epoch, which ends when the coordinator discards work in progress and starts again.
using Epoch = StrongNumber<struct EpochTag, std::uint64_t>;

}  // namespace rp
