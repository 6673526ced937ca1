// pipeline/batch_split.h
// A round's batch as microbatches.
#pragma once

#include <vector>

#include "coordinator/coordinator.h"
#include "roundpipe/batch.h"

namespace rp {

// For each tensor the dimension along which it is cut, or Split::kWhole. `what`: "input" or "argument", for messages.
// Throws rp::Error (kUsage) for a Split that does not fit.
[[nodiscard]] std::vector<int> split_dimensions(const Tensors& tensors, const Split& split, const char* what);

// The tensors of a call, cut; holds what the blocks' views point to.
class BatchSplit {
 public:
  // Throws rp::Error (kUsage), with numbers, for what cannot be cut into `num_microbatches` parts, for tensors that are
  // not on the CPU and for packed lists of another number of microbatches.
  BatchSplit(const Batch& inputs, const Split& split_inputs, const Batch& arguments, const Split& split_arguments,
             int num_microbatches);

  // As views of this object's tensors.
  [[nodiscard]] const RoundInputs& blocks() const { return blocks_; }

 private:
  [[nodiscard]] std::vector<BlockContents> views(std::vector<Tensors> microbatches);
  void set_structure(const Value& nested);

  std::vector<std::vector<Tensors>> storage_;
  RoundInputs blocks_;
};

}  // namespace rp
