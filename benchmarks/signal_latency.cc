#include "benchmarks/signal_latency.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <new>
#include <utility>

#include "benchmarks/forked.h"
#include "benchmarks/store_bandwidth.h"
#include "common/check.h"
#include "common/median.h"
#include "common/system/fd.h"
#include "common/text.h"
#include "cuda/cuda_device.h"

namespace rp {

namespace {

constexpr int kNumWorkers = 2;
constexpr int kWarmUp = 20;  // rounds in which events are opened and the link wakes up
constexpr int kMaxRounds = 4096;

// Memory that the processes share; zero at the start. SYNC: each stamp is read when the process
// that wrote it has ended.
struct Stamps {
  std::array<std::int64_t, kMaxRounds> end_of_download;  // writer: the producer
  std::array<std::int64_t, kMaxRounds> start_of_upload;  // writer: the consumer
  std::atomic<int> num_ready;                            // writers: both processes, once each
};

class SharedStamps {
 public:
  SharedStamps() : data_(mmap(nullptr, sizeof(Stamps), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    if (data_ == MAP_FAILED) throw Error(ExitCode::kNoResource, "no memory for the times of signals");
  }
  ~SharedStamps() { munmap(data_, sizeof(Stamps)); }
  SharedStamps(const SharedStamps&) = delete;
  SharedStamps& operator=(const SharedStamps&) = delete;
  [[nodiscard]] Stamps& get() const { return *static_cast<Stamps*>(data_); }

 private:
  void* data_;
};

std::unique_ptr<Store> make_small_store(std::uint64_t bytes) {
  StoreSettings settings;
  settings.num_workers = kNumWorkers;
  settings.arena_limit_bytes = 2 * bytes + (16 << 20);
  std::vector<LayerRequest> layers(1, LayerRequest{.name = "l"});
  layers[0].parameters.push_back({.name = "w", .shape = {8}});
  auto store = Store::create(settings, Catalogue::lay_out(layers, 1, false));
  store->arena(0).grow(bytes);
  return store;
}

void stamp(void* place) { *static_cast<std::int64_t*>(place) = now_ns(); }

// One of the two processes: its view of the store, its device and how it waits.
class Worker {
 public:
  Worker(const DriverOf& driver, Store& store, int number, SignalKind kind, const SignalSettings& settings)
      : settings_(settings),
        store_(attached_view(store)),
        device_(driver(),
                {.memory_bytes = settings.bytes + (1 << 20),
                 .signals = kind == SignalKind::kEvents ? GpuSignals::kEvents : GpuSignals::kWords},
                [](const std::string&) {}),
        signals_(device_.connect(*store_, number)),
        memory_(device_.allocate(settings.bytes, MemoryUse::kOutputs)) {
    if (kind == SignalKind::kHost) signals_ = std::make_unique<HostSignals>(*store_, number);
    warm(store_->arena(0).data(0, settings.bytes));
  }

  void produce(Stamps& stamps) {
    Stream& download = device_.stream(StreamKind::kDownload);
    std::byte* const to = store_->arena(0).data(0, settings_.bytes);
    const std::int64_t begin = now_ns();
    for (int n = 0; n < settings_.rounds; ++n) {
      sleep_exactly_until_ns(begin + n * settings_.pace_ns);
      download.copy(to, memory_.data(), settings_.bytes);
      download.call(stamp, &stamps.end_of_download[n]);
      signals_->signal(EventInEpoch(static_cast<std::uint64_t>(n) + 1), download);
    }
    download.drain();
  }

  void consume(Stamps& stamps) {
    static const std::atomic<bool> never_stop{false};
    Stream& upload = device_.stream(StreamKind::kUploadActivations);
    std::byte* const from = store_->arena(0).data(0, settings_.bytes);
    for (int n = 0; n < settings_.rounds; ++n) {
      const EventInEpoch event(static_cast<std::uint64_t>(n) + 1);
      const auto timeout_ns = static_cast<std::int64_t>(settings_.timeout_s * 1e9);
      if (signals_->wait(0, event, {&never_stop, timeout_ns}) != WaitResult::kReached) {
        throw Error(ExitCode::kHang, cat("the producer's event ", event.number(), " was not signalled within ",
                                         settings_.timeout_s, " s"));
      }
      signals_->enqueue_wait(0, event, upload);
      upload.call(stamp, &stamps.start_of_upload[n]);
      upload.copy(memory_.data(), from, settings_.bytes);
    }
    upload.drain();
  }

