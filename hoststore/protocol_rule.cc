#include "hoststore/protocol_rule.h"

#include "common/text.h"

namespace rp {

const char* rule_text(ProtocolRule rule) {
  switch (rule) {
    case ProtocolRule::kPublishedWeights:
      return "a version of the weights is read from its working copy after it was published";
    case ProtocolRule::kWeightsStay: return "a working copy is not overwritten while a task may read it";
    case ProtocolRule::kSameWeights: return "all tasks of a round compute with the same weights";
    case ProtocolRule::kDataBeforeEvent: return "an event follows its data, and a block is read after its event";
    case ProtocolRule::kBlocksStay: return "a block is not freed or written before its last reader is committed";
    case ProtocolRule::kGradientsStay:
      return "a gradient is in place before its completion and stays until it was taken";
    case ProtocolRule::kWaitsPointBackwards: return "a task reads what earlier slots made";
    case ProtocolRule::kSlotOrder: return "a worker gets its tasks in slot order";
    case ProtocolRule::kEpoch: return "what another epoch made is not taken for this one's";
  }
  return "?";
}

Error violation_of(ProtocolRule rule, const std::string& found) {
  return {ExitCode::kUserError,
          cat("--check-consistency: ", found, "; broken rule: ", rule_text(rule),
              ". This is an error of the runtime, not of the program: please report it with this line")};
}

}  // namespace rp
