// pipeline/batch_split.h
// Cuts the batch of a round into microbatches.
#pragma once

#include <vector>

#include "coordinator/coordinator.h"
#include "roundpipe/batch.h"

namespace rp {

// Returns, for each tensor, the dimension along which it is cut, or Split::kWhole. `what` is
// "input" or "argument", for messages. Throws rp::Error (kUsage) if the Split does not fit the
// tensors.
[[nodiscard]] std::vector<int> split_dimensions(const Tensors& tensors, const Split& split, const char* what);

// The tensors of a call, cut into microbatches. Owns the memory that the views in blocks() point
// to.
class BatchSplit {
 public:
  // Throws rp::Error (kUsage), which states the sizes, if a tensor cannot be cut into
  // `num_microbatches` parts or is not on the CPU, or if a packed list has another number of
  // microbatches.
  BatchSplit(const Batch& inputs, const Split& split_inputs, const Batch& arguments, const Split& split_arguments,
             int num_microbatches);

  // Views of this object's tensors.
  [[nodiscard]] const RoundInputs& blocks() const { return blocks_; }

 private:
  [[nodiscard]] std::vector<BlockContents> views(std::vector<Tensors> microbatches);
  void set_structure(const Value& nested);

  std::vector<std::vector<Tensors>> storage_;
  RoundInputs blocks_;
};

}  // namespace rp
