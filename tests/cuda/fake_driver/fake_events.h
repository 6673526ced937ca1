// tests/cuda/fake_driver/fake_events.h
// Events of the driver without a GPU, in memory that processes share if they are forked after the
// first one is created.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>

namespace rp::test {

// Counts how often an event was recorded, and which recording is complete.
struct EventCell {
  std::atomic<std::uint64_t> recorded;
  std::atomic<std::uint64_t> completed;
  std::atomic<std::uint64_t> maker;  // event_maker() of the process that created it
};

}  // namespace rp::test

// The objects that the driver's handles point to.
struct CUctx_st {
  int device;
  std::uint64_t number;  // index in this process's contexts; each represents a separate process
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

// Creates the memory of the events unless it exists.
void share_event_cells();

// Returns an unused cell.
[[nodiscard]] EventCell& new_event_cell(CUcontext maker);

// Returns what the driver would: CUDA_SUCCESS or an error.
[[nodiscard]] CUresult handle_of(const CUevent_st& event, CUipcEventHandle* handle);
// Refuses an event of the same process.
[[nodiscard]] CUresult cell_of(const CUipcEventHandle& handle, CUcontext opener, EventCell** cell);

}  // namespace rp::test
