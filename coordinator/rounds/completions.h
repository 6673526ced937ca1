// coordinator/rounds/completions.h
// What the workers say of their tasks, in slot order, and how long nobody may say anything.
//
// Owned by the Coordinator. wait() belongs to its commit thread, stop() to any. The Store must outlive it.
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
  // `on_hang`: called before wait() throws because nothing goes on; may be empty.
  Completions(Store& store, std::function<void()> on_hang);

  static constexpr std::int64_t kShortWait = kNsPerMs;
  static constexpr std::int64_t kLongWait = 100 * kNsPerMs;

  // The worker's next completion: that of `slot`, since a worker keeps slot order. Nothing after stop(). Calls `work`
  // before each sleep, which says for how long, in ns; what is waited for stands in `record` meanwhile. Throws
  // rp::Error (kHang) when nothing was computed or updated for the store's wait_timeout_ns.
  [[nodiscard]] std::optional<Completion> wait(int worker, std::uint64_t slot, WaitRecord& record,
                                               const std::function<std::int64_t()>& work);
  void stop();

 private:
  Store& store_;
  const std::function<void()> on_hang_;
  std::vector<RingReader<Completion>> rings_;  // by worker
  std::atomic<bool> stop_{false};
};

}  // namespace rp
