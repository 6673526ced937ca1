#include "train/batches.h"

#include <algorithm>

#include "common/bad_input.h"
#include "common/check.h"
#include "train/shuffle.h"

namespace rp {

BatchSource::BatchSource(const TokenFile& file, std::int64_t sequence_length, std::int64_t batch_size,
                         std::uint64_t seed)
    : file_(file),
      length_(static_cast<std::uint64_t>(sequence_length)),
      batch_size_(static_cast<std::uint64_t>(batch_size)),
      seed_(seed) {
  RP_ASSERT(sequence_length > 0 && batch_size > 0);
  for (std::uint64_t document = 0; document < file.num_documents(); ++document) add_rows(document);
  counts_.sequences = rows_.size();
  if (rows_.empty()) {
    throw bad_input(file.path(), "none of its ", file.num_documents(),
                    " documents has a trained token among its first ", length_, "; raise the sequence length");
  }
}

void BatchSource::add_rows(std::uint64_t document) {
  const std::uint64_t end = file_.document_end(document);
  const bool is_text = file_.kind() == TokenFile::Kind::kText;
  std::uint64_t begin = file_.document_begin(document);
  if (!is_text && end - begin > length_ + 1) ++counts_.truncated;
  do {
    const Row row{begin, std::min(end, begin + length_ + 1)};
    const TokenSpan span = file_.read(row.begin, row.end);
    // The first token is nobody's label in this row.
    if (std::find(span.is_trained.begin() + 1, span.is_trained.end(), 1) != span.is_trained.end()) {
      rows_.push_back(row);
    } else {
      ++counts_.dropped;
    }
    begin += length_;
  } while (is_text && begin + 1 < end);
}

TokenBatch BatchSource::next() {
  TokenBatch batch;
  batch.tokens.assign(batch_size_ * length_, 0);
  batch.labels.assign(batch_size_ * length_, kNotTrained);
  for (std::size_t place = 0; place < batch_size_; ++place, ++cursor_) {
    fill_row(rows_[row_at(cursor_)], place, batch);
  }
  return batch;
}

void BatchSource::fill_row(const Row& row, std::size_t place, TokenBatch& batch) const {
  const TokenSpan span = file_.read(row.begin, row.end);
  const std::size_t first = place * length_;
  for (std::size_t i = 0; i < std::min<std::size_t>(span.tokens.size(), length_); ++i) {
    batch.tokens[first + i] = span.tokens[i];
  }
  for (std::size_t i = 0; i + 1 < span.tokens.size(); ++i) {
    if (span.is_trained[i + 1] == 0) continue;
    batch.labels[first + i] = span.tokens[i + 1];
    ++batch.num_trained;
  }
}

std::uint64_t BatchSource::row_at(std::uint64_t cursor) {
  const std::uint64_t epoch = cursor / rows_.size();
  if (epoch != order_epoch_) {
    order_ = shuffled(rows_.size(), seed_, epoch);
    order_epoch_ = epoch;
  }
  return order_[cursor % rows_.size()];
}

}  // namespace rp
