#include "device/output_signals.h"

#include "device/device.h"
#include "hoststore/store.h"

namespace rp {

void HostSignals::signal(EventInEpoch event, Stream& stream) {
  stream.signal(store_.worker_words(worker_).events.word(), event.value());
}

WaitResult HostSignals::wait(int worker, EventInEpoch event, const WaitLimits& limits) {
  return store_.worker_words(worker).events.wait_at_least(event, limits);
}

void HostSignals::enqueue_wait(int, EventInEpoch, Stream&) {}

std::unique_ptr<OutputSignals> Device::connect(Store& store, int number) {
  return std::make_unique<HostSignals>(store, number);
}

}  // namespace rp
