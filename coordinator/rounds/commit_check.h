// coordinator/rounds/commit_check.h
// Verifies commits in a run with --check-consistency, beyond what the workers verify
// (docs/design/consistency-checker.md): that the tasks of a round computed with the same weights,
// and that gradients and outputs still are what their task wrote. Each function throws rp::Error if
// it finds a violation. Without the option, each does nothing.
#pragma once

#include <cstdint>

#include "coordinator/rounds/round.h"
#include "hoststore/store.h"

namespace rp {

// Called at the commit of a slot. Checks for each of the slot's weight groups that it computed with
// the round's version, and with the same bytes as the round's first committed task that used the
// group. The round remembers that task's version and checksum.
void check_weights_seen(Store& store, Round& round, const Slot& slot);

// Called after the gradient of a use was read and before its buffer is released: checks that the
// gradient still has the checksum that came with its commit.
void check_gradient(Store& store, UseId use, std::uint64_t checksum);

// Called before the caller reads a block that was kept for it: checks that the block still has its
// checksum.
void check_kept_block(Store& store, const RoundTable& table, BlockRow row, int microbatch);

}  // namespace rp
