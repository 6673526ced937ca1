// Tests what the protocol needs from any device. A new device is added by a line at the end.
#include "device/device.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <ostream>
#include <thread>
#include <vector>

#include "device/cpu_device.h"
#include "device/emulated_device.h"
#include "tests/common/wait_limits.h"

namespace rp {
namespace {

struct DeviceFactory {
  const char* name;
  std::function<std::unique_ptr<Device>()> create;
  bool moves_data = true;
};
void PrintTo(const DeviceFactory& factory, std::ostream* out) { *out << factory.name; }

constexpr std::array kStreams = {StreamKind::kUploadParameters, StreamKind::kUploadActivations, StreamKind::kDownload};

class AnyDevice : public testing::TestWithParam<DeviceFactory> {
 protected:
  std::unique_ptr<Device> device_ = GetParam().create();
};

TEST_P(AnyDevice, GivesMemoryThatIsAlignedAndItsOwn) {
  std::vector<DeviceMemory> pieces;
  for (const std::uint64_t bytes : {1UL, 4096UL, 5000UL, 3UL << 20}) {
    pieces.push_back(device_->allocate(bytes, MemoryUse::kInputs));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pieces.back().data()) % 4096, 0U);
    EXPECT_GE(pieces.back().bytes(), bytes);
  }
  std::vector<std::byte> ones(5000, std::byte{1}), twos(4096, std::byte{2}), back(5000);
  Stream& stream = device_->stream(StreamKind::kDownload);
  stream.copy(pieces[2].data(), ones.data(), ones.size());
  stream.copy(pieces[1].data(), twos.data(), twos.size());
  stream.copy(back.data(), pieces[2].data(), back.size());
  stream.drain();
  EXPECT_TRUE(!GetParam().moves_data || back == ones);
  EXPECT_EQ(device_->allocate(0, MemoryUse::kInputs).bytes(), 0U);
}

TEST_P(AnyDevice, DoesWhatAStreamGotInOrder) {
  for (const StreamKind kind : kStreams) {
    Stream& stream = device_->stream(kind);
    DeviceMemory memory = device_->allocate(sizeof(std::uint64_t), MemoryUse::kInputs);
    std::vector<std::uint64_t> from(1000), to(1000);
    for (std::uint64_t i = 0; i < from.size(); ++i) {  // all through one word of the device, which each copy overwrites
      from[i] = i + 1;
      stream.copy(memory.data(), reinterpret_cast<const std::byte*>(&from[i]), sizeof(from[i]));
      stream.copy(reinterpret_cast<std::byte*>(&to[i]), memory.data(), sizeof(to[i]));
    }
    stream.drain();
    EXPECT_TRUE(!GetParam().moves_data || to == from);
  }
}

TEST_P(AnyDevice, SignalsAfterTheCopiesBeforeTheSignal) {
  for (const StreamKind kind : kStreams) {
    Stream& stream = device_->stream(kind);
    SequenceWord word{};
    std::vector<std::uint64_t> from(4096), to(4096);
    std::thread reader([&] {
      for (std::uint64_t turn = 1; turn <= 50; ++turn) {
        ASSERT_EQ(word.wait_at_least(2 * turn - 1, kLong), WaitResult::kReached);
        EXPECT_TRUE(!GetParam().moves_data || to.front() == turn);
        EXPECT_TRUE(!GetParam().moves_data || to.back() == turn);
        word.publish(2 * turn);  // the writer may continue
      }
    });
    for (std::uint64_t turn = 1; turn <= 50; ++turn) {
      std::fill(from.begin(), from.end(), turn);
      stream.copy(reinterpret_cast<std::byte*>(to.data()), reinterpret_cast<const std::byte*>(from.data()),
                  from.size() * sizeof(from[0]));
      stream.signal(word, 2 * turn - 1);
      ASSERT_EQ(word.wait_at_least(2 * turn, kLong), WaitResult::kReached);
    }
    reader.join();
  }
}

