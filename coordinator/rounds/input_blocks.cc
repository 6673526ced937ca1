#include "coordinator/rounds/input_blocks.h"

#include <cstring>

#include "hoststore/data_checksum.h"

namespace rp {

void InputBlocks::place(const BlockContents& contents, const RoundTable& table, BlockKind kind, int index,
                        int microbatch) {
  const BlockLayout layout = lay_out_block(contents.tensors, contents.structure.size());
  const std::uint64_t offset = allocate(layout.bytes);
  std::byte* memory = store_.arena(kCoordinatorArena).data(offset, layout.bytes);
  write_block_head(memory, layout, contents.structure);
  for (std::size_t i = 0; i < contents.tensors.size(); ++i) {
    const TensorView& tensor = contents.tensors[i];
    if (tensor.desc.bytes() > 0) std::memcpy(memory + layout.tensors[i].offset, tensor.data, tensor.desc.bytes());
  }
  table.place(kind, index, microbatch) = {
      .slot = {}, .arena = kCoordinatorArena, .offset = offset, .bytes = layout.bytes};
  if (table.is_checked()) table.checksum(kind, index, microbatch) = DataChecksum::of({memory, layout.bytes});
}

void InputBlocks::place_table(Round& round) {
  const RoundShape shape{.num_layers = static_cast<std::uint32_t>(round.num_layers),
                         .num_microbatches = static_cast<std::uint32_t>(round.traits.num_microbatches),
                         .num_uses = static_cast<std::uint32_t>(store_.catalogue().uses().size()),
                         .is_checked = store_.header().checks_consistency};
  round.table_bytes = RoundTable::bytes(shape);
  round.table = allocate(round.table_bytes);
  (void)RoundTable::create(store_.arena(kCoordinatorArena).data(round.table, round.table_bytes), shape);
}

std::uint64_t InputBlocks::place_list(const std::vector<LiveBlock>& list) {
  const std::uint64_t bytes = list.size() * sizeof(LiveBlock);
  const std::uint64_t offset = allocate(bytes);
  std::memcpy(store_.arena(kCoordinatorArena).data(offset, bytes), list.data(), bytes);
  return offset;
}

std::uint64_t InputBlocks::place_round(Round& round, const RoundInputs& inputs) {
  place_table(round);
  const RoundTable table = store_.round_table(round);
  std::vector<std::uint64_t> placed = {round.table};
  std::uint64_t bytes = 0;
  const auto place_all = [&](BlockKind kind, const std::vector<BlockContents>& blocks) {
    for (std::size_t m = 0; m < blocks.size(); ++m) {
      place(blocks[m], table, kind, 0, static_cast<int>(m));
      placed.push_back(table.place(kind, 0, static_cast<int>(m)).offset);
      for (const TensorView& tensor : blocks[m].tensors) bytes += tensor.desc.bytes();
    }
  };
  try {
    place_all(BlockKind::kActivation, inputs.inputs);
    // Without a loss no task reads the arguments.
    if (round.traits.gives_loss()) place_all(BlockKind::kArguments, inputs.arguments);
  } catch (...) {
    for (const std::uint64_t offset : placed) free(offset);
    throw;
  }
  return bytes;
}

}  // namespace rp
