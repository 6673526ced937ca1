// train/batch_tensors.h
// Converts a batch of tokens to the tensors that a round is called with.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "roundpipe/layer.h"
#include "train/data/sequences.h"

namespace rp {

// Consecutive sequences of a batch, as views into its memory.
struct BatchTensors {
  Tensors inputs;     // token ids [n, T]; for packed sequences also the lengths of their documents [n, K]
  at::Tensor labels;  // [n, T]
};

// Returns sequences `begin` to `end` as views, which are valid as long as the batch is. `length`:
// T.
inline BatchTensors tensors_of(TokenBatch& batch, std::int64_t length, std::int64_t begin, std::int64_t end) {
  const auto num_rows = static_cast<std::int64_t>(batch.tokens.size()) / length;
  const auto rows = [&](std::vector<std::int64_t>& numbers) {
    const std::int64_t width = static_cast<std::int64_t>(numbers.size()) / num_rows;
    return at::from_blob(numbers.data() + begin * width, {end - begin, width}, at::kLong);
  };
  BatchTensors tensors{.inputs = {rows(batch.tokens)}, .labels = rows(batch.labels)};
  if (!batch.documents.empty()) tensors.inputs.push_back(rows(batch.documents));
  return tensors;
}

}  // namespace rp
