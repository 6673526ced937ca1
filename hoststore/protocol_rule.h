// hoststore/protocol_rule.h
// The rules between processes that a run with --check-consistency verifies, and the error of a run that broke one
// (docs/design/consistency-checker.md).
#pragma once

#include <string>

#include "roundpipe/error.h"

namespace rp {

enum class ProtocolRule {
  kPublishedWeights,     // a version is read from its working copy, after it was published
  kWeightsStay,          // a working copy is not overwritten while a task may read it
  kSameWeights,          // all tasks of a round compute with the same weights
  kDataBeforeEvent,      // an event is published after its data, and a block is read after its event
  kBlocksStay,           // a block is not freed or written before its last reader is committed
  kGradientsStay,        // a gradient is there before its completion, and as it is until it was taken
  kWaitsPointBackwards,  // a task reads what earlier slots made
  kSlotOrder,            // a worker gets its tasks in slot order
  kEpoch,                // what another epoch made is not taken for this one's
};

// The rule in words.
[[nodiscard]] const char* rule_text(ProtocolRule rule);

// `found` says what was seen where. An error of the runtime's own, never of its user's.
[[nodiscard]] Error violation_of(ProtocolRule rule, const std::string& found);

}  // namespace rp
