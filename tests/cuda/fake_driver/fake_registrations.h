// tests/cuda/fake_driver/fake_registrations.h
// Refuses registrations of host memory for reasons that are not the caller's fault, as a driver and
// its kernel do: for a while, because of their length, or because another process is registering
// the same pages of a file.
//
// Thread-safe. Registrations of other processes are known, through shared memory, if
// share_registrations() was called before the fork.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <random>
#include <utility>

namespace rp::test {

struct RefusalOptions {
  int max_refusals = 0;                      // of each piece of memory in each context, at random up to this number
  std::uint64_t max_pin_bytes = UINT64_MAX;  // longer ones are refused
  bool refuses_company = false;              // refuses simultaneous ones; each takes 0.2 ms so that some coincide
};

// Creates the memory that processes share unless it exists.
void share_registrations();
// Returns how often registrations of the same pages coincided, in all processes that share the
// memory.
[[nodiscard]] int num_met_registrations();

class FakeRegistrations {
 public:
  FakeRegistrations(const RefusalOptions& options, unsigned seed) : options_(options), random_(seed) {}

  // Returns the driver's result before it examines the memory itself.
  [[nodiscard]] CUresult refusal(CUcontext context, void* memory, std::uint64_t bytes);
  // From now on all registrations are refused; false: no longer for this reason.
  void refuse_all(bool refuses) { refuses_all_.store(refuses); }

  void count_twice() { num_twice_.fetch_add(1); }
  [[nodiscard]] int num_twice() const { return num_twice_.load(); }

 private:
  [[nodiscard]] bool is_refused_once_more(CUcontext context, void* memory);

  const RefusalOptions options_;
  std::atomic<bool> refuses_all_{false};
  std::atomic<int> num_twice_{0};
  std::mutex mutex_;
  std::mt19937 random_;
  std::map<std::pair<CUcontext, void*>, int> refusals_left_;
};

}  // namespace rp::test