TEST_P(AnyDevice, CallsAfterWhatIsBeforeTheCall) {
  for (const StreamKind kind : kStreams) {
    Stream& stream = device_->stream(kind);
    struct Seen {
      std::uint64_t value = 0;
      std::vector<std::uint64_t> values;
    } seen;
    std::vector<std::uint64_t> numbers(100);
    for (std::uint64_t i = 0; i < numbers.size(); ++i) {
      numbers[i] = i;
      stream.copy(reinterpret_cast<std::byte*>(&seen.value), reinterpret_cast<const std::byte*>(&numbers[i]), 8);
      stream.call(
          [](void* argument) {
            auto& s = *static_cast<Seen*>(argument);
            s.values.push_back(s.value);
          },
          &seen);
    }
    stream.drain();
    EXPECT_EQ(seen.values, GetParam().moves_data ? numbers : std::vector<std::uint64_t>(numbers.size()));
  }
}

TEST_P(AnyDevice, IsDrainedWhenAllThatWasEnqueuedIsDone) {
  for (const StreamKind kind : kStreams) {
    Stream& stream = device_->stream(kind);
    stream.drain();  // nothing is enqueued
    std::atomic<int> num_done{0};
    for (int i = 1; i <= 200; ++i) {
      stream.call([](void* argument) { static_cast<std::atomic<int>*>(argument)->fetch_add(1); }, &num_done);
      if (i % 50 != 0) continue;
      stream.drain();
      EXPECT_EQ(num_done.load(), i);
    }
  }
}

TEST_P(AnyDevice, TakesMoreThanItsQueueHoldsFromTwoThreads) {
  Stream& stream = device_->stream(StreamKind::kDownload);
  constexpr std::uint64_t kEach = 3000;  // the two threads are like a worker's stage runner and gradient downloader
  struct Order {
    std::uint64_t next = 0;
    bool is_good = true;
  };
  struct Call {
    Order* order;
    std::uint64_t number;
  };
  std::array<Order, 2> orders;
  std::array<std::vector<Call>, 2> calls;
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 2; ++t) {
    for (std::uint64_t i = 0; i < kEach; ++i) calls[t].push_back({&orders[t], i});
    threads.emplace_back([&stream, &mine = calls[t]] {
      for (Call& call : mine) {
        stream.call(
            [](void* argument) {
              const auto& c = *static_cast<Call*>(argument);
              c.order->is_good = c.order->is_good && c.order->next++ == c.number;
            },
            &call);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  stream.drain();
  for (const Order& order : orders) {
    EXPECT_EQ(order.next, kEach);
    EXPECT_TRUE(order.is_good) << "what one thread enqueues keeps its order";
  }
}

TEST_P(AnyDevice, FinishesWhatIsEnqueuedBeforeItEnds) {
  SequenceWord word{};
  for (std::uint64_t i = 1; i <= 100; ++i) device_->stream(StreamKind::kDownload).signal(word, i);
  device_.reset();
  EXPECT_EQ(word.observe(), 100U);
}

TEST_P(AnyDevice, CanBeMovedFromMemoryToMemory) {
  DeviceMemory first = device_->allocate(4096, MemoryUse::kInputs);
  std::byte* data = first.data();
  DeviceMemory second(std::move(first));
  EXPECT_EQ(second.data(), data);
  DeviceMemory third = device_->allocate(100, MemoryUse::kInputs);
  third = std::move(second);
  EXPECT_EQ(third.data(), data);
  EXPECT_EQ(third.bytes(), 4096U);
}

std::unique_ptr<Device> sim_device(const EmulatedDeviceModel& model) { return std::make_unique<EmulatedDevice>(model); }
const EmulatedDeviceModel kSlowLink{.upload_bytes_per_ns = 4, .download_bytes_per_ns = 4};

INSTANTIATE_TEST_SUITE_P(Each, AnyDevice,
                         testing::Values(DeviceFactory{"cpu", [] { return std::make_unique<CpuDevice>(); }},
                                         DeviceFactory{"sim", [] { return sim_device({}); }, false},
                                         DeviceFactory{"slow_sim", [] { return sim_device(kSlowLink); }, false}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace rp
