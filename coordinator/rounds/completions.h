// coordinator/rounds/completions.h
// Reads the workers' completions in slot order, and detects a run that hangs.
//
// Owned by the CommitThread, whose thread calls all methods except interrupt(). The Store must
// outlive it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "common/system/clock.h"
#include "hoststore/records/wait_record.h"
#include "hoststore/store.h"

namespace rp {

class Completions {
 public:
  // `on_hang`: called before wait() throws because nothing progresses; may be empty.
  Completions(Store& store, std::function<void()> on_hang);

  static constexpr std::int64_t kShortWait = kNsPerMs;
  static constexpr std::int64_t kLongWait = 100 * kNsPerMs;

  // Blocks until the worker's next completion arrives and returns it. It is the completion of
  // `slot`, since a worker keeps slot order. Returns nothing after interrupt(). Calls `work` before each
  // sleep; it returns how long to sleep at most, in ns. `record` shows the wait. Throws rp::Error
  // (kHang) if nothing was computed or updated for the store's wait_timeout_ns.
  [[nodiscard]] std::optional<Completion> wait(int worker, SlotNumber slot, WaitRecord& record,
                                               const std::function<std::int64_t()>& work);
  // Ends the present and all later calls of wait(), until resume(). For any thread.
  void interrupt();
  // Drops the completions of the epoch that has ended. REQUIRES: no worker writes completions.
  void discard();
  void resume() { is_interrupted_.store(false); }
  // Set by interrupt(): ends other waits of this thread.
  [[nodiscard]] const std::atomic<bool>& is_interrupted() const { return is_interrupted_; }

 private:
  Store& store_;
  const std::function<void()> on_hang_;
  std::vector<RingReader<Completion>> rings_;  // by worker
  std::atomic<bool> is_interrupted_{false};
};

}  // namespace rp