  static void run(const DriverOf& driver, Store& store, int number, SignalKind kind, const SignalSettings& settings,
                  Stamps& stamps) {
    Worker worker(driver, store, number, kind, settings);
    stamps.num_ready.fetch_add(1);
    const Deadline deadline = Deadline::after_seconds(settings.timeout_s);
    while (stamps.num_ready.load() < kNumWorkers) {
      if (deadline.passed()) throw Error(ExitCode::kHang, "the other process did not begin");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (number == 0) {
      worker.produce(stamps);
    } else {
      worker.consume(stamps);
    }
  }

 private:
  // Makes copies until the arena is registered; before that they go through the pinned buffer.
  void warm(std::byte* arena) {
    auto& upload = static_cast<CudaStream&>(device_.stream(StreamKind::kUploadActivations));
    const Deadline deadline = Deadline::after_seconds(settings_.timeout_s);
    while (true) {
      const std::uint64_t before = upload.staged_bytes();
      upload.copy(memory_.data(), arena, settings_.bytes);
      upload.drain();
      if (upload.staged_bytes() == before) return;
      if (deadline.passed()) throw Error(ExitCode::kHang, "the activation arena was not registered");
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  const SignalSettings settings_;
  const std::unique_ptr<Store> store_;
  CudaDevice device_;
  std::unique_ptr<OutputSignals> signals_;
  DeviceMemory memory_;
};

}  // namespace

std::vector<double> measure_latencies(const DriverOf& driver, SignalKind kind, const SignalSettings& settings) {
  RP_ASSERT(settings.rounds > kWarmUp && settings.rounds <= kMaxRounds);
  const SharedStamps stamps;
  const std::unique_ptr<Store> store = make_small_store(settings.bytes);
  std::vector<Forked> workers;
  for (int w = 0; w < kNumWorkers; ++w) {
    workers.emplace_back([&] { Worker::run(driver, *store, w, kind, settings, stamps.get()); });
  }
  const Deadline deadline = Deadline::after_seconds(2 * settings.timeout_s);
  for (Forked& worker : workers) {
    if (const int code = worker.join(deadline); code != 0) {
      throw Error(static_cast<ExitCode>(code), cat("a process of two ended with exit code ", code));
    }
  }
  std::vector<double> result;
  for (auto n = static_cast<std::size_t>(kWarmUp); n < static_cast<std::size_t>(settings.rounds); ++n) {
    result.push_back(static_cast<double>(stamps.get().start_of_upload[n] - stamps.get().end_of_download[n]) / 1000.0);
  }
  return result;
}

namespace {

void end_of(const CudaQueue& queue) {
  if (!queue.drain(60 * kNsPerSecond)) throw Error(ExitCode::kHang, "the GPU did not end a copy or a wait within 60 s");
}

}  // namespace

PollingCost measure_polling(const CudaDriver& driver, std::uint64_t bytes, int rounds) {
  const CudaContext context = CudaContext::open(driver, "");
  DeviceArena arena(context, bytes);
  std::byte* const on_gpu = arena.allocate(bytes, MemoryUse::kOutputs);
  const CudaQueue copies(context, false), waits(context, true);
  const CudaEventHandle begin(context, CU_EVENT_DEFAULT), end(context, CU_EVENT_DEFAULT);
  void* pinned = nullptr;
  context.check(driver.mem_host_alloc(&pinned, bytes + 4096, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
                "taking pinned memory");
  auto* const word = new (static_cast<std::byte*>(pinned) + bytes) SequenceWord();
  CUdeviceptr word_address = 0;
  context.check(driver.mem_host_get_device_pointer(&word_address, word, 0), "asking for a word's address");
  std::array<std::vector<double>, 2> samples;  // without and with polling
  std::uint64_t value = 0;
  for (int round = -1; round < rounds; ++round) {
    for (const bool polls : {false, true}) {
      ++value;
      if (polls)
        context.check(driver.stream_wait_value64(waits.get(), word_address, value, CU_STREAM_WAIT_VALUE_GEQ),
                      "enqueueing a wait");
      context.check(driver.event_record(begin.get(), copies.get()), "recording an event");
      context.check(driver.memcpy_async(reinterpret_cast<CUdeviceptr>(on_gpu), reinterpret_cast<CUdeviceptr>(pinned),
                                        bytes, copies.get()),
                    "enqueueing a copy");
      context.check(driver.event_record(end.get(), copies.get()), "recording an event");
      end_of(copies);
      word->publish_quietly(value);
      end_of(waits);
      float ms = 0;
      context.check(driver.event_elapsed_time(&ms, begin.get(), end.get()), "reading the time of a copy");
      if (round >= 0) samples[polls ? 1 : 0].push_back(static_cast<double>(bytes) / (static_cast<double>(ms) * 1e6));
    }
  }
  (void)driver.mem_free_host(pinned);
  return {.without_gbs = median(samples[0]), .with_gbs = median(samples[1])};
}

}  // namespace rp
