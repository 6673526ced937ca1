// Measures the runtime's overhead between two tasks: worker processes with empty layers and one
// microbatch in flight, so that at most the producer and the consumer of one block can run.
//
//   publish -> start   from the producer's clock just before it publishes the event of its output, to the first
//                      instruction of the consumer's run()
//   end -> start       from the last instruction of the producer's run(): includes allocation, copy and publishing
//   futex              one way of a ping-pong of two processes over a bare futex, on the same machine in the same run
//   wait record        what a sleeping thread pays to write to the fault board what it waits for, and to remove it
//
//   trace record       what a record of --trace costs the thread that writes it
//
//   dispatch_overhead [--workers N] [--rounds N] [--board 0|1] [--trace 0|1]
//                                    (defaults: 8 workers, 1000 rounds, with a fault board, without a trace)
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "common/program_main.h"
#include "common/system/futex.h"
#include "coordinator/coordinator.h"
#include "device/cpu_device.h"
#include "roundpipe/error.h"
#include "worker/worker.h"

namespace rp {
namespace {

constexpr int kNumLayers = 9;
constexpr const char* kPlan = "forward 0 1 2 3 4 5 6 7 | fused 8 | backward 7 6 5 4 3 2 1 0";
constexpr std::uint64_t kEvents = 256;  // events of a worker that are remembered: far more than are in flight
constexpr std::size_t kMaxSamples = std::size_t{1} << 18;
constexpr int kWarmUpRounds = 50;

// Shared by all processes of the benchmark.
struct Samples {
  std::array<std::array<std::atomic<std::int64_t>, kEvents>, kMaxWorkers> published_ns;  // writer: the producer
  std::atomic<bool> counts;                                                              // writer: the coordinator
  std::atomic<std::size_t> num;
  std::array<std::int64_t, kMaxSamples> publish_to_start_ns;
  std::array<std::int64_t, kMaxSamples> end_to_start_ns;
};

template <typename T>
T* new_shared() {
  void* memory = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw Error(ExitCode::kNoResource, "no shared memory for the benchmark");
  return new (memory) T;
}

// The download stream of a device. It also records the time just before it publishes an event.
class StampingStream : public Stream {
 public:
  StampingStream(Stream& inner, std::array<std::atomic<std::int64_t>, kEvents>& published_ns)
      : inner_(inner), published_ns_(published_ns) {}
  void copy(std::byte* to, const std::byte* from, std::uint64_t bytes) override { inner_.copy(to, from, bytes); }
  void signal(SequenceWord& word, std::uint64_t value) override {
    inner_.call(&StampingStream::stamp, &published_ns_[EventInEpoch(value).number().value() % kEvents]);
    inner_.signal(word, value);
  }
  void call(void (*function)(void*), void* argument) override { inner_.call(function, argument); }
  void drain() override { inner_.drain(); }

 private:
  static void stamp(void* slot) {
    static_cast<std::atomic<std::int64_t>*>(slot)->store(now_ns(), std::memory_order_relaxed);
  }
  Stream& inner_;
  std::array<std::atomic<std::int64_t>, kEvents>& published_ns_;
};

class StampingDevice : public Device {
 public:
  explicit StampingDevice(std::array<std::atomic<std::int64_t>, kEvents>& published_ns)
      : download_(inner_.stream(StreamKind::kDownload), published_ns) {}
  [[nodiscard]] std::string name() const override { return inner_.name(); }
  [[nodiscard]] DeviceMemory allocate(std::uint64_t bytes, MemoryUse use) override {
    return inner_.allocate(bytes, use);
  }
  [[nodiscard]] Stream& stream(StreamKind kind) override {
    return kind == StreamKind::kDownload || kind == StreamKind::kDownloadGradients ? static_cast<Stream&>(download_)
                                                                                   : inner_.stream(kind);
  }

 private:
  CpuDevice inner_;
  StampingStream download_;
};

TensorView view_of(const std::int64_t& value) {
  TensorView view;
  view.desc = {.dtype = DType::kInt64, .rank = 0};
  view.data = reinterpret_cast<const std::byte*>(&value);
  return view;
}

// Passes on one number: the time at which its run() ended.
class EmptyExecutor : public StageExecutor {
 public:
  EmptyExecutor(Store& store, Samples& samples) : store_(store), samples_(samples) {}
  void begin(const StageTask&) override {}
  void run(const StageTask& task, int microbatch, const MicrobatchInputs& inputs, MicrobatchOutputs& outputs) override {
    const std::int64_t start_ns = now_ns();
    const Command& command = *task.command;
    const bool is_backward = command.phase == Phase::kBackward;
    const BlockKind kind = is_backward ? BlockKind::kGradient : BlockKind::kActivation;
    const int boundary = is_backward ? command.end_layer : command.first_layer;
    record(store_.round_table(command).source(kind, boundary), microbatch, inputs.tensors(kind, boundary).at(0),
           start_ns);
    auto end_ns = std::make_shared<std::int64_t>();
    outputs.blocks.push_back({.kind = command.phase == Phase::kForward ? BlockKind::kActivation : BlockKind::kGradient,
                              .index = command.phase == Phase::kForward ? command.end_layer : command.first_layer,
                              .tensors = {view_of(*end_ns)},
                              .owner = end_ns});
    *end_ns = now_ns();
  }
  void end(const StageTask& task, TaskTotals& totals) override {
    totals.square_sums.clear();
    totals.layer_times.assign(static_cast<std::size_t>(task.command->end_layer - task.command->first_layer), {});
  }

