// pipeline/packed_tensors.h
// The outputs of a round that a caller holds, and how they are put together.
#pragma once

#include <memory>
#include <vector>

#include "coordinator/coordinator.h"
#include "pipeline/runtime.h"
#include "roundpipe/batch.h"

namespace rp {

// A block that the coordinator keeps for the caller until this object ends.
class PackedTensors::State {
 public:
  // REQUIRES: the round keeps `block` for the caller and nobody else holds it.
  State(std::weak_ptr<Runtime> runtime, BlockOfRound block) : runtime_(std::move(runtime)), block_(std::move(block)) {}
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  [[nodiscard]] const BlockOfRound& block() const { return block_; }
  [[nodiscard]] int num_microbatches() const { return block_.round->traits.num_microbatches; }
  // Waits. Over the store's memory, for as long as this object lives. Throws rp::Error (kUsage) once the session has
  // ended.
  [[nodiscard]] Tensors view(int index) const;

 private:
  const std::weak_ptr<Runtime> runtime_;
  const BlockOfRound block_;
};

// All microbatches of a packed list: as copies, or over the store's memory, for as long as the list lives.
[[nodiscard]] std::vector<Tensors> microbatches_of(const PackedTensors& packed);
[[nodiscard]] std::vector<Tensors> views_of(const PackedTensors& packed);

// One list of them, in new memory. Throws rp::Error (kUsage) naming the tensor that cannot be merged.
[[nodiscard]] Tensors merge(const PackedTensors& packed, const Merge& how);
[[nodiscard]] Tensors merge(const std::vector<Tensors>& microbatches, const Merge& how);

// The gradients of what was merged, by microbatch. `like`: the microbatches before merge().
[[nodiscard]] std::vector<Tensors> split_gradients(const Tensors& gradients, const std::vector<Tensors>& like,
                                                   const Merge& how);

}  // namespace rp
