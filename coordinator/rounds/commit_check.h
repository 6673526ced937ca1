// coordinator/rounds/commit_check.h
// What the coordinator verifies in a run with --check-consistency, beyond what the workers do
// (docs/design/consistency-checker.md): that the tasks of a round computed with the same weights, and that gradients
// and outputs are what their task has written. Each throws rp::Error; without the option each does nothing.
#pragma once

#include <cstdint>

#include "coordinator/rounds/round.h"
#include "hoststore/store.h"

namespace rp {

// At the commit of a slot: it computed with the round's version of each of its weight groups, in the bytes that the
// first committed task of the round with that group had, which the round remembers.
void check_weights_seen(Store& store, Round& round, const Slot& slot);

// After the gradient of a use was read and before it is given back: it still has the checksum that came with its
// commit.
void check_gradient(Store& store, std::uint32_t use, std::uint64_t checksum);

// Before the caller reads a block that was kept for him.
void check_kept_block(Store& store, const RoundTable& table, BlockRow row, int microbatch);

}  // namespace rp
