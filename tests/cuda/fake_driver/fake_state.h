// tests/cuda/fake_driver/fake_state.h
// The state of the driver without a GPU, for its functions (fake_calls.cc).
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/cuda/fake_driver/fake_driver.h"
#include "tests/cuda/fake_driver/fake_events.h"
#include "tests/cuda/fake_driver/fake_memory.h"
#include "tests/cuda/fake_driver/fake_registrations.h"
#include "tests/cuda/fake_driver/fake_streams.h"

namespace rp::test {

struct FakeDriver::State {
  explicit State(const FakeDriverOptions& of)
      : options(of),
        memory(of.memory_bytes, of.registers_read_only),
        registrations(of.refusals, of.seed),
        streams(of.seed, of.max_delay_us) {}

  struct Failure {
    CUresult result;
    int calls_left;
  };

  const FakeDriverOptions options;
  std::mutex mutex;               // guards all members below except the streams and registrations
  CUresult fault = CUDA_SUCCESS;  // of the GPU; every call returns it
  std::map<std::string, int> calls;
  std::map<std::string, Failure> failures;
  std::vector<std::unique_ptr<CUctx_st>> contexts;
  std::vector<std::unique_ptr<CUevent_st>> events;
  std::map<CUcontext, std::set<std::string>> loaded_kernels;
  FakeMemory memory;
  FakeRegistrations registrations;  // has its own lock
  FakeStreams streams;
};

// Returns the state of the only FakeDriver of this process.
[[nodiscard]] FakeDriver::State& fake_state();

// Returns the driver's functions, which use that state.
[[nodiscard]] CudaDriver fake_calls();

}  // namespace rp::test
