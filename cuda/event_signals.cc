#include "cuda/event_signals.h"

#include <atomic>
#include <cstring>
#include <thread>

#include "common/check.h"
#include "common/text.h"

namespace rp {

namespace {

const std::atomic<bool> kNeverStop{false};

}  // namespace

EventSignals::EventSignals(const CudaContext& context, Store& store, int worker)
    : context_(context), store_(store), worker_(worker), events_(store.num_workers()), opened_(store.num_workers()) {
  EventRing& ring = store.event_ring(worker);
  std::vector<CudaEventHandle>& own = events_[worker];
  for (std::uint64_t i = 0; i < kNum; ++i) {
    own.emplace_back(context, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
    CUipcEventHandle handle{};
    static_assert(sizeof(handle) == sizeof(ring.handles[0]));
    context.check(context.driver().ipc_get_event_handle(&handle, own.back().get()),
                  "making an event for other processes (--signals memops does without)");
    std::memcpy(ring.handles[i].data(), &handle, sizeof(handle));
  }
  ring.num_made.publish(ring.num_made.observe() + kNum);
}

void EventSignals::wait_reusable(EventInEpoch old) const {
  const auto fail = [&](const char* what) {
    throw Error(ExitCode::kHang,
                cat("worker ", worker_, ": event ", old.number(), " ", what, " for ", kTimeoutNs / kNsPerSecond, " s"));
  };
  const NumberWord<EventInEpoch>& complete = store_.worker_words(worker_).events;
  if (complete.wait_at_least(old, {&kNeverStop, kTimeoutNs}) != WaitResult::kReached) fail("was not complete");
  // SYNC: seq_cst, together with the loads of `held` below; pairs with enqueue_wait(). A consumer
  // that has not yet seen the value read here has stored `held` before.
  RP_ASSERT(complete.observe_in_order() >= old);
  for (int consumer = 0; consumer < store_.num_workers(); ++consumer) {
    const std::atomic<std::uint64_t>& held = store_.event_ring(consumer).held[worker_];
    const Deadline deadline = Deadline::after_ns(kTimeoutNs);
    // A consumer holds an event only during one call of the driver. Any other value of `held`
    // belongs to a later event.
    while (held.load(std::memory_order_seq_cst) == old.value()) {
      if (deadline.passed()) fail("was held by a consumer");
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

void EventSignals::signal(EventInEpoch event, Stream& stream) {
  auto& own = static_cast<CudaStream&>(stream);
  const std::uint64_t place = place_of(event);
  // After a change of the epoch all streams are idle, and no process uses the old numbers.
  EventInEpoch& recorded = recorded_[place];
  if (recorded != EventInEpoch() && recorded.epoch() == event.epoch()) wait_reusable(recorded);
  recorded = event;
  context_.make_current();
  context_.check(context_.driver().event_record(events_[worker_][place].get(), own.get()), "recording a signal");
  own.signal(store_.worker_words(worker_).events.word(), event.value());
  store_.worker_words(worker_).issued.publish(event);
}

WaitResult EventSignals::wait(int worker, EventInEpoch event, const WaitLimits& limits) {
  return wait_for_event(store_.worker_words(worker).issued, event, limits);
}

const std::vector<CudaEventHandle>& EventSignals::events_of(int worker) {
  std::vector<CudaEventHandle>& events = events_[worker];
  if (worker == worker_) return events;
  const EventRing& ring = store_.event_ring(worker);
  const std::uint64_t num_made = ring.num_made.observe();
  RP_ASSERT(num_made >= kNum);  // true because the worker has issued an event
  if (opened_[worker] == num_made) return events;
  opened_[worker] = num_made;
  events.clear();  // those of a process that has ended
  for (std::uint64_t i = 0; i < kNum; ++i) {
    CUipcEventHandle handle{};
    std::memcpy(&handle, ring.handles[i].data(), sizeof(handle));
    events.push_back(CudaEventHandle::open(context_, handle));
  }
  return events;
}

void EventSignals::enqueue_wait(int worker, EventInEpoch event, Stream& stream) {
  const NumberWord<EventInEpoch>& complete = store_.worker_words(worker).events;
  if (complete.observe() >= event) return;
  const std::vector<CudaEventHandle>& events = events_of(worker);
  std::atomic<std::uint64_t>& held = store_.event_ring(worker_).held[worker];
  // SYNC: seq_cst, together with the load of `complete` below; pairs with wait_reusable().
  held.store(event.value(), std::memory_order_seq_cst);
  if (complete.observe_in_order() < event) {
    context_.make_current();
    context_.check(context_.driver().stream_wait_event(static_cast<CudaStream&>(stream).get(),
                                                       events[place_of(event)].get(), CU_EVENT_WAIT_DEFAULT),
                   "enqueueing the wait for a signal");
  }
  held.store(0, std::memory_order_release);
}

}  // namespace rp
