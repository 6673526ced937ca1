// coordinator/block_updater.h
// What a step does to one block in the host store: sums and norms of its gradients, and the update, each one pass over
// memory by a ThreadTeam. When that may be is for Updates to say.
//
// Used by one thread. The Store must outlive it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hoststore/store.h"
#include "optimizer/thread_team.h"
#include "optimizer/update.h"

namespace rp {

class BlockUpdater {
 public:
  // `blocks`: those that it is for, trained ones. `adds_rounds`: their gradients are the store's fp32 sums.
  BlockUpdater(Store& store, std::span<const std::uint32_t> blocks, int num_threads, bool adds_rounds);

  // The sum of a use begins with its gradient, or goes on with it. REQUIRES: adds_rounds.
  void add_to_sum(std::uint32_t use, bool begins);

  // Of the block's gradient, over all of its uses.
  [[nodiscard]] double square_sum(std::uint32_t block);

  // The block's gradient as fp32, scaled and clipped as `scaling` says.
  void write_gradient(std::uint32_t block, const UpdateStep& scaling, float* gradient);

  // Makes `version` of the block from the version before; without rules: as the same weights. REQUIRES: fp32 masters.
  void update(std::uint32_t block, std::uint64_t version, std::span<const UpdateSpan> rules);

 private:
  // `pointers`: the memory behind the result.
  [[nodiscard]] BlockGradients gradients_of(std::uint32_t block, std::vector<const void*>& pointers);
  [[nodiscard]] BlockState state_of(std::uint32_t block, std::uint64_t version);

  Store& store_;
  const bool adds_rounds_;
  ThreadTeam team_;
  std::vector<double> partial_sums_;
};

}  // namespace rp
