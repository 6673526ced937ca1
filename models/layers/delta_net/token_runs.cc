#include "models/layers/delta_net/token_runs.h"

#include <ATen/ATen.h>

namespace rp::models {

std::vector<std::vector<Document>> token_runs(const char* operation, const at::Tensor& documents_bk, std::int64_t b,
                                              std::int64_t t) {
  using Rows = std::vector<std::vector<Document>>;
  if (!documents_bk.defined()) return Rows(static_cast<std::size_t>(b), {{0, t}});
  TORCH_CHECK(documents_bk.size(0) == b, operation, ": documents of ", documents_bk.size(0),
              " sequences, but there are ", b);
  return documents_of_rows(documents_bk, t);
}

at::Tensor sum_in_order(const at::Tensor& partial_sums) {
  const at::Tensor total = partial_sums[0].clone();
  for (std::int64_t i = 1; i < partial_sums.size(0); ++i) total.add_(partial_sums[i]);
  return total;
}

}  // namespace rp::models
