// tests/cuda/fake_driver/fake_events.h
// Events of the driver without a GPU, in memory that processes share if they are forked after the first one is made.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>

namespace rp::test {

// How often an event was recorded, and which recording is done.
struct EventCell {
  std::atomic<std::uint64_t> recorded;
  std::atomic<std::uint64_t> completed;
  std::atomic<std::uint64_t> maker;  // event_maker() of the process that made it
};

}  // namespace rp::test

// What the driver's handles point to.
struct CUctx_st {
  int device;
  std::uint64_t number;  // of the contexts of this process; each stands for a process of its own
};
struct CUevent_st {
  CUevent_st(rp::test::EventCell* of_cell, std::uint64_t of_number, CUcontext of_context, unsigned with_flags)
      : cell(of_cell), number(of_number), context(of_context), flags(with_flags) {}

  rp::test::EventCell* const cell;
  const std::uint64_t number;
  const CUcontext context;
  const unsigned flags;
  std::atomic<bool> is_destroyed{false};
};

namespace rp::test {

// Makes the memory that events lie in, unless it is there.
void share_event_cells();

// A cell that is nobody's.
[[nodiscard]] EventCell& new_event_cell(CUcontext maker);

// As the driver: CUDA_SUCCESS, or what it says.
[[nodiscard]] CUresult handle_of(const CUevent_st& event, CUipcEventHandle* handle);
// Refuses an event of the process's own.
[[nodiscard]] CUresult cell_of(const CUipcEventHandle& handle, CUcontext opener, EventCell** cell);

}  // namespace rp::test
