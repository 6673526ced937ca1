// tests/cuda/nccl_in_streams.h
// Lets the groups of the fake NCCL take their place in the streams of the fake driver.
#pragma once

#include "tests/cuda/fake_driver/fake_state.h"
#include "tests/nccl/fake_nccl.h"

namespace rp::test {

inline void set_reached(void* ticket) {
  static_cast<FakeTicket*>(ticket)->is_reached.store(true, std::memory_order_release);
}

[[nodiscard]] inline FakeNcclSettings in_streams_of_driver(unsigned seed) {
  const auto enqueue = [](CUstream_st* stream, FakeTicket& ticket) {
    FakeStreams& streams = fake_state().streams;
    streams.enqueue(stream, {.kind = FakeOperation::Kind::kCall, .to = &ticket, .function = &set_reached}, "exchange");
    streams.enqueue(stream, {.kind = FakeOperation::Kind::kWaitValue, .from = &ticket.done, .value = 1}, "end");
  };
  return {.seed = seed, .enqueue = enqueue};
}

}  // namespace rp::test
