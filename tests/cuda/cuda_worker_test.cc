// Tests a worker on a GPU, over a driver without one: which operations it enqueues on which stream
// in which order, and what it does when a call of the driver fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <thread>

#include "tests/common/expect_refusal.h"
#include "tests/cuda/fake_driver/fake_driver.h"
#include "tests/cuda/parameter_names.h"
#include "tests/cuda/queued_executor.h"
#include "tests/worker/worker_harness.h"
#include "worker/stage_memory.h"

namespace rp::test {
namespace {

// The streams of a CudaDevice in the order of their creation. Each is followed by its second
// stream.
enum StreamNumber {
  kUploadWeights = 0,
  kUploadInputs = 2,
  kDownloadOutputs = 4,
  kDownloadGradient = 6,
  kComputeStream = 8
};

constexpr ToyConfig kTwoLayersOfEight{.num_layers = 2, .num_elements = 8, .num_microbatches = 2};

// One round of two layers on one worker: forward of layer 0, fused stage of layer 1, backward of
// layer 0.
class GpuWorker {
 public:
  explicit GpuWorker(const CudaDriver& driver, GpuSignals signals = GpuSignals::kWords,
                     std::int64_t wait_timeout_ns = 20 * kNsPerSecond, const Command& forward = forward_command())
      : store(two_layer_store({.wait_timeout_ns = wait_timeout_ns})),
        table(make_table(*store)),
        device(driver, {.memory_bytes = 4 << 20, .signals = signals},
               [this](const std::string& text) { warnings->push_back(text); }),
        executor(kTwoLayersOfEight, store->catalogue(), device),
        worker_(*store, 0, device, executor) {
    const std::vector<float> eight(8, 2);
    place_input(*store, table, BlockKind::kActivation, 0, eight, 8192);
    place_input(*store, table, BlockKind::kArguments, 0, eight, 16384);
    table.source(BlockKind::kActivation, 1) = {.worker = 0, .first_event = EventInEpoch(0)};
    table.source(BlockKind::kGradient, 1) = {.worker = 0, .first_event = EventInEpoch(2)};
    RingWriter<Command> commands = store->command_writer(0);
    Command backward = backward_command();
    backward.slot = SlotInEpoch(2);
    backward.first_event = EventNumber(4);
    for (const Command& command : {forward, fused_command(), backward}) EXPECT_TRUE(commands.try_push(command));
  }

  // Serves until `num` tasks are complete. Rethrows an exception of serve().
  void serve(int num = 3) {
    std::exception_ptr error;
    std::atomic<bool> has_ended{false};
    std::thread thread([&] {
      try {
        worker_.serve();
      } catch (...) {
        error = std::current_exception();
      }
      has_ended.store(true);
    });
    RingReader<Completion> ring = store->completion_reader(0);
    while (num > 0 && !has_ended.load()) {
      Completion completion;
      if (ring.try_pop(completion)) {
        completions.push_back(completion);
        --num;
      } else {
        (void)ring.wait({&has_ended, kNsPerMs});
      }
    }
    store->epoch().publish_wanted(kEndEpoch);
    thread.join();
    if (error) std::rethrow_exception(error);
  }

  std::unique_ptr<Store> store;
  RoundTable table;
  // Used by another thread until the worker has ended.
  const std::shared_ptr<std::vector<std::string>> warnings = std::make_shared<std::vector<std::string>>();
  CudaDevice device;
  std::vector<Completion> completions;
  QueuedExecutor executor;

