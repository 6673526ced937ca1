// pipeline/packed_tensors.h
// Keeps the outputs of a round for the caller, and merges those of its microbatches.
#pragma once

#include <memory>
#include <vector>

#include "coordinator/coordinator.h"
#include "pipeline/runtime.h"
#include "roundpipe/batch.h"

namespace rp {

// A block that the coordinator keeps for the caller as long as this object lives.
class PackedTensors::State {
 public:
  // REQUIRES: the round keeps `block` for the caller, and no other object holds it.
  State(std::weak_ptr<Runtime> runtime, BlockOfRound block) : runtime_(std::move(runtime)), block_(std::move(block)) {}
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  [[nodiscard]] const BlockOfRound& block() const { return block_; }
  [[nodiscard]] int num_microbatches() const { return block_.round->traits.num_microbatches; }
  // Blocks until the block exists. Returns tensors over the store's memory, which are valid as long
  // as this object lives. Throws rp::Error (kUsage) once the session has ended.
  [[nodiscard]] Tensors view(int index) const;

 private:
  const std::weak_ptr<Runtime> runtime_;
  const BlockOfRound block_;
};

// Return all microbatches of a packed list. The first returns copies. The second returns tensors
// over the store's memory, which are valid as long as the list lives.
[[nodiscard]] std::vector<Tensors> microbatches_of(const PackedTensors& packed);
[[nodiscard]] std::vector<Tensors> views_of(const PackedTensors& packed);

// Merge the microbatches to one list in new memory. Throw rp::Error (kUsage) naming the tensor that
// cannot be merged.
[[nodiscard]] Tensors merge(const PackedTensors& packed, const Merge& how);
[[nodiscard]] Tensors merge(const std::vector<Tensors>& microbatches, const Merge& how);

// Splits the gradients of merged tensors into those of the microbatches. `like` contains the
// microbatches before merge().
[[nodiscard]] std::vector<Tensors> split_gradients(const Tensors& gradients, const std::vector<Tensors>& like,
                                                   const Merge& how);

}  // namespace rp
