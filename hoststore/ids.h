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

// Numbers a slot in the order of dispatch, from the start of the run.
using SlotNumber = StrongNumber<struct SlotNumberTag, std::uint64_t>;

// Numbers an event of a worker (Command::first_event), from the start of the run.
using EventNumber = StrongNumber<struct EventNumberTag, std::uint64_t>;

// Identifies a slot or an event by its number and the epoch that it belongs to. The epoch is in the high bits of
// value(), so values of a later epoch are larger, and values of different epochs are never equal. In shared memory it
// has the format of std::uint64_t.
template <typename Number>
class InEpoch {
 public:
  using ShmFormat = void;
  static constexpr int kEpochShift = 48;

  constexpr InEpoch() = default;
  constexpr InEpoch(Epoch epoch, Number number) : value_(epoch.value() << kEpochShift | number.value()) {}
  // `value`: from value().
  constexpr explicit InEpoch(std::uint64_t value) : value_(value) {}

  [[nodiscard]] constexpr std::uint64_t value() const { return value_; }
  [[nodiscard]] constexpr Epoch epoch() const { return Epoch(value_ >> kEpochShift); }
  [[nodiscard]] constexpr Number number() const { return Number(value_ & ((std::uint64_t{1} << kEpochShift) - 1)); }

  constexpr auto operator<=>(const InEpoch&) const = default;

 private:
  std::uint64_t value_ = 0;
};
using SlotInEpoch = InEpoch<SlotNumber>;
using EventInEpoch = InEpoch<EventNumber>;

}  // namespace rp
