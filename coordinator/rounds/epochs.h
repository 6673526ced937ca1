// coordinator/rounds/epochs.h
// Changes the epoch of the run when a worker is lost or joins, and knows which workers take part
// (docs/design/replay.md).
//
// First the next epoch is wanted: all workers that take part drop their tasks and acknowledge. When they have, the
// epoch begins with all workers that are ready. Owned by the RoundFlow and guarded by the Coordinator's mutex. Writes
// the epoch word, `takes_part` of each worker and, for a worker that has died, its word `events`. The Store must
// outlive it.
#pragma once

#include <optional>
#include <set>
#include <vector>

#include "hoststore/store.h"

namespace rp {

class Epochs {
 public:
  // All workers take part in the first epoch, which has begun.
  explicit Epochs(Store& store);

  [[nodiscard]] bool is_changing() const { return is_changing_; }
  // The present epoch; while it changes, the one that is wanted.
  [[nodiscard]] Epoch epoch() const { return epoch_; }

  // Notes that a worker has died. Ends the present epoch if the worker took part in it, or was ready to. REQUIRES:
  // nothing of the worker writes to the store any more.
  void lose(int worker);
  // Ends the present epoch if a worker is ready that does not take part. REQUIRES: !is_changing().
  void admit_ready();

  // Returns a worker that has not stopped for the wanted epoch yet, or nothing.
  [[nodiscard]] std::optional<int> missing() const;
  // Returns the workers that are ready for the wanted epoch, in ascending order.
  [[nodiscard]] std::vector<int> ready() const;
  // Begins the wanted epoch. REQUIRES: missing() returned nothing; what the workers read at its beginning is written.
  void begin(const std::vector<int>& members);

 private:
  void want_next();
  [[nodiscard]] bool is_ready(int worker) const {
    return store_.worker_words(worker).acknowledged.observe() == epoch_.value() + 1;
  }

  Store& store_;
  Epoch epoch_{};
  bool is_changing_ = false;
  std::set<int> members_;      // of the epoch that began last, without those that were lost
  std::set<int> waiting_for_;  // workers that must be ready before the wanted epoch begins
};

}  // namespace rp
