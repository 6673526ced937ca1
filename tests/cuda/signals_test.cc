// The conformance suite of OutputSignals (docs/design/signals.md): all backends, two to eight workers, as threads and as
// processes, with delays on each side.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "cuda/cuda_device.h"
#include "cuda/event_signals.h"
#include "device/cpu_device.h"
#include "device/stream_signal.h"
#include "tests/cuda/fake_driver.h"
#include "tests/hoststore/processes.h"

namespace rp::test {
namespace {

constexpr std::atomic<bool> kNeverStop{false};
constexpr WaitLimits kLong{&kNeverStop, 60 * kNsPerSecond};
constexpr WaitLimits kAtOnce{&kNeverStop, 0};

std::unique_ptr<Store> store_of(int num_workers) {
  StoreSettings settings;
  settings.backing = "memfd";
  settings.num_workers = static_cast<std::uint32_t>(num_workers);
  settings.arena_limit_bytes = 16 << 20;
  std::vector<LayerRequest> layers(1, LayerRequest{.name = "l"});
  layers[0].parameters.push_back({.name = "w", .shape = {8}});
  return Store::create(settings, Catalogue::lay_out(layers, 1, false));
}

// A worker's device with what drives it.
struct Machine {
  std::unique_ptr<FakeDriver> driver;
  std::unique_ptr<Device> device;
};
struct Backend {
  const char* name;
  std::optional<GpuSignals> signals;  // nothing: the processor
  std::function<Machine(unsigned seed)> make;  // in the process that uses it
};

std::unique_ptr<Device> gpu(const CudaDriver& driver, GpuSignals signals) {
  return std::make_unique<CudaDevice>(driver, CudaDeviceOptions{.memory_bytes = 4 << 20, .signals = signals}, [](const std::string&) {});
}

constexpr std::uint64_t kNumEvents = 300;  // several times a ring

// Cells of eight bytes in a worker's arena: what it passed on with event n, what it starts from, what it read of the ring's end.
std::byte* cell(Store& store, int worker, std::uint64_t part, std::uint64_t n) {
  return store.arena(static_cast<std::uint64_t>(worker)).data((part * (kNumEvents + 1) + n) * 8, 8);
}
constexpr std::uint64_t kPassed = 0, kSource = 1, kRead = 2;

std::uint64_t number(std::uint64_t n) { return n * 7919; }

// Before any worker begins.
std::unique_ptr<Store> prepared_store(int num_workers) {
  auto store = store_of(num_workers);
  for (int w = 0; w < num_workers; ++w) store->arena(static_cast<std::uint64_t>(w)).grow(1 << 20);
  for (std::uint64_t n = 1; n <= kNumEvents; ++n) {
    const std::uint64_t value = number(n);
    std::memcpy(cell(*store, 0, kSource, n), &value, 8);
  }
  return store;
}

// Worker 0 gives number n with event n; each other one passes on what the one before gave. Worker 0 also reads what the last one
// passed on with event n - 1, and once more what it passed on long ago. All in streams: the host is told of nothing.
void pass_on(Store& store, Device& device, int worker, unsigned seed) {
  const auto signals = device.connect(store, worker);
  Stream& upload = device.stream(StreamKind::kUploadActivations);
  Stream& download = device.stream(StreamKind::kDownload);
  const int before = (worker + store.num_workers() - 1) % store.num_workers();
  DeviceMemory memory = device.allocate(4096);
  StreamSignal uploaded(device, 2), downloaded(device, 2);
  std::mt19937 random(seed);
  const auto read = [&](std::uint64_t n, std::byte* to) {
    ASSERT_EQ(signals->wait(before, n, kLong), WaitResult::kReached);
    signals->come_after(before, n, upload);
    upload.copy(to, cell(store, before, kPassed, n), 8);
  };
  for (std::uint64_t n = 1; n <= kNumEvents; ++n) {
    if (random() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    if (n > 1) {  // the memory is copied out
      ASSERT_EQ(downloaded.wait_at_least(n - 1, kLong), WaitResult::kReached);
      downloaded.come_after(n - 1, upload);
    }
    if (worker == 0) {
      if (n > 1) read(n - 1, memory.data() + 8);
      if (n > 150) read(n - 150, memory.data() + 8);
      upload.copy(memory.data(), cell(store, 0, kSource, n), 8);
    } else {
      read(n, memory.data());
    }
    uploaded.publish(n, upload);
    ASSERT_EQ(uploaded.wait_at_least(n, kLong), WaitResult::kReached);
    uploaded.come_after(n, download);
    download.copy(cell(store, worker, kPassed, n), memory.data(), 8);
    download.copy(cell(store, worker, kRead, n), memory.data() + 8, 8);
    signals->signal(n, download);
    downloaded.publish(n, download);
  }
  upload.drain();
  download.drain();
}

bool is_right(Store& store, int worker) {
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
  FakeDriver::share_events();
  for (const int num_workers : {2, 3, 8}) {
    const auto store = prepared_store(num_workers);
    std::vector<pid_t> children;
    for (int w = 0; w < num_workers; ++w) {
      children.push_back(start_process([&] {
        const auto view = Store::attach(duplicates(store->descriptors()));
        Machine machine = GetParam().make(static_cast<unsigned>(w) + 1);
        pass_on(*view, *machine.device, w, static_cast<unsigned>(w));
        machine.device.reset();
        return !testing::Test::HasFailure();
      }));
    }
    for (const pid_t child : children) EXPECT_EQ(wait_for_process(child), 0);
    for (int w = 0; w < num_workers; ++w) EXPECT_TRUE(is_right(*store, w)) << "worker " << w << " of " << num_workers;
  }
}

TEST_P(AnySignals, GiveNothingToWaitForBeforeTheSignalIsEnqueued) {
  const auto store = store_of(2);
  Machine machine = GetParam().make(1);
  const auto signals = machine.device->connect(*store, 0);
  EXPECT_EQ(signals->wait(1, 1, kAtOnce), WaitResult::kTimedOut);
  EXPECT_EQ(signals->wait(0, 1, kAtOnce), WaitResult::kTimedOut);
  signals->signal(1, machine.device->stream(StreamKind::kDownload));
  EXPECT_EQ(signals->wait(0, 1, kLong), WaitResult::kReached);
  machine.device->stream(StreamKind::kDownload).drain();
  EXPECT_EQ(store->worker_words(0).events.observe(), 1U) << "what it has done is proven";
}

Machine make_gpu(GpuSignals signals, unsigned seed) {
  Machine machine{std::make_unique<FakeDriver>(FakeDriverOptions{.seed = seed, .max_delay_us = 20}), nullptr};
  machine.device = gpu(machine.driver->table(), signals);
  return machine;
}

INSTANTIATE_TEST_SUITE_P(
    Each, AnySignals,
    testing::Values(Backend{"host", std::nullopt, [](unsigned) { return Machine{nullptr, std::make_unique<CpuDevice>()}; }},
                    Backend{"words", GpuSignals::kWords, [](unsigned seed) { return make_gpu(GpuSignals::kWords, seed); }},
                    Backend{"events", GpuSignals::kEvents, [](unsigned seed) { return make_gpu(GpuSignals::kEvents, seed); }}),
    [](const auto& info) { return std::string(info.param.name); });

// What only one backend has.

TEST(EventSignals, RecordNoEventAnewThatAConsumerIsAboutToWaitFor) {
  const auto store = store_of(2);
  const FakeDriver driver;
  CudaDevice device(driver.table(), {.memory_bytes = 4 << 20, .signals = GpuSignals::kEvents}, [](const std::string&) {});
  const auto signals = device.connect(*store, 0);
  Stream& download = device.stream(StreamKind::kDownload);
  for (std::uint64_t n = 1; n <= EventRing::kNumEvents; ++n) signals->signal(n, download);
  download.drain();
  std::atomic<std::uint64_t>& held = store->event_ring(1).held[0];
  held.store(1);
  std::atomic<bool> is_recorded{false};
  std::thread producer([&] {
    signals->signal(EventRing::kNumEvents + 1, download);
    is_recorded.store(true);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // long enough for a wrong one
  EXPECT_FALSE(is_recorded.load());
  held.store(0);
  producer.join();
  held.store(3);  // another one's event is nobody's concern
  signals->signal(EventRing::kNumEvents + 2, download);
  download.drain();
}

TEST(EventSignals, WaitForNothingThatIsComplete) {
  const auto store = store_of(2);
  const FakeDriver driver;
  CudaDevice device(driver.table(), {.memory_bytes = 4 << 20, .signals = GpuSignals::kEvents}, [](const std::string&) {});
  const auto signals = device.connect(*store, 0);
  signals->signal(1, device.stream(StreamKind::kDownload));
  device.stream(StreamKind::kDownload).drain();
  const int waits = driver.num_calls("cuStreamWaitEvent");
  signals->come_after(0, 1, device.stream(StreamKind::kUploadActivations));
  EXPECT_EQ(driver.num_calls("cuStreamWaitEvent"), waits);
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
