#include "device/output_signals.h"

#include "device/device.h"
#include "hoststore/store.h"

namespace rp {

void HostSignals::signal(EventInEpoch event, Stream& stream) {
  stream.signal(store_.worker_words(worker_).events.word(), event.value());
}

WaitResult wait_for_event(const NumberWord<EventInEpoch>& word, EventInEpoch event, const WaitLimits& limits) {
  const WaitResult result = word.wait_at_least(event, limits);
  if (result != WaitResult::kReached || word.observe().epoch() == event.epoch()) return result;
  return WaitResult::kStopped;
}

WaitResult HostSignals::wait(int worker, EventInEpoch event, const WaitLimits& limits) {
  return wait_for_event(store_.worker_words(worker).events, event, limits);
}

void HostSignals::enqueue_wait(int, EventInEpoch, Stream&) {}

std::unique_ptr<OutputSignals> Device::connect(Store& store, int number) {
  return std::make_unique<HostSignals>(store, number);
}

}  // namespace rp
