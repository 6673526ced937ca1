// pipeline/batch_split.h
// A round's batch as microbatches.
#pragma once

#include <vector>

#include "coordinator/coordinator.h"
#include "roundpipe/layer.h"

namespace rp {

// The tensors of a call, split; holds what the microbatches' views point to.
class BatchSplit {
 public:
  // Splits dimension 0 into `num_microbatches` parts as equal as possible, the first ones larger by one; tensors
  // without dimensions go to all. Throws rp::Error (kUsage) with numbers for what cannot be split.
  BatchSplit(const Tensors& inputs, const Tensors& arguments, int num_microbatches);

  // As views of this object's tensors.
  [[nodiscard]] const RoundInputs& blocks() const { return blocks_; }

 private:
  std::vector<Tensors> storage_;
  RoundInputs blocks_;
};

}  // namespace rp
