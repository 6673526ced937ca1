#include "hoststore/round_table.h"

#include <array>
#include <cstring>

#include "common/check.h"

namespace rp {

namespace {

// Rows of blocks, by kind: boundaries or layers.
std::array<std::uint64_t, kBlockKinds> rows_of(const RoundShape& shape) {
  const std::uint64_t layers = shape.num_layers;
  return {layers + 1, layers + 1, layers, layers, 1, kMaxImports, kMaxImports};
}

struct Layout {
  explicit Layout(const RoundShape& shape) {
    std::uint64_t rows = 0;
    for (const std::uint64_t count : rows_of(shape)) rows += count;
    places = sizeof(RoundShape);
    sources = places + rows * shape.num_microbatches * sizeof(BlockPlace);
    origins = sources + rows * sizeof(InputSource);
    losses = origins + rows * sizeof(BlockOrigin);
    square_sums = losses + std::uint64_t{shape.num_microbatches} * sizeof(LossRecord);
    layer_times = square_sums + shape.num_uses * sizeof(double);
    bytes = layer_times + shape.num_layers * sizeof(LayerTime);
  }
  std::uint64_t places, sources, origins, losses, square_sums, layer_times, bytes;
};

}  // namespace

std::uint64_t RoundTable::bytes(const RoundShape& shape) { return Layout(shape).bytes; }

RoundTable RoundTable::create(std::byte* memory, const RoundShape& shape) {
  std::memset(memory, 0, bytes(shape));
  std::memcpy(memory, &shape, sizeof(shape));
  RoundTable table(memory);
  const InputSource there;
  for (std::uint32_t kind = 0; kind < kBlockKinds; ++kind) {
    for (std::uint64_t i = 0; i < rows_of(shape)[kind]; ++i) {
      table.source(static_cast<BlockKind>(kind), static_cast<int>(i)) = there;
    }
  }
  return table;
}

RoundTable::RoundTable(std::byte* memory) : memory_(memory) { std::memcpy(&shape_, memory, sizeof(shape_)); }

std::uint64_t RoundTable::row(BlockKind kind, int index) const {
  const auto rows = rows_of(shape_);
  RP_ASSERT(index >= 0 && static_cast<std::uint64_t>(index) < rows[static_cast<std::size_t>(kind)]);
  auto result = static_cast<std::uint64_t>(index);
  for (std::size_t before = 0; before < static_cast<std::size_t>(kind); ++before) result += rows[before];
  return result;
}

BlockPlace& RoundTable::place(BlockKind kind, int index, int microbatch) const {
  RP_ASSERT(microbatch >= 0 && microbatch < num_microbatches());
  return reinterpret_cast<BlockPlace*>(memory_ + Layout(shape_).places)[row(kind, index) * shape_.num_microbatches +
                                                                       static_cast<std::uint64_t>(microbatch)];
}

InputSource& RoundTable::source(BlockKind kind, int index) const {
  return reinterpret_cast<InputSource*>(memory_ + Layout(shape_).sources)[row(kind, index)];
}

BlockOrigin& RoundTable::origin(BlockKind kind, int index) const {
  return reinterpret_cast<BlockOrigin*>(memory_ + Layout(shape_).origins)[row(kind, index)];
}

LossRecord& RoundTable::loss(int microbatch) const {
  return reinterpret_cast<LossRecord*>(memory_ + Layout(shape_).losses)[microbatch];
}

double& RoundTable::square_sum(std::uint32_t use) const {
  return reinterpret_cast<double*>(memory_ + Layout(shape_).square_sums)[use];
}

LayerTime& RoundTable::layer_time(int layer) const {
  return reinterpret_cast<LayerTime*>(memory_ + Layout(shape_).layer_times)[layer];
}

}  // namespace rp
