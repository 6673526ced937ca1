#include "train/data/batches.h"

#include "common/check.h"

namespace rp {

BatchSource::BatchSource(const Sequences& sequences, std::int64_t batch_size, std::uint64_t seed)
    : sequences_(sequences), batch_size_(static_cast<std::uint64_t>(batch_size)), seed_(seed) {
  RP_ASSERT(batch_size > 0);
}

TokenBatch BatchSource::next() {
  TokenBatch batch = sequences_.empty_batch(batch_size_);
  for (std::uint64_t row = 0; row < batch_size_; ++row, ++cursor_) {
    sequences_.fill_row(order(), cursor_ % sequences_.size(), row, batch);
  }
  return batch;
}

const Packs& BatchSource::order() {
  if (epoch() != order_epoch_) {
    order_ = sequences_.shuffled(seed_, epoch());
    order_epoch_ = epoch();
  }
  return order_;
}

}  // namespace rp
