#include "coordinator/input_blocks.h"

#include <cstring>

#include "hoststore/block_checksum.h"

namespace rp {

void InputBlocks::place(const BlockContents& contents, const RoundTable& table, BlockKind kind, int index, int microbatch) {
  const BlockLayout layout = lay_out_block(contents.tensors, contents.structure.size());
  const std::uint64_t offset = allocate(layout.bytes);
  std::byte* memory = store_.arena(kCoordinatorArena).data(offset, layout.bytes);
  write_block_head(memory, layout, contents.structure);
  for (std::size_t i = 0; i < contents.tensors.size(); ++i) {
    const TensorView& tensor = contents.tensors[i];
    if (tensor.desc.bytes() > 0) std::memcpy(memory + layout.tensors[i].offset, tensor.data, tensor.desc.bytes());
  }
  table.place(kind, index, microbatch) = {.slot = 0, .arena = kCoordinatorArena, .offset = offset, .bytes = layout.bytes};
  if (table.is_checked()) table.checksum(kind, index, microbatch) = BlockChecksum::of({memory, layout.bytes});
}

void InputBlocks::place_table(Round& round, const RoundShape& shape) {
  round.table_bytes = RoundTable::bytes(shape);
  round.table = allocate(round.table_bytes);
  (void)RoundTable::create(store_.arena(kCoordinatorArena).data(round.table, round.table_bytes), shape);
}

void InputBlocks::place_round(Round& round, const RoundShape& shape, std::span<const BlockContents> inputs,
                              std::span<const BlockContents> arguments) {
  place_table(round, shape);
  const RoundTable table = store_.round_table(round);
  std::vector<std::uint64_t> placed = {round.table};
  const auto place_all = [&](BlockKind kind, std::span<const BlockContents> blocks) {
    for (std::size_t m = 0; m < blocks.size(); ++m) {
      place(blocks[m], table, kind, 0, static_cast<int>(m));
      placed.push_back(table.place(kind, 0, static_cast<int>(m)).offset);
    }
  };
  try {
    place_all(BlockKind::kActivation, inputs);
    place_all(BlockKind::kArguments, arguments);
  } catch (...) {
    for (const std::uint64_t offset : placed) free(offset);
    throw;
  }
}

}  // namespace rp
