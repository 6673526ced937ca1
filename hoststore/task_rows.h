// hoststore/task_rows.h
// Which blocks of its round a task reads and writes: what coordinator and worker must agree on (docs/design/rounds.md).
#pragma once

#include <compare>
#include <vector>

#include "hoststore/catalogue.h"
#include "hoststore/control.h"

namespace rp {

struct BlockRow {
  BlockKind kind = BlockKind::kActivation;
  int index = 0;
  auto operator<=>(const BlockRow&) const = default;
};

// True for a block that all microbatches of a task share.
[[nodiscard]] constexpr bool is_once_a_task(BlockKind kind) { return kind == BlockKind::kBuffers; }

// In the order in which a worker fetches them; a gradient is the last. A block of kind kRecompute may turn out not to
// exist.
[[nodiscard]] std::vector<BlockRow> input_rows(const Command& command, const Catalogue& catalogue);

// Likewise: blocks of kind kRecompute exist if the layer saved something.
[[nodiscard]] std::vector<BlockRow> output_rows(const Command& command, const Catalogue& catalogue);

}  // namespace rp
