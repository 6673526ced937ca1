// train/data/batches.h
// Batches of sequences, in an order that depends on the seed and on nothing else.
#pragma once

#include <cstdint>

#include "train/data/sequences.h"

namespace rp {

// Deals out sequences in batches, epoch after epoch, each epoch in another order; a batch may span two epochs. The
// sequences must outlive this. Used by one thread at a time.
class BatchSource {
 public:
  BatchSource(const Sequences& sequences, std::int64_t batch_size, std::uint64_t seed);

  // The next batch_size sequences. Throws rp::Error (kBadInput) if the file was changed meanwhile.
  [[nodiscard]] TokenBatch next();

  // How many sequences next() has dealt out since the start of the first epoch. A source of the same sequences and
  // seed goes on from there after seek(), also with another batch size.
  [[nodiscard]] std::uint64_t cursor() const { return cursor_; }
  void seek(std::uint64_t cursor) { cursor_ = cursor; }

  [[nodiscard]] const Sequences& sequences() const { return sequences_; }
  [[nodiscard]] std::uint64_t epoch() const { return cursor_ / sequences_.size(); }

 private:
  // The order of the cursor's epoch, made when its first sequence is asked for.
  [[nodiscard]] const Packs& order();

  const Sequences& sequences_;
  std::uint64_t batch_size_;
  std::uint64_t seed_;
  std::uint64_t cursor_ = 0;
  Packs order_;
  std::uint64_t order_epoch_ = UINT64_MAX;
};

}  // namespace rp
