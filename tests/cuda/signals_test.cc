// The conformance suite of OutputSignals (docs/design/signals.md): all backends, two to eight
// workers, as threads and as processes, with delays on each side.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <random>
#include <thread>
#include <vector>

#include "cuda/cuda_device.h"
#include "cuda/event_signals.h"
#include "device/cpu_device.h"
#include "device/stream_signal.h"
#include "tests/cuda/fake_driver/fake_driver.h"
#include "tests/cuda/signal_ring.h"
#include "tests/hoststore/processes.h"

namespace rp::test {
namespace {

constexpr WaitLimits kAtOnce{&kNeverStop, 0};

// A worker's device with its driver.
struct Machine {
  std::unique_ptr<FakeDriver> driver;
  std::unique_ptr<Device> device;
};
struct Backend {
  const char* name;
  std::optional<GpuSignals> signals;           // nullopt: the processor
  std::function<Machine(unsigned seed)> make;  // called in the process that uses it
};
void PrintTo(const Backend& backend, std::ostream* out) { *out << backend.name; }

std::unique_ptr<Device> gpu(const CudaDriver& driver, GpuSignals signals) {
  return std::make_unique<CudaDevice>(driver, CudaDeviceOptions{.memory_bytes = 4 << 20, .signals = signals},
                                      [](const std::string&) {});
}

class AnySignals : public testing::TestWithParam<Backend> {};

TEST_P(AnySignals, OrderTheWorkOfTwoToEightThreads) {
  for (const int num_workers : {2, 3, 8}) {
    const auto store = prepared_store(num_workers);
    const Machine shared = GetParam().make(static_cast<unsigned>(num_workers));
    std::vector<std::thread> threads;
    for (int w = 0; w < num_workers; ++w) {
      threads.emplace_back([&, w] {
        std::unique_ptr<Device> device = std::make_unique<CpuDevice>();
        if (GetParam().signals) device = gpu(shared.driver->table(), *GetParam().signals);
        pass_on(*store, *device, w, static_cast<unsigned>(w));
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (int w = 0; w < num_workers; ++w) EXPECT_TRUE(is_right(*store, w)) << "worker " << w << " of " << num_workers;
  }
}

TEST_P(AnySignals, OrderTheWorkOfTwoToEightProcesses) {
  FakeDriver::share_between_processes();
  expect_order_between_processes([](int worker) { return GetParam().make(static_cast<unsigned>(worker) + 1); });
}

TEST_P(AnySignals, GiveNothingToWaitForBeforeTheSignalIsEnqueued) {
  const auto store = store_of(2);
  Machine machine = GetParam().make(1);
  const auto signals = machine.device->connect(*store, 0);
  EXPECT_EQ(signals->wait(1, EventInEpoch(1), kAtOnce), WaitResult::kTimedOut);
  EXPECT_EQ(signals->wait(0, EventInEpoch(1), kAtOnce), WaitResult::kTimedOut);
  signals->signal(EventInEpoch(1), machine.device->stream(StreamKind::kDownload));
  EXPECT_EQ(signals->wait(0, EventInEpoch(1), kRingLimits), WaitResult::kReached);
  machine.device->stream(StreamKind::kDownload).drain();
  EXPECT_EQ(store->worker_words(0).events.observe(), EventInEpoch(1)) << "what it has done is proven";
}

Machine make_gpu(GpuSignals signals, unsigned seed) {
  Machine machine{std::make_unique<FakeDriver>(FakeDriverOptions{.seed = seed, .max_delay_us = 20}), nullptr};
  machine.device = gpu(machine.driver->table(), signals);
  return machine;
}

INSTANTIATE_TEST_SUITE_P(Each, AnySignals,
                         testing::Values(Backend{"host", std::nullopt,
                                                 [](unsigned) {
                                                   return Machine{nullptr, std::make_unique<CpuDevice>()};
                                                 }},
                                         Backend{"words", GpuSignals::kWords,
                                                 [](unsigned seed) { return make_gpu(GpuSignals::kWords, seed); }},
                                         Backend{"events", GpuSignals::kEvents,
                                                 [](unsigned seed) { return make_gpu(GpuSignals::kEvents, seed); }}),
                         [](const auto& info) { return std::string(info.param.name); });

// Tests of single backends.

TEST(EventSignals, RecordNoEventAgainThatAConsumerIsAboutToWaitFor) {
  const auto store = store_of(2);
  const FakeDriver driver;
  CudaDevice device(driver.table(), {.memory_bytes = 4 << 20, .signals = GpuSignals::kEvents},
                    [](const std::string&) {});
  const auto signals = device.connect(*store, 0);
  Stream& download = device.stream(StreamKind::kDownload);
  for (std::uint64_t n = 1; n <= EventRing::kNumEvents; ++n) signals->signal(EventInEpoch(n), download);
  download.drain();
  std::atomic<std::uint64_t>& held = store->event_ring(1).held[0];
  held.store(1);
  std::atomic<bool> is_recorded{false};
  std::thread producer([&] {
    signals->signal(EventInEpoch(EventRing::kNumEvents + 1), download);
    is_recorded.store(true);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // long enough for a wrong recording
  EXPECT_FALSE(is_recorded.load());
  held.store(0);
  producer.join();
  held.store(3);  // an event of another worker has no effect
  signals->signal(EventInEpoch(EventRing::kNumEvents + 2), download);
  download.drain();
}

TEST(EventSignals, WaitForNothingThatIsComplete) {
  const auto store = store_of(2);
  const FakeDriver driver;
  CudaDevice device(driver.table(), {.memory_bytes = 4 << 20, .signals = GpuSignals::kEvents},
                    [](const std::string&) {});
  const auto signals = device.connect(*store, 0);
  signals->signal(EventInEpoch(1), device.stream(StreamKind::kDownload));
  device.stream(StreamKind::kDownload).drain();
  const int waits = driver.num_calls("cuStreamWaitEvent");
  signals->enqueue_wait(0, EventInEpoch(1), device.stream(StreamKind::kUploadActivations));
  EXPECT_EQ(driver.num_calls("cuStreamWaitEvent"), waits);
}

// Cards without access to each other's memory may refuse.
TEST(EventSignals, SayWhatToDoWhereAnotherWorkersEventCannotBeOpened) {
  const auto store = store_of(2);
  FakeDriver driver;
  const CudaDeviceOptions options{.memory_bytes = 4 << 20, .signals = GpuSignals::kEvents};
  CudaDevice maker(driver.table(), options, [](const std::string&) {});
  const auto made = maker.connect(*store, 0);
  made->signal(EventInEpoch(1), maker.stream(StreamKind::kDownload));
  maker.stream(StreamKind::kDownload).drain();
  store->worker_words(0).events.publish(EventInEpoch(0));  // as if it were in progress
  CudaDevice device(driver.table(), options, [](const std::string&) {});
  const auto signals = device.connect(*store, 1);
  driver.fail("cuIpcOpenEventHandle", CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  try {
    signals->enqueue_wait(0, EventInEpoch(1), device.stream(StreamKind::kUploadActivations));
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("--signals memops"), std::string::npos);
  }
}

TEST(WordSignals, SayWhatTheGpuLacks) {
  const auto store = store_of(2);
  const FakeDriver driver({.has_word_operations = false});
  CudaDevice device(driver.table(), {.memory_bytes = 4 << 20}, [](const std::string&) {});
  try {
    (void)device.connect(*store, 0);
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kNoResource);
    EXPECT_NE(std::string(error.what()).find("--signals events"), std::string::npos);
  }
}

}  // namespace
}  // namespace rp::test
