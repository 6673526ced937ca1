// hoststore/round_table.h
// Where the blocks of one round lie, who makes them, and what its tasks measured. Byte format:
// docs/formats/control.md#round-table.
//
// A table lies in the coordinator's arena: the coordinator makes it before the round's first command, which says where
// it is, and frees it once nobody reads the round's blocks any more. So rounds of any number of microbatches, and any
// number of rounds, can be alive at once. Each field names its one writer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/shm_safe.h"

namespace rp {

// What a block holds. Its index is a boundary (0 to num_layers: boundary b lies before layer b), or a layer.
enum class BlockKind : std::uint32_t {
  kActivation,      // by boundary; the model's inputs at 0, its outputs at num_layers
  kGradient,        // by boundary: of the activation there
  kRecompute,       // by layer: what its forward saved for its recompute
  kBuffers,         // by layer, once a task (microbatch 0): its buffers after the round; their origin: before it
  kArguments,       // of the loss; index 0
  kInputImport,     // part of the model's inputs that another round made; 0 to kMaxImports - 1
  kArgumentImport,  // likewise of the loss's arguments
};
inline constexpr std::uint32_t kBlockKinds = 7;
inline constexpr int kMaxImports = 8;

// Where a block lies. Writer: the worker of the slot that makes it, before the event that says so; the coordinator for
// what it places itself. All zero where a task made none.
struct BlockPlace {
  using ShmFormat = void;
  std::uint64_t slot = 0;  // with epoch: who wrote it; the coordinator writes 0
  std::uint64_t arena = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};
static_assert(sizeof(BlockPlace) == 32 && ShmSafe<BlockPlace>);

// By which event a worker says that a block is there; or (worker < 0) it is there already. Writer: the coordinator,
// when it dispatches the slot that makes the block; read by tasks that are dispatched later.
struct InputSource {
  using ShmFormat = void;
  std::int64_t worker = -1;
  std::uint64_t first_event = 0;  // the block of microbatch m comes with event first_event + m + 1
};
static_assert(sizeof(InputSource) == 16 && ShmSafe<InputSource>);

// Where a task finds a block that another round made, as the buffers of the round before. No bytes: in this round.
// Writer: the coordinator, before the command.
struct BlockOrigin {
  using ShmFormat = void;
  std::uint64_t table = 0;  // in the coordinator's arena
  std::uint64_t table_bytes = 0;
  BlockKind kind = BlockKind::kActivation;
  std::int32_t index = 0;
};
static_assert(sizeof(BlockOrigin) == 24 && ShmSafe<BlockOrigin>);

// Time that a layer took in a round, over all microbatches. Writer: the worker of the slot that ran it.
struct LayerTime {
  using ShmFormat = void;
  std::int64_t forward_ns = 0;
  std::int64_t recompute_ns = 0;
  std::int64_t backward_ns = 0;  // without the recompute
};
static_assert(sizeof(LayerTime) == 24 && ShmSafe<LayerTime>);

// What a layer took of a worker's device for one microbatch, the largest of a round's; zeros where the device does not
// measure. Writer: of the first three the worker of the slot that ran it forward, of the others that of its backward.
struct LayerMemory {
  using ShmFormat = void;
  std::uint64_t input_bytes = 0;  // activations that enter it
  std::uint64_t output_bytes = 0;
  std::uint64_t forward_workspace_bytes = 0;    // besides its output, at the peak of a forward without a graph
  std::uint64_t saved_bytes = 0;                // between its forward and its backward
  std::uint64_t recompute_workspace_bytes = 0;  // besides that, at the peak of a forward with a graph
  std::uint64_t backward_workspace_bytes = 0;   // besides what is saved, at the peak of its backward
};
static_assert(sizeof(LayerMemory) == 48 && ShmSafe<LayerMemory>);

// What a loss gave for one microbatch. Writer: the worker of the fused slot.
struct LossRecord {
  using ShmFormat = void;
  std::uint64_t num = 0;
  std::array<double, 7> values{};
};
static_assert(sizeof(LossRecord) == 64 && ShmSafe<LossRecord>);

// With which weights a task computed. Writer: its worker, once they are uploaded; forward and backward have one each.
struct WeightsSeen {
  using ShmFormat = void;
  std::uint64_t checksum = 0;  // 0: none were uploaded for this use
  std::uint64_t version = 0;
  bool operator==(const WeightsSeen&) const = default;
};
static_assert(sizeof(WeightsSeen) == 16 && ShmSafe<WeightsSeen>);

// The first bytes of a table. Writer: the coordinator.
struct RoundShape {
  using ShmFormat = void;
  std::uint32_t num_layers = 0;
  std::uint32_t num_microbatches = 0;
  std::uint32_t num_uses = 0;    // of the store's catalogue
  std::uint32_t is_checked = 0;  // 1: with checksums and the weights that were seen
};
static_assert(sizeof(RoundShape) == 16 && ShmSafe<RoundShape>);

// Where the parts of a table lie, in bytes from its beginning: a function of its shape.
struct RoundLayout {
  explicit RoundLayout(const RoundShape& shape);

