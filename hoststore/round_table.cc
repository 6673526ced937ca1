#include "hoststore/round_table.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"

namespace rp {

namespace {

RoundShape shape_at(const std::byte* memory) {
  RoundShape shape;
  std::memcpy(&shape, memory, sizeof(shape));
  return shape;
}

}  // namespace

RoundLayout::RoundLayout(const RoundShape& shape) {
  const std::uint64_t layers = shape.num_layers;
  const std::array<std::uint64_t, kBlockKinds> rows = {layers + 1, layers + 1,  layers,     layers,
                                                       1,          kMaxImports, kMaxImports};
  first_row[0] = 0;
  for (std::size_t kind = 0; kind < kBlockKinds; ++kind) first_row[kind + 1] = first_row[kind] + rows[kind];
  const std::uint64_t num_rows = first_row[kBlockKinds];
  places = sizeof(RoundShape);
  sources = places + num_rows * shape.num_microbatches * sizeof(BlockPlace);
  origins = sources + num_rows * sizeof(InputSource);
  losses = origins + num_rows * sizeof(BlockOrigin);
  square_sums = losses + std::uint64_t{shape.num_microbatches} * sizeof(LossRecord);
  layer_times = square_sums + shape.num_uses * sizeof(double);
  layer_memory = layer_times + layers * sizeof(LayerTime);
  checksums = layer_memory + layers * sizeof(LayerMemory);
  const std::uint64_t checked = shape.is_checked;
  gradient_checksums = checksums + checked * num_rows * shape.num_microbatches * sizeof(std::uint64_t);
  weights_seen = gradient_checksums + checked * shape.num_uses * sizeof(std::uint64_t);
  bytes = weights_seen + checked * 2 * shape.num_uses * sizeof(WeightsSeen);
}

std::uint64_t RoundTable::bytes(const RoundShape& shape) { return RoundLayout(shape).bytes; }

RoundTable RoundTable::create(std::byte* memory, const RoundShape& shape) {
  const RoundLayout layout(shape);
  std::memset(memory, 0, layout.bytes);
  std::memcpy(memory, &shape, sizeof(shape));
  auto* sources = reinterpret_cast<InputSource*>(memory + layout.sources);
  std::fill_n(sources, layout.first_row[kBlockKinds], InputSource{});
  return RoundTable(memory);
}

RoundTable::RoundTable(std::byte* memory) : memory_(memory), shape_(shape_at(memory)), layout_(shape_) {}

std::uint64_t RoundTable::row(BlockKind kind, int index) const {
  const auto number = static_cast<std::size_t>(kind);
  const std::uint64_t result = layout_.first_row[number] + static_cast<std::uint64_t>(index);
  RP_ASSERT(index >= 0 && result < layout_.first_row[number + 1]);
  return result;
}

std::uint64_t RoundTable::block_number(BlockKind kind, int index, int microbatch) const {
  RP_ASSERT(microbatch >= 0 && microbatch < num_microbatches());
  return row(kind, index) * shape_.num_microbatches + static_cast<std::uint64_t>(microbatch);
}

BlockPlace& RoundTable::place(BlockKind kind, int index, int microbatch) const {
  return reinterpret_cast<BlockPlace*>(memory_ + layout_.places)[block_number(kind, index, microbatch)];
}

InputSource& RoundTable::source(BlockKind kind, int index) const {
  return reinterpret_cast<InputSource*>(memory_ + layout_.sources)[row(kind, index)];
}

BlockOrigin& RoundTable::origin(BlockKind kind, int index) const {
  return reinterpret_cast<BlockOrigin*>(memory_ + layout_.origins)[row(kind, index)];
}

LossRecord& RoundTable::loss(int microbatch) const {
  return reinterpret_cast<LossRecord*>(memory_ + layout_.losses)[microbatch];
}

double& RoundTable::square_sum(UseId use) const {
  return reinterpret_cast<double*>(memory_ + layout_.square_sums)[use.value()];
}

LayerTime& RoundTable::layer_time(int layer) const {
  return reinterpret_cast<LayerTime*>(memory_ + layout_.layer_times)[layer];
}

LayerMemory& RoundTable::layer_memory(int layer) const {
  return reinterpret_cast<LayerMemory*>(memory_ + layout_.layer_memory)[layer];
}

std::uint64_t& RoundTable::checksum(BlockKind kind, int index, int microbatch) const {
  RP_ASSERT(is_checked());
  return reinterpret_cast<std::uint64_t*>(memory_ + layout_.checksums)[block_number(kind, index, microbatch)];
}

std::uint64_t& RoundTable::gradient_checksum(UseId use) const {
  RP_ASSERT(is_checked());
  return reinterpret_cast<std::uint64_t*>(memory_ + layout_.gradient_checksums)[use.value()];
}

WeightsSeen& RoundTable::weights_seen(UseId use, bool in_backward) const {
  RP_ASSERT(is_checked());
  return reinterpret_cast<WeightsSeen*>(memory_ +
                                        layout_.weights_seen)[2 * std::uint64_t{use.value()} + (in_backward ? 1 : 0)];
}

}  // namespace rp
