// tests/cuda/fake_driver/fake_registrations.h
// Refuses registrations of host memory as a driver and its kernel do without a fault of the caller's: for a while, for
// their length, or because another process registers the same pages of a file at this moment.
//
// For any thread. What processes register at once is known in memory that they share, if share_registrations() was
// called before the fork.
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
  int max_refusals = 0;                      // of each piece of memory, at random up to so many, in each context
  std::uint64_t max_pin_bytes = UINT64_MAX;  // longer ones are refused
  bool refuses_company = false;              // and a registration takes a fifth of a millisecond, to meet some
};

// Makes the memory in which processes meet, unless it is there.
void share_registrations();
// How often registrations of the same pages met, in all processes that share it.
[[nodiscard]] int num_met_registrations();

class FakeRegistrations {
 public:
  FakeRegistrations(const RefusalOptions& options, unsigned seed) : options_(options), random_(seed) {}

  // What the driver says of it before it looks at the memory itself.
  [[nodiscard]] CUresult refusal(CUcontext context, void* memory, std::uint64_t bytes);
  // From now on all are refused, or none.
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
