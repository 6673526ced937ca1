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

std::uint64_t InputBlocks::place_table(const RoundShape& shape) {
  const std::uint64_t bytes = RoundTable::bytes(shape);
  const std::uint64_t offset = allocate(bytes);
  (void)RoundTable::create(store_.arena(kCoordinatorArena).data(offset, bytes), shape);
  return offset;
}

}  // namespace rp