 private:
  void record(const InputSource& source, int microbatch, const TensorView& input, std::int64_t start_ns) {
    if (source.worker < 0 || !samples_.counts.load(std::memory_order_relaxed)) return;  // the first task of a round
    const std::size_t index = samples_.num.fetch_add(1, std::memory_order_relaxed);
    if (index >= kMaxSamples) return;
    const EventNumber event = source.first_event.number() + microbatch + 1;
    std::int64_t end_ns = 0;
    std::memcpy(&end_ns, input.data, sizeof(end_ns));
    samples_.publish_to_start_ns[index] =
        start_ns - samples_.published_ns[source.worker][event.value() % kEvents].load(std::memory_order_relaxed);
    samples_.end_to_start_ns[index] = start_ns - end_ns;
  }

  Store& store_;
  Samples& samples_;
};

void report(const char* name, std::vector<std::int64_t> samples_ns) {
  std::sort(samples_ns.begin(), samples_ns.end());
  const auto at = [&samples_ns](double part) {
    return static_cast<double>(
               samples_ns[static_cast<std::size_t>(part * static_cast<double>(samples_ns.size() - 1))]) *
           1e-3;
  };
  std::printf("%-18s median %7.1f us   p99 %7.1f us   (%zu samples)\n", name, at(0.5), at(0.99), samples_ns.size());
}

// Returns the times of one way: half of each round trip.
std::vector<std::int64_t> futex_ping_pong(int num_trips) {
  auto* word = new_shared<std::atomic<std::uint32_t>>();
  const auto wait_for = [word](std::uint32_t value) {
    for (std::uint32_t present = word->load(); present < value; present = word->load()) {
      futex_wait(word, present, kNsPerSecond);
    }
  };
  const auto publish = [word](std::uint32_t value) {
    word->store(value);
    futex_wake_all(word);
  };
  const auto num = static_cast<std::uint32_t>(num_trips);
  const pid_t child = fork();
  if (child == 0) {
    for (std::uint32_t i = 0; i < num; ++i) {
      wait_for(2 * i + 1);
      publish(2 * i + 2);
    }
    _exit(0);
  }
  std::vector<std::int64_t> samples_ns;
  for (std::uint32_t i = 0; i < num; ++i) {
    const std::int64_t start_ns = now_ns();
    publish(2 * i + 1);
    wait_for(2 * i + 2);
    samples_ns.push_back((now_ns() - start_ns) / 2);
  }
  waitpid(child, nullptr, 0);
  return samples_ns;
}

std::optional<FaultBoardEntry> board_entry(const FaultBoard* board, int index) {
  return board == nullptr ? std::nullopt : std::optional(board->entry(index));
}

// Returns means of 1000 records each.
std::vector<std::int64_t> wait_record_cost() {
  WaitFormat format{};
  WaitRecord record(&format);
  std::vector<std::int64_t> samples_ns;
  for (int sample = 0; sample < 1000; ++sample) {
    const std::int64_t start_ns = now_ns();
    for (std::int64_t i = 0; i < 1000; ++i) {
      record.publish({.kind = WaitKind::kWeights, .slot = i, .numbers = {i, i}});
      record.publish_none();
    }
    samples_ns.push_back((now_ns() - start_ns) / 1000);
  }
  return samples_ns;
}

// Returns means of 1000 records each.
std::vector<std::int64_t> trace_record_cost() {
  TraceJournal journal = TraceJournal::create(std::filesystem::temp_directory_path(), {});
  TraceTrack track(&journal, 1, 1);
  std::vector<std::int64_t> samples_ns;
  for (int sample = 0; sample < 1000; ++sample) {
    const std::int64_t start_ns = now_ns();
    for (std::int64_t i = 0; i < 1000; ++i) {
      track.add({.kind = TraceKind::kCompute, .begin_ns = start_ns, .end_ns = now_ns(), .slot = i, .numbers = {i, i}});
    }
    samples_ns.push_back((now_ns() - start_ns) / 1000);
  }
  return samples_ns;
}

void report_cost(const char* name, std::vector<std::int64_t> samples_ns) {
  std::nth_element(samples_ns.begin(), samples_ns.begin() + 500, samples_ns.end());
  std::printf("%-18s median %7.1f ns\n", name, static_cast<double>(samples_ns[500]));
}

pid_t fork_worker(Store& store, int worker, Samples& samples, const FaultBoard* board, TraceJournal* trace) {
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::vector<UniqueFd> descriptors;
  for (const int fd : store.descriptors()) descriptors.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  const auto view = Store::attach(std::move(descriptors));
  StampingDevice device(samples.published_ns[worker]);
  EmptyExecutor executor(*view, samples);
  Worker(*view, worker, device, executor, board_entry(board, 1 + worker), trace).serve();
  _exit(0);
}

void measure(int num_workers, int num_rounds, Samples& samples, const FaultBoard* board, TraceJournal* trace) {
  StoreSettings settings;
  settings.num_workers = static_cast<std::uint32_t>(num_workers);
  settings.arena_limit_bytes = std::uint64_t{64} << 20;
  settings.wait_timeout_ns = 60 * kNsPerSecond;
  const std::vector<LayerRequest> layers(kNumLayers,
                                         LayerRequest{.name = "empty", .arguments_hash = 0, .parameters = {}});
  const auto store = Store::create(settings, Catalogue::lay_out(layers, 1, false));
  std::vector<pid_t> children;
  for (int worker = 0; worker < num_workers; ++worker)
    children.push_back(fork_worker(*store, worker, samples, board, trace));
  {
    const PipelineSettings settings_of_pipeline{.plan = {.by_hand = parse_plan(kPlan, kNumLayers)}};
    Coordinator coordinator(*store,
                            {.pipelines = {settings_of_pipeline}, .board = board_entry(board, 0), .trace = trace});
    const std::int64_t nothing = 0;
    for (int round = 0; round < kWarmUpRounds + num_rounds; ++round) {
      samples.counts.store(round >= kWarmUpRounds, std::memory_order_relaxed);
      const RoundInputs inputs{.inputs = {{.tensors = {view_of(nothing)}}},
                               .arguments = {{.tensors = {view_of(nothing)}}}};
      // Otherwise no backward is requested.
      const auto accepted = coordinator.accept_round({.input_gradient = true}, inputs);
      coordinator.synchronize();
      coordinator.drop({accepted, {BlockKind::kGradient, 0}});
    }
  }
  for (const pid_t child : children) waitpid(child, nullptr, 0);
}

int run(int argc, char** argv) {
  int num_workers = 8;
  int num_rounds = 1000;
  bool has_board = true;
  bool has_trace = false;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--workers") == 0) num_workers = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--rounds") == 0) num_rounds = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--board") == 0) has_board = std::atoi(argv[i + 1]) != 0;
    if (std::strcmp(argv[i], "--trace") == 0) has_trace = std::atoi(argv[i + 1]) != 0;
  }
  auto* samples = new_shared<Samples>();
  const std::vector<std::int64_t> futex_ns = futex_ping_pong(20'000);
  const FaultBoard board = FaultBoard::create(1 + num_workers);
  std::optional<TraceJournal> trace;
  if (has_trace)
    trace.emplace(TraceJournal::create(std::filesystem::temp_directory_path(), {.num_workers = num_workers}));
  measure(num_workers, num_rounds, *samples, has_board ? &board : nullptr, trace ? &*trace : nullptr);
  const std::size_t num = std::min(samples->num.load(), kMaxSamples);
  if (num == 0) throw Error(ExitCode::kUserError, "no task had its input from another worker: nothing was measured");
  std::printf("%d workers, %d rounds of one microbatch through %d stages of empty layers, %ld cores\n", num_workers,
              num_rounds, 2 * kNumLayers - 1, sysconf(_SC_NPROCESSORS_ONLN));
  report("publish -> start", {samples->publish_to_start_ns.begin(),
                              samples->publish_to_start_ns.begin() + static_cast<std::ptrdiff_t>(num)});
  report("end -> start",
         {samples->end_to_start_ns.begin(), samples->end_to_start_ns.begin() + static_cast<std::ptrdiff_t>(num)});
  report("futex, one way", futex_ns);
  report_cost("wait record", wait_record_cost());
  report_cost("trace record", trace_record_cost());
  return 0;
}

}  // namespace
}  // namespace rp

int main(int argc, char** argv) {
  return rp::run_program("dispatch_overhead", [&] { return rp::run(argc, argv); });
}
