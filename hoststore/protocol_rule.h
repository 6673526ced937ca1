// hoststore/protocol_rule.h
// Lists the rules between processes that a run with --check-consistency verifies, and makes the
// error that reports a broken rule (docs/design/consistency-checker.md).
#pragma once

#include <string>

#include "roundpipe/error.h"

namespace rp {

enum class ProtocolRule {
  kPublishedWeights,     // a version is read from its working copy after it was published
  kWeightsStay,          // a working copy is not overwritten while a task may read it
  kSameWeights,          // all tasks of a round compute with the same weights
  kDataBeforeEvent,      // an event is published after its data, and a block is read after its event
  kBlocksStay,           // a block is not freed or written before its last reader is committed
  kGradientsStay,        // a gradient is in place before its completion and stays unchanged until it was read
  kWaitsPointBackwards,  // a task reads only what earlier slots made
  kSlotOrder,            // a worker gets its tasks in slot order
  kEpoch,                // data of another epoch is not taken for data of the current one
};

// Returns the rule in words.
[[nodiscard]] const char* rule_text(ProtocolRule rule);

// Returns the error that reports a broken rule. `found` describes what was seen and where. The
// error is the runtime's own, never its user's.
[[nodiscard]] Error violation_of(ProtocolRule rule, const std::string& found);

}  // namespace rp