  std::array<std::uint64_t, kBlockKinds + 1> first_row;  // by kind; then the number of rows
  std::uint64_t places = 0;
  std::uint64_t sources = 0;
  std::uint64_t origins = 0;
  std::uint64_t losses = 0;
  std::uint64_t square_sums = 0;
  std::uint64_t layer_times = 0;
  std::uint64_t layer_memory = 0;
  std::uint64_t checksums = 0;  // of blocks; these three have no bytes in a table that is not checked
  std::uint64_t gradient_checksums = 0;
  std::uint64_t weights_seen = 0;
  std::uint64_t bytes = 0;
};

// A view of a table; does not own it.
class RoundTable {
 public:
  [[nodiscard]] static std::uint64_t bytes(const RoundShape& shape);
  // Makes an empty table of bytes(shape) bytes.
  static RoundTable create(std::byte* memory, const RoundShape& shape);
  // One that create() made.
  explicit RoundTable(std::byte* memory);

  [[nodiscard]] const RoundShape& shape() const { return shape_; }
  [[nodiscard]] int num_microbatches() const { return static_cast<int>(shape_.num_microbatches); }

  [[nodiscard]] BlockPlace& place(BlockKind kind, int index, int microbatch) const;
  [[nodiscard]] InputSource& source(BlockKind kind, int index) const;
  [[nodiscard]] BlockOrigin& origin(BlockKind kind, int index) const;
  [[nodiscard]] LossRecord& loss(int microbatch) const;
  // Of the rounded gradient of a use. Writer: the worker of the slot of its backward.
  [[nodiscard]] double& square_sum(std::uint32_t use) const;
  [[nodiscard]] LayerTime& layer_time(int layer) const;
  [[nodiscard]] LayerMemory& layer_memory(int layer) const;

  [[nodiscard]] bool is_checked() const { return shape_.is_checked != 0; }
  // REQUIRES: is_checked(). Of a block, and of the gradient of a use; 0: not there yet. Writer: who writes the bytes,
  // after them and before the event or completion that says so.
  [[nodiscard]] std::uint64_t& checksum(BlockKind kind, int index, int microbatch) const;
  [[nodiscard]] std::uint64_t& gradient_checksum(std::uint32_t use) const;
  [[nodiscard]] WeightsSeen& weights_seen(std::uint32_t use, bool in_backward) const;

 private:
  [[nodiscard]] std::uint64_t row(BlockKind kind, int index) const;
  [[nodiscard]] std::uint64_t block_number(BlockKind kind, int index, int microbatch) const;

  std::byte* memory_;
  RoundShape shape_;
  RoundLayout layout_;
};

}  // namespace rp
