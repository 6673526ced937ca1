// tests/cuda/signal_ring.h
// Tests the requirements of every backend of signals: workers in a ring pass numbers on, each after
// the previous one has signalled. signals_test.cc uses the driver without a GPU,
// gpu_signals_test.cc a GPU.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "device/device.h"
#include "device/stream_signal.h"
#include "hoststore/store.h"
#include "tests/common/wait_limits.h"
#include "tests/hoststore/processes.h"

namespace rp::test {

// The limits of waits in the ring: a machine with few processors passes each number slowly.
inline constexpr WaitLimits kRingLimits{&kNeverStop, 60 * kNsPerSecond};

inline std::unique_ptr<Store> store_of(int num_workers) {
  StoreSettings settings;
  settings.backing = "memfd";
  settings.num_workers = static_cast<std::uint32_t>(num_workers);
  settings.arena_limit_bytes = 16 << 20;
  std::vector<LayerRequest> layers(1, LayerRequest{.name = "l"});
  layers[0].parameters.push_back({.name = "w", .shape = {8}});
  return Store::create(settings, Catalogue::lay_out(layers, 1, false));
}

inline constexpr std::uint64_t kNumEvents = 300;  // several times the size of a ring

// Returns a cell of eight bytes in a worker's arena. The parts are: what it passed on with event n,
// what it starts from, and what it read at the end of the ring.
inline std::byte* cell(Store& store, int worker, std::uint64_t part, std::uint64_t n) {
  return store.arena(static_cast<std::uint64_t>(worker)).data((part * (kNumEvents + 1) + n) * 8, 8);
}
inline constexpr std::uint64_t kPassed = 0, kSource = 1, kRead = 2;

inline std::uint64_t number(std::uint64_t n) { return n * 7919; }

// Must be called before any worker begins.
inline std::unique_ptr<Store> prepared_store(int num_workers) {
  auto store = store_of(num_workers);
  for (int w = 0; w < num_workers; ++w) store->arena(static_cast<std::uint64_t>(w)).grow(1 << 20);
  for (std::uint64_t n = 1; n <= kNumEvents; ++n) {
    const std::uint64_t value = number(n);
    std::memcpy(cell(*store, 0, kSource, n), &value, 8);
  }
  return store;
}

// Worker 0 passes on number n with event n. Each other worker passes on what the previous one
// passed on. Worker 0 also reads what the last worker passed on with event n - 1, and again what
// that worker passed on long ago. All of it happens in streams; nothing is reported to the host.
inline void pass_on(Store& store, Device& device, int worker, unsigned seed) {
  const auto signals = device.connect(store, worker);
  Stream& upload = device.stream(StreamKind::kUploadActivations);
  Stream& download = device.stream(StreamKind::kDownload);
  const int before = (worker + store.num_workers() - 1) % store.num_workers();
  DeviceMemory memory = device.allocate(4096, MemoryUse::kInputs);
  StreamSignal uploaded(device, 2), downloaded(device, 2);
  std::mt19937 random(seed);
  const auto read = [&](std::uint64_t n, std::byte* to) {
    ASSERT_EQ(signals->wait(before, EventInEpoch(n), kRingLimits), WaitResult::kReached);
    signals->enqueue_wait(before, EventInEpoch(n), upload);
    upload.copy(to, cell(store, before, kPassed, n), 8);
  };
  for (std::uint64_t n = 1; n <= kNumEvents; ++n) {
    if (random() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    if (n > 1) {  // until the memory has been copied out
      ASSERT_EQ(downloaded.wait_at_least(n - 1, kRingLimits), WaitResult::kReached);
      downloaded.enqueue_wait(n - 1, upload);
    }
    if (worker == 0) {
      if (n > 1) read(n - 1, memory.data() + 8);
      if (n > 150) read(n - 150, memory.data() + 8);
      upload.copy(memory.data(), cell(store, 0, kSource, n), 8);
    } else {
      read(n, memory.data());
    }
    uploaded.publish(n, upload);
    ASSERT_EQ(uploaded.wait_at_least(n, kRingLimits), WaitResult::kReached);
    uploaded.enqueue_wait(n, download);
    download.copy(cell(store, worker, kPassed, n), memory.data(), 8);
    download.copy(cell(store, worker, kRead, n), memory.data() + 8, 8);
    signals->signal(EventInEpoch(n), download);
    downloaded.publish(n, download);
  }
  upload.drain();
  download.drain();
}

inline bool is_right(Store& store, int worker) {
  bool is_good = true;
  for (std::uint64_t n = 1; n <= kNumEvents; ++n) {
    std::uint64_t passed = 0, was_read = 0;
    std::memcpy(&passed, cell(store, worker, kPassed, n), 8);
    std::memcpy(&was_read, cell(store, worker, kRead, n), 8);
    is_good = is_good && passed == number(n);
    if (worker == 0 && n > 1) is_good = is_good && was_read == number(n > 150 ? n - 150 : n - 1);
  }
  return is_good;
}

// Runs rings of two, three and eight processes. `make(worker)` returns an object with a `device`
// and what it needs, in the worker's process.
template <typename Make>
void expect_order_between_processes(const Make& make) {
  for (const int num_workers : {2, 3, 8}) {
    const auto store = prepared_store(num_workers);
    std::vector<pid_t> children;
    for (int w = 0; w < num_workers; ++w) {
      children.push_back(start_process([&] {
        const auto view = Store::attach(duplicates(store->descriptors()));
        {
          const auto machine = make(w);
          pass_on(*view, *machine.device, w, static_cast<unsigned>(w));
        }
        return !testing::Test::HasFailure();
      }));
    }
    for (const pid_t child : children) EXPECT_EQ(wait_for_process(child), 0);
    for (int w = 0; w < num_workers; ++w) EXPECT_TRUE(is_right(*store, w)) << "worker " << w << " of " << num_workers;
  }
}

}  // namespace rp::test
