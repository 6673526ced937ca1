// hoststore/round_table.h
// Stores where the blocks of one round are, which worker makes each of them, and what the round's
// tasks measured. Byte format: docs/formats/control.md#round-table.
//
// A table is in the coordinator's arena. The coordinator creates it before the round's first
// command, which contains its place, and frees it when no task reads the round's blocks any more.
// So rounds may have any number of microbatches, and any number of rounds can be alive at once.
// Each field names its one writer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/shm_safe.h"
#include "hoststore/ids.h"

namespace rp {

// The kinds of blocks. Within its kind, a block has an index: a boundary (0 to num_layers; boundary
// b is before layer b) or a layer.
enum class BlockKind : std::uint32_t {
  kActivation,  // by boundary; the model's inputs are at 0, its outputs at num_layers
  kGradient,    // by boundary: the gradient of the activation there
  kRecompute,   // by layer: data that its forward saved for its recompute
  kBuffers,     // by layer, once per task (microbatch 0): buffers after the round; the origin refers to those before it
  kArguments,   // arguments of the loss; index 0
  kInputImport,     // a part of the model's inputs that another round made; index 0 to kMaxImports - 1
  kArgumentImport,  // a part of the loss's arguments that another round made; index 0 to kMaxImports - 1
};
inline constexpr std::uint32_t kBlockKinds = 7;
inline constexpr int kMaxImports = 8;

// The place of a block. Writer: the worker of the slot that makes the block, before the block's
// event; the coordinator for blocks that it makes itself. All zeros if a task did not make the
// block.
struct BlockPlace {
  using ShmFormat = void;
  SlotInEpoch slot{};       // slot of the writer; 0: the coordinator
  std::uint64_t arena = 0;  // worker number, or kCoordinatorArena
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};
static_assert(sizeof(BlockPlace) == 32 && ShmSafe<BlockPlace>);

// The event by which a worker announces a block; if worker < 0, the block exists already. Writer:
// the coordinator, when it dispatches the slot that makes the block. Readers: tasks that are
// dispatched later. If the event is one of an earlier epoch than a reader's, the block was committed before the
// reader's epoch began, so it exists.
struct InputSource {
  using ShmFormat = void;
  std::int64_t worker = -1;
  EventInEpoch first_event{};  // the block of microbatch m has event first_event + m + 1 of this epoch
};
static_assert(sizeof(InputSource) == 16 && ShmSafe<InputSource>);

// Where a task finds a block that another round made, such as the buffers after the previous round.
// If table_bytes is 0, the block belongs to this round. Writer: the coordinator, before the round's
// first command.
struct BlockOrigin {
  using ShmFormat = void;
  std::uint64_t table = 0;  // in the coordinator's arena
  std::uint64_t table_bytes = 0;
  BlockKind kind = BlockKind::kActivation;
  std::int32_t index = 0;
};
static_assert(sizeof(BlockOrigin) == 24 && ShmSafe<BlockOrigin>);

// The time that a layer needed in a round, summed over all microbatches. Writer: of forward_ns, the
// worker of the slot that ran the layer's forward; of the others, the worker of the slot that ran
// its backward.
struct LayerTime {
  using ShmFormat = void;
  std::int64_t forward_ns = 0;
  std::int64_t recompute_ns = 0;
  std::int64_t backward_ns = 0;  // without the recompute
};
static_assert(sizeof(LayerTime) == 24 && ShmSafe<LayerTime>);

// The device memory that a layer needed for one microbatch: the maximum over a round's
// microbatches, or zeros if the device does not measure it. Writer: of the first four fields, the
// worker of the slot that ran the layer's forward; of the others, the worker of the slot that ran
// its backward.
struct LayerMemory {
  using ShmFormat = void;
  std::uint64_t input_bytes = 0;  // activations that enter the layer
  std::uint64_t output_bytes = 0;
  std::uint64_t forward_workspace_bytes = 0;    // in addition to its output, at the peak of a forward without a graph
  std::uint64_t expanded_bytes = 0;             // kept while a task computes, whatever the microbatch
  std::uint64_t saved_bytes = 0;                // kept between its forward and its backward
  std::uint64_t recompute_workspace_bytes = 0;  // in addition to saved_bytes, at the peak of a forward with a graph
  std::uint64_t backward_workspace_bytes = 0;   // in addition to saved_bytes, at the peak of its backward
};
static_assert(sizeof(LayerMemory) == 56 && ShmSafe<LayerMemory>);

// The values of a loss for one microbatch. Writer: the worker of the slot that evaluates the loss,
// which is a fused task or a forward task with Command::kGivesLoss.
struct LossRecord {
  using ShmFormat = void;
  std::uint64_t num = 0;  // of values
  std::array<double, 7> values{};
};
static_assert(sizeof(LossRecord) == 64 && ShmSafe<LossRecord>);

// The weights that a task computed with. Writer: the task's worker, once the weights are uploaded.
// The forward and the backward have a record each.
struct WeightsSeen {
  using ShmFormat = void;
  std::uint64_t checksum = 0;  // 0: no weights were uploaded for this use
  Version version{};
  bool operator==(const WeightsSeen&) const = default;
};
static_assert(sizeof(WeightsSeen) == 16 && ShmSafe<WeightsSeen>);

// The dimensions of a table, in its first bytes. Writer: the coordinator.
struct RoundShape {
  using ShmFormat = void;
  std::uint32_t num_layers = 0;
  std::uint32_t num_microbatches = 0;
  std::uint32_t num_uses = 0;    // of the store's catalogue
  std::uint32_t is_checked = 0;  // 1: the table has checksums and WeightsSeen
};
static_assert(sizeof(RoundShape) == 16 && ShmSafe<RoundShape>);

// The offsets of the parts of a table, in bytes from its beginning. They depend only on its shape.
struct RoundLayout {
  explicit RoundLayout(const RoundShape& shape);

