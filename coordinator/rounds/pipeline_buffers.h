// coordinator/rounds/pipeline_buffers.h
// Keeps the buffers of a pipeline's layers between its rounds: the newest ones, and those after the
// last round that is part of a step.
//
// Both count as readers of their blocks, so a block lives until a newer one replaces it. Owned by
// the RoundFlow; guarded by the Coordinator's mutex, as are the rounds.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "coordinator/rounds/round.h"
#include "coordinator/rounds/round_blocks.h"

namespace rp {

class PipelineBuffers {
 public:
  // `blocks` must outlive it.
  explicit PipelineBuffers(RoundBlocks& blocks) : blocks_(blocks) {}

  // Sets a layer's buffers to this block, whatever they were before. REQUIRES: nothing in flight.
  void set(int layer, const BlockOfRound& block);

  // Makes the round begin with the newest buffers. A training round makes new ones, which then are
  // the newest. Returns the blocks that are not the newest any more, for RoundBlocks::release()
  // after add_readers(). REQUIRES: called before add_readers().
  [[nodiscard]] std::vector<BlockOfRound> enter(const std::shared_ptr<Round>& round);

  // Notes that a step ends the rounds so far: the newest buffers become those of the step.
  void end_step();

  // By layer.
  [[nodiscard]] const std::map<int, BlockOfRound>& newest() const { return newest_; }
  [[nodiscard]] const std::map<int, BlockOfRound>& of_step() const { return of_step_; }

 private:
  // Replaces a layer's block in `kept`, which is newest_ or of_step_.
  void replace(std::map<int, BlockOfRound>& kept, int layer, const BlockOfRound& block);

  RoundBlocks& blocks_;
  std::map<int, BlockOfRound> newest_;
  std::map<int, BlockOfRound> of_step_;
};

}  // namespace rp
