// hoststore/task_rows.h
// Lists the blocks of its round that a task reads and writes. Coordinator and worker must agree on
// them (docs/design/rounds.md).
#pragma once

#include <compare>
#include <vector>

#include "hoststore/catalogue.h"
#include "hoststore/control.h"
#include "hoststore/round_table.h"

namespace rp {

class Store;

// One row of a round's table: the blocks of a kind and an index, one for each microbatch.
struct BlockRow {
  BlockKind kind = BlockKind::kActivation;
  int index = 0;
  auto operator<=>(const BlockRow&) const = default;
};

// True for a block that all microbatches of a task share.
[[nodiscard]] constexpr bool is_once_a_task(BlockKind kind) { return kind == BlockKind::kBuffers; }

// Returns the blocks that a task reads, in the order in which a worker fetches them. A gradient is
// the last. A block of kind kRecompute may not exist.
[[nodiscard]] std::vector<BlockRow> input_rows(const Command& command, const Catalogue& catalogue);

// Where the blocks of a row were made: in the round of the task that reads them, or as another row of an earlier round.
struct MadeRow {
  BlockRow row;
  RoundTable table;  // of that round
};
[[nodiscard]] MadeRow made_row(Store& store, const Command& command, const BlockRow& row);

// Returns the blocks that a task writes. A block of kind kRecompute exists only if the layer saved
// something.
[[nodiscard]] std::vector<BlockRow> output_rows(const Command& command, const Catalogue& catalogue);

}  // namespace rp