 private:
  Worker worker_;
};

// Returns a stream's log on one line, with events named a, b, ... in the order of their first use.
std::string line_of(const std::vector<std::string>& log, std::map<std::string, char>& names) {
  std::string line;
  for (const std::string& entry : log) {
    const std::size_t event = entry.rfind(" e");
    std::string text = entry;
    if (event != std::string::npos) {
      const auto [name, _] = names.emplace(entry.substr(event + 1), static_cast<char>('a' + names.size()));
      text = entry.substr(0, event + 1) + name->second;
    }
    line += (line.empty() ? "" : ", ") + text;
  }
  return line;
}

// The event that uploads to new memory wait for. The device creates it last of its own events,
// after one for each stream.
bool is_about_new_memory(const std::string& entry) { return entry == "record e5" || entry == "wait e5"; }

// Removes entries that depend on timing: waits for outputs that may be complete already, copies
// through the pinned buffer until the memory is registered, and entries about new memory, which
// another thread may allocate first.
std::vector<std::string> steady(const std::vector<std::string>& log) {
  std::vector<std::string> result;
  for (const std::string& entry : log) {
    if (!entry.starts_with("wait >=") && entry != "call" && !is_about_new_memory(entry)) result.push_back(entry);
  }
  return result;
}

std::vector<std::string> without_new_memory(std::vector<std::string> log) {
  std::erase_if(log, is_about_new_memory);
  return log;
}

TEST(CudaWorker, NamesTheStageForWhichItLacksMemory) {
  const FakeDriver driver;
  const auto store = two_layer_store({});
  CudaDevice device(driver.table(), {.memory_bytes = 4096}, [](const std::string&) {});
  StageBuffer buffer;
  RunningTask task;
  task.command = fused_command();
  task.command.first_layer = 0;
  task.stage_buffer = &buffer;
  expect_error(ExitCode::kNoResource,
               {"layers 0-1 (a fused stage): GPU memory is spent: 8.00 KiB are wanted for weights",
                "of 4.00 KiB (--gpu-memory)"},
               [&] { place_weights(task, store->catalogue(), device); });
}

TEST(CudaWorker, EnqueuesARoundInThisOrder) {
  const FakeDriver driver;
  GpuWorker worker(driver.table());
  worker.serve();
  ASSERT_EQ(worker.completions.size(), 3U);
  const auto log = driver.log();
  ASSERT_EQ(log.size(), 10U);
  std::map<std::string, char> names;
  // For each task: its weights, its begin; for each microbatch its inputs, the computation, the end
  // of using its inputs, and its outputs; then the end, the gradients, the stage buffer. The
  // recompute of the backward comes before the wait for its gradient.
  EXPECT_EQ(line_of(without_new_memory(log[kComputeStream]), names),
            "call, call, call, call, call, call, "  // the warm-up
            "wait a, call, wait b, call, record c, record d, wait e, call, record f, record d, call, record g, wait h, "
            "call, wait b, call, record c, record d, wait e, call, record f, record d, call, record i, record j, wait "
            "a, call, wait k, call, wait b, call, record c, record d, wait l, call, wait e, call, record f, record d, "
            "call, record m, record g");
  // For each task: the stage buffer used by the previous computation, the weights, free space for
  // another piece, the event of the weights.
  EXPECT_EQ(line_of(steady(log[kUploadWeights]), names),
            "wait g, copy 128, record n, record a, wait j, copy 128, record n, record h, wait g, copy 128, record n, "
            "record a");
  // For each microbatch: the place of its inputs, starting with the third one, its inputs, their
  // event; the gradient after an event of the other inputs.
  EXPECT_EQ(line_of(steady(log[kUploadInputs]), names),
            "copy 64, record b, copy 64, record e, wait c, copy 64, copy 64, record b, wait f, copy 64, copy 64, "
            "record e, wait c, copy 64, record k, copy 64, record b, wait f, copy 64, record l, copy 64, record e");
  // For each microbatch: its computation, its outputs, the signal, and the report to the host that
  // their memory is free. For each task: after all of its computation the results page, and an
  // event after everything.
  const std::string page = "copy " + std::to_string(QueuedExecutor::kPageBytes);
  EXPECT_EQ(line_of(steady(log[kDownloadOutputs]), names),
            "wait d, copy 32, write 1, record o, wait d, copy 32, write 2, record o, wait g, " + page +
                ", record p, wait d, copy 32, write 3, record o, wait d, copy 32, write 4, record o, wait j, " + page +
                ", record q, wait d, write 5, record o, wait d, write 6, record o, wait g, " + page + ", record r");
  // For each task: its gradients, free space for another piece, its outputs, its completion.
  EXPECT_EQ(
      line_of(steady(log[kDownloadGradient]), names),
      "wait p, record s, wait i, copy 128, record s, wait q, record s, wait m, copy 128, record s, wait r, record s");
}

// When the driver loads a kernel, it may wait for all streams, and streams wait for other workers
// and for the host's copies.
TEST(CudaWorker, LoadsItsKernelsBeforeAnythingIsCopiedAndNoneLater) {
  const FakeDriver driver;
  GpuWorker worker(driver.table());
  std::vector<std::vector<std::string>> log;
  worker.executor.after_warm_up = [&] { log = driver.log(); };
  worker.serve();
  ASSERT_EQ(log.size(), 10U);
  for (const StreamNumber stream : {kUploadWeights, kUploadInputs, kDownloadOutputs, kDownloadGradient}) {
    EXPECT_THAT(log[stream], testing::IsEmpty()) << "stream " << stream;
  }
  EXPECT_THAT(log[kComputeStream], testing::SizeIs(6));
  EXPECT_EQ(worker.executor.num_loaded_late(), 0U);
}

// A copy in the compute stream would delay the kernels of the next task while the link downloads
// outputs or gradients.
TEST(CudaWorker, HasNothingOfItsComputeStreamWaitForADownload) {
  const FakeDriver driver;
  GpuWorker worker(driver.table());
  worker.serve();
  const auto log = driver.log();
  for (const std::string& entry : log[kComputeStream]) EXPECT_FALSE(entry.starts_with("copy ")) << entry;
  const std::string page = "copy " + std::to_string(QueuedExecutor::kPageBytes);
  EXPECT_EQ(std::ranges::count(log[kDownloadOutputs], page), 3) << "a page of results for each task";
}

TEST(CudaWorker, ReportsItsMemoryWithEachTask) {
  const FakeDriver driver;
  GpuWorker worker(driver.table());
  worker.serve();
  ASSERT_EQ(worker.completions.size(), 3U);
  for (const Completion& completion : worker.completions) EXPECT_EQ(completion.memory.limit_bytes, 4U << 20);
  const DeviceMemoryPeaks& memory = worker.completions.back().memory;
  const auto most = [&](MemoryUse use) { return memory.peak_by_use[use]; };
  EXPECT_EQ(most(MemoryUse::kWeights), 2U * 4096) << "two stages, a page each";
  EXPECT_EQ(most(MemoryUse::kAccumulators), 4096U);
  EXPECT_EQ(most(MemoryUse::kGradients), 2U * 4096);
  EXPECT_GT(most(MemoryUse::kInputs), 0U);
  EXPECT_GT(most(MemoryUse::kOutputs), 0U);
  EXPECT_GE(memory.peak_bytes, most(MemoryUse::kWeights) + most(MemoryUse::kAccumulators));
}

TEST(CudaWorker, CompletesATaskOnlyWhenItsOutputsAreInTheStore) {
  FakeDriver driver;
  GpuWorker worker(driver.table());
  driver.hold(kDownloadOutputs);
  std::thread serving([&] { worker.serve(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // long enough for a wrong publication
  EXPECT_FALSE(worker.store->completion_reader(0).wait({&kNeverStop, 0}) == WaitResult::kReached);
  EXPECT_EQ(worker.store->worker_words(0).events.observe(), EventInEpoch(0));
  EXPECT_GE(worker.store->worker_words(0).issued.observe(), EventInEpoch(2)) << "others' GPUs may wait for them";
  driver.let_go(kDownloadOutputs);
  serving.join();
}

TEST(CudaWorker, GivesBackAllThatItTook) {
  const FakeDriver driver;
  {
    GpuWorker worker(driver.table());
    worker.serve();
    EXPECT_EQ(driver.taken_bytes(), 4U << 20) << "at once, and no more";
    EXPECT_EQ(driver.num_calls("cuMemAlloc"), 1);
    EXPECT_GT(driver.registered_bytes(), 0U);
  }
  EXPECT_EQ(driver.taken_bytes(), 0U);
  EXPECT_EQ(driver.registered_bytes(), 0U);
}

// A kernel has written to memory that it must not access. The driver reports this only to callers,
// and calls no host functions any more.
TEST(CudaWorker, IsEndedByAFaultOfItsGpuThoughAllItsThreadsWait) {
  FakeDriver driver;
  GpuWorker worker(driver.table(), GpuSignals::kWords, 600 * kNsPerSecond);
  driver.hold(kComputeStream);
  std::thread fault([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // everything has been enqueued by then
    driver.fault(CUDA_ERROR_ILLEGAL_ADDRESS);
  });
  expect_error(ExitCode::kGpuFailed, {"GPU-", "a fault of the GPU's"}, [&] { worker.serve(4); });
  fault.join();
}

// A peer that has ended: worker 1 computed the activation that the fused task reads.
class DeadPeer : public testing::TestWithParam<GpuSignals> {
 protected:
  // Holds the stream in which the peer signals, so that the operations it enqueues are never done.
  void run(bool has_signalled, bool is_done) {
    FakeDriver driver;
    Command forward = forward_command();
    forward.saved_boundaries = {};  // the boundary that it would save belongs to the peer
    GpuWorker worker(driver.table(), GetParam(), 200 * kNsPerMs, forward);
    worker.table.source(BlockKind::kActivation, 1) = {.worker = 1, .first_event = EventInEpoch(0)};
    CudaDevice peer(driver.table(), {.memory_bytes = 1 << 20, .signals = GetParam()}, [](const std::string&) {});
    const auto signals = peer.connect(*worker.store, 1);
    if (!is_done) driver.hold(10 + kDownloadOutputs);
    const std::vector<float> eight(8, 2);
    if (has_signalled) {
      place_input(*worker.store, worker.table, BlockKind::kActivation, 1, eight, 24576);
      for (std::uint64_t event = 1; event <= 2; ++event)
        signals->signal(EventInEpoch(event), peer.stream(StreamKind::kDownload));
    }
    if (is_done) peer.stream(StreamKind::kDownload).drain();
    peer.abandon();  // its process is gone, so nothing is freed
    const EndOfProcess end{driver};
    worker.serve(is_done ? 3 : 4);
  }

 private:
  // A worker that gives up its GPU leaves streams that wait for words in the store. The store is
  // unmapped before the driver ends.
  struct EndOfProcess {
    FakeDriver& driver;
    ~EndOfProcess() { driver.stop(); }
  };
};

TEST_P(DeadPeer, ThatNeverSignalledIsNamed) {
  expect_error(ExitCode::kHang, {"worker 0", "microbatch 0 of the outputs of layer 0 from worker 1"},
               [&] { run(false, false); });
}

// The GPU waits forever; the worker does not.
TEST_P(DeadPeer, ThatSignalledAndNeverWroteEndsTheWorkerWhichWaitsForItsGpu) {
  const Deadline deadline = Deadline::after_seconds(20);
  expect_error(ExitCode::kHang, {"worker 0 waited in vain for the download of earlier outputs", "slot 2"},
               [&] { run(true, false); });
  EXPECT_FALSE(deadline.passed());
}

TEST_P(DeadPeer, ThatHadWrittenAllIsNotMissed) { run(true, true); }

INSTANTIATE_TEST_SUITE_P(Words, DeadPeer, testing::Values(GpuSignals::kWords));
INSTANTIATE_TEST_SUITE_P(Events, DeadPeer, testing::Values(GpuSignals::kEvents));

// Every call of every function that a worker uses fails once. Either an error names the call, or
// the work continues if possible. Nothing hangs, and nothing is leaked.
class EachCall : public testing::TestWithParam<const char*> {};

TEST_P(EachCall, ThatFailsEndsTheWorkerOrCostsNothing) {
  const std::string function = GetParam();
  // Failures in the thread that registers the store.
  const bool is_survivable =
      function == "cuMemHostRegister" || function == "cuMemHostGetDevicePointer" || function == "cuCtxSetCurrent";
  for (const GpuSignals signals : {GpuSignals::kWords, GpuSignals::kEvents}) {
    int num_calls = 0;
    {
      const FakeDriver driver;
      GpuWorker worker(driver.table(), signals);
      worker.serve();
      num_calls = driver.num_calls(function);
    }
    // If there are many calls: each of the first ones, and some of the others.
    for (int call = 1; call <= num_calls; call += call < 20 ? 1 : 17) {
      SCOPED_TRACE(testing::Message() << function << ", call " << call << " of " << num_calls);
      FakeDriver driver;
      driver.fail(function, CUDA_ERROR_UNKNOWN, call);
      std::shared_ptr<std::vector<std::string>> warnings;
      try {
        {
          GpuWorker worker(driver.table(), signals);
          worker.serve();
          EXPECT_EQ(worker.completions.size(), 3U);
          warnings = worker.warnings;
        }
        const bool was_called = driver.num_calls(function) >= call;
        EXPECT_TRUE(!was_called || is_survivable) << "it went well";
        EXPECT_THAT(*warnings, testing::IsEmpty()) << "the second attempt cures it";
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), testing::HasSubstr("CUDA_ERROR_FAKE"));
      }
      EXPECT_EQ(driver.taken_bytes(), 0U);
      EXPECT_EQ(driver.registered_bytes(), 0U);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Of, EachCall,
                         testing::Values("cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetUuid",
                                         "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuCtxGetStreamPriorityRange",
                                         "cuMemAlloc", "cuMemHostAlloc", "cuMemHostRegister",
                                         "cuMemHostGetDevicePointer", "cuStreamCreateWithPriority", "cuEventCreate",
                                         "cuMemcpyAsync", "cuEventRecord", "cuStreamWaitEvent", "cuStreamWriteValue64",
                                         "cuStreamQuery", "cuLaunchHostFunc", "cuIpcGetEventHandle"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace rp::test
