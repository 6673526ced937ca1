// train/data/batches.h
// Deals out batches of sequences in an order that depends only on the sequences and the seed.
#pragma once

#include <cstdint>

#include "train/data/sequences.h"

namespace rp {

// Deals out sequences in batches, epoch after epoch, each epoch in another order. A batch may span
// two epochs. The sequences must outlive this. Used by one thread at a time.
class BatchSource {
 public:
  BatchSource(const Sequences& sequences, std::int64_t batch_size, std::uint64_t seed);

  // Returns the next batch_size sequences. Throws rp::Error (kBadInput) if the file has changed
  // since it was opened.
  [[nodiscard]] TokenBatch next();

  // Returns how many sequences next() has dealt out since the start of the first epoch. After
  // seek(cursor), a source with the same sequences and seed continues from there, even with another
  // batch size.
  [[nodiscard]] std::uint64_t cursor() const { return cursor_; }
  void seek(std::uint64_t cursor) { cursor_ = cursor; }

  [[nodiscard]] std::uint64_t epoch() const { return cursor_ / sequences_.size(); }

 private:
  // Returns the order of the current epoch. Computes it when the epoch's first sequence is
  // requested.
  [[nodiscard]] const Packs& order();

  const Sequences& sequences_;
  std::uint64_t batch_size_;
  std::uint64_t seed_;
  std::uint64_t cursor_ = 0;
  Packs order_;
  std::uint64_t order_epoch_ = UINT64_MAX;
};

}  // namespace rp
