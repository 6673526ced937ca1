// coordinator/updates/step_record.h
// Describes a step such that another coordinator can finish its updates and continue after it. Kept in the journal of
// steps (hoststore/step_journal.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coordinator/updates/step_request.h"
#include "optimizer/update.h"

namespace rp {

// What the rounds of a step have left, when all of their tasks are committed.
struct StepResults {
  std::vector<std::vector<double>> losses;          // by round: sums over the microbatches, as in Round::losses
  std::map<int, std::vector<std::byte>> buffers{};  // by layer: the block with the buffers after the last round
};

struct StepRecord {
  std::uint64_t steps = 0;   // since the start of training, with this one
  std::uint64_t rounds = 0;  // the same
  UpdateHistory history{};   // after the step
  StepOutcome outcome{};
  StepResults results{};
  std::string restart_data{};  // the program's own
  // By trained weight group: what the step does to it; empty if it is skipped.
  std::vector<std::vector<UpdateSpan>> rules{};

  [[nodiscard]] std::vector<std::byte> to_bytes() const;
  // Returns nothing if these are not the bytes of a record. `bytes`: of the same build of this program.
  [[nodiscard]] static std::optional<StepRecord> from_bytes(std::span<const std::byte> bytes);
};

}  // namespace rp
