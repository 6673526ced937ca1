// coordinator/rounds/pipeline_buffers.h
// The buffers of a pipeline's layers between its rounds: the newest, and those after the last round that is part of a
// step.
//
// Each of the two is a reader of its block, which lives until a newer one takes its place. Owned by the RoundFlow;
// guarded by the Coordinator's mutex, as are the rounds.
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

  // A layer's buffers are this block, whatever was before. REQUIRES: nothing in flight.
  void set(int layer, const BlockOfRound& block);

  // The round begins with the newest ones; a training round makes new ones, which are the newest then. Returns what is
  // not the newest any more, for RoundBlocks::release() after add_readers(). REQUIRES: before add_readers().
  [[nodiscard]] std::vector<BlockOfRound> enter(const std::shared_ptr<Round>& round);

  // A step ends the rounds so far.
  void end_step();

  // By layer.
  [[nodiscard]] const std::map<int, BlockOfRound>& newest() const { return newest_; }
  [[nodiscard]] const std::map<int, BlockOfRound>& of_step() const { return of_step_; }

 private:
  // One of the two becomes `block`.
  void replace(std::map<int, BlockOfRound>& kept, int layer, const BlockOfRound& block);

  RoundBlocks& blocks_;
  std::map<int, BlockOfRound> newest_;
  std::map<int, BlockOfRound> of_step_;
};

}  // namespace rp
