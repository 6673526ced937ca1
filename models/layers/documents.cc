#include "models/layers/documents.h"

#include <ATen/ATen.h>

#include <limits>

#include "common/text.h"
#include "roundpipe/error.h"

namespace rp::models {

namespace {

void check_shape(const at::Tensor& documents_bk) {
  TORCH_CHECK(documents_bk.dim() == 2 && documents_bk.size(1) > 0 && documents_bk.scalar_type() == at::kLong,
              "documents: needs lengths of int64 [sequences, documents], not ", documents_bk.toString(), " ",
              documents_bk.sizes());
}

// Returns where each document begins in its row, including the one formed by the remaining
// positions: [b, k + 1], ascending, within [0, t].
at::Tensor starts_of(const at::Tensor& documents_bk, std::int64_t t) {
  check_shape(documents_bk);
  const at::Tensor ends_bk = documents_bk.clamp_min(0).cumsum(1).clamp_max(t);
  return at::cat({at::zeros({documents_bk.size(0), 1}, documents_bk.options()), ends_bk}, 1);
}

}  // namespace

std::vector<std::vector<Document>> documents_of_rows(const at::Tensor& documents_bk, std::int64_t t) {
  check_shape(documents_bk);
  const at::Tensor lengths = documents_bk.to(at::kCPU).contiguous();
  const std::int64_t* length = lengths.const_data_ptr<std::int64_t>();
  std::vector<std::vector<Document>> rows(lengths.size(0));
  for (std::size_t row = 0; row < rows.size(); ++row) {
    std::int64_t first = 0;
    for (std::int64_t i = 0; i < lengths.size(1); ++i, ++length) {
      if (*length < 0 || *length > t - first) {
        throw Error(ExitCode::kUserError, cat("document ", i, " of sequence ", row, " has length ", *length, ", but ",
                                              t - first, " of the sequence's ", t, " positions are left for it"));
      }
      if (*length > 0) rows[row].push_back({first, *length});
      first += *length;
    }
    if (first < t) rows[row].push_back({first, t - first});
  }
  return rows;
}

at::Tensor document_positions(const at::Tensor& documents_bk, std::int64_t t) {
  const at::Tensor starts = starts_of(documents_bk, t);
  const at::Tensor positions = at::arange(t, documents_bk.options()).expand({documents_bk.size(0), t}).contiguous();
  // Finds the last of the documents that begin at or before the position.
  const at::Tensor document = at::searchsorted(starts, positions, /*out_int32=*/false, /*right=*/true) - 1;
  return positions - starts.gather(1, document);
}

at::Tensor document_bounds(const at::Tensor& documents_bk, std::int64_t t) {
  const std::int64_t rows = documents_bk.size(0);
  TORCH_CHECK(rows * t <= std::numeric_limits<std::int32_t>::max(), "documents: ", rows, " sequences of ", t,
              " positions are more than attention counts");
  const at::Tensor row_starts = at::arange(0, rows * t, t, documents_bk.options()).unsqueeze(1);
  const at::Tensor starts = (starts_of(documents_bk, t) + row_starts).flatten();
  return at::cat({starts, at::full({1}, rows * t, starts.options())}).to(at::kInt);
}

at::Tensor have_wrong_lengths(const at::Tensor& documents_bk, std::int64_t t) {
  check_shape(documents_bk);
  return documents_bk.lt(0).any(1).logical_or(documents_bk.sum(1) > t);
}

}  // namespace rp::models
