#include "cuda/word_signals.h"

#include "common/text.h"

namespace rp {

WordSignals::WordSignals(const CudaContext& context, const PinnedMemory& pinned, Store& store, int worker)
    : context_(context), pinned_(pinned), store_(store), worker_(worker) {
  if (context.attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) == 0) {
    throw Error(
        ExitCode::kNoResource,
        cat("GPU ", context.uuid(), " or its driver has no 64-bit stream memory operations; use --signals events"));
  }
}

CUdeviceptr WordSignals::events_address(int worker) const {
  return pinned_.device_address(reinterpret_cast<const std::byte*>(&store_.worker_words(worker).events));
}

// The write is enqueued before `issued` is published. So a GPU that waits for the event waits for a
// write that is already enqueued.
void WordSignals::signal(EventInEpoch event, Stream& stream) {
  context_.make_current();
  context_.check(context_.driver().stream_write_value64(static_cast<CudaStream&>(stream).get(), events_address(worker_),
                                                        event.value(), CU_STREAM_WRITE_VALUE_DEFAULT),
                 "enqueueing the write of a signal");
  store_.worker_words(worker_).issued.publish(event);
}

WaitResult WordSignals::wait(int worker, EventInEpoch event, const WaitLimits& limits) {
  return wait_for_event(store_.worker_words(worker).issued, event, limits);
}

void WordSignals::enqueue_wait(int worker, EventInEpoch event, Stream& stream) {
  if (store_.worker_words(worker).events.observe() >= event) return;
  context_.make_current();
  context_.check(context_.driver().stream_wait_value64(static_cast<CudaStream&>(stream).get(), events_address(worker),
                                                       event.value(), CU_STREAM_WAIT_VALUE_GEQ),
                 "enqueueing the wait for a signal");
}

}  // namespace rp