  std::array<std::uint64_t, kBlockKinds + 1> first_row;  // by kind; the last entry is the number of rows
  std::uint64_t places = 0;
  std::uint64_t sources = 0;
  std::uint64_t origins = 0;
  std::uint64_t losses = 0;
  std::uint64_t square_sums = 0;
  std::uint64_t layer_times = 0;
  std::uint64_t layer_memory = 0;
  std::uint64_t checksums = 0;  // of blocks; this part and the next two have no bytes in a table that is not checked
  std::uint64_t gradient_checksums = 0;
  std::uint64_t weights_seen = 0;
  std::uint64_t bytes = 0;
};

// A view of a table. Does not own the memory.
class RoundTable {
 public:
  [[nodiscard]] static std::uint64_t bytes(const RoundShape& shape);
  // Writes an empty table of bytes(shape) bytes to `memory`.
  static RoundTable create(std::byte* memory, const RoundShape& shape);
  // Views a table that create() wrote.
  explicit RoundTable(std::byte* memory);

  [[nodiscard]] const RoundShape& shape() const { return shape_; }
  [[nodiscard]] int num_microbatches() const { return static_cast<int>(shape_.num_microbatches); }

  [[nodiscard]] BlockPlace& place(BlockKind kind, int index, int microbatch) const;
  [[nodiscard]] InputSource& source(BlockKind kind, int index) const;
  [[nodiscard]] BlockOrigin& origin(BlockKind kind, int index) const;
  [[nodiscard]] LossRecord& loss(int microbatch) const;
  // The sum of the squares of a use's rounded gradient. Writer: the worker of the slot that ran the
  // backward of the use's layer.
  [[nodiscard]] double& square_sum(UseId use) const;
  [[nodiscard]] LayerTime& layer_time(int layer) const;
  [[nodiscard]] LayerMemory& layer_memory(int layer) const;

  [[nodiscard]] bool is_checked() const { return shape_.is_checked != 0; }
  // REQUIRES for the next three: is_checked(). A checksum covers a block or a use's
  // gradient; it is 0 if it is not written yet. Writer: the process that writes the bytes, after them and
  // before the event or completion that announces them.
  [[nodiscard]] std::uint64_t& checksum(BlockKind kind, int index, int microbatch) const;
  [[nodiscard]] std::uint64_t& gradient_checksum(UseId use) const;
  [[nodiscard]] WeightsSeen& weights_seen(UseId use, bool in_backward) const;

 private:
  [[nodiscard]] std::uint64_t row(BlockKind kind, int index) const;
  [[nodiscard]] std::uint64_t block_number(BlockKind kind, int index, int microbatch) const;

  std::byte* memory_;
  RoundShape shape_;
  RoundLayout layout_;
};

}  // namespace rp
