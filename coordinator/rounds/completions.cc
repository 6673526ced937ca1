#include "coordinator/rounds/completions.h"

#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

Completions::Completions(Store& store, std::function<void()> on_hang) : store_(store), on_hang_(std::move(on_hang)) {
  for (int worker = 0; worker < store.num_workers(); ++worker) rings_.push_back(store.completion_reader(worker));
}

std::optional<Completion> Completions::wait(int worker, SlotNumber slot, WaitRecord& record,
                                            const std::function<std::int64_t()>& work) {
  RingReader<Completion>& ring = rings_[worker];
  Completion completion;
  std::uint64_t progress = store_.progress();
  std::int64_t silent_ns = 0;  // the sum of waits, not by the clock, so that a pause of the whole run does not count
  while (!ring.try_pop(completion)) {
    record.publish_once(
        {.kind = WaitKind::kCompletion, .slot = static_cast<std::int64_t>(slot.value()), .numbers = {worker}});
    const std::int64_t wait_ns = work();
    if (ring.wait({&is_interrupted_, wait_ns}) == WaitResult::kStopped) return std::nullopt;
    silent_ns = store_.progress() == progress ? silent_ns + wait_ns : 0;
    progress = store_.progress();
    if (silent_ns > store_.header().wait_timeout_ns) {
      if (on_hang_) on_hang_();
      throw Error(ExitCode::kHang,
                  cat("worker ", worker, " does not complete its task, and nothing was computed or updated for ",
                      store_.header().wait_timeout_ns / kNsPerSecond, " s; is it stopped?"));
    }
  }
  record.publish_none();
  return completion;
}

void Completions::interrupt() {
  is_interrupted_.store(true, std::memory_order_release);
  for (const RingReader<Completion>& ring : rings_) ring.wake();
}

void Completions::discard() {
  for (RingReader<Completion>& ring : rings_) ring.discard();
}

}  // namespace rp
