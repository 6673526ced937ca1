// Tests the protocol (docs/design/protocol.md) with GPUs that wait for each other, over a driver
// without a GPU. The toy model has the same bits as in the sequential loop, in whatever order
// streams run; with both kinds of signals; as threads and as processes.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <thread>
#include <utility>

#include "common/system/clock.h"
#include "common/text.h"
#include "launcher/hang_watch.h"
#include "launcher/process/run_dump.h"
#include "tests/coordinator/random_plan.h"
#include "tests/coordinator/toy_run.h"
#include "tests/cuda/fake_driver/fake_driver.h"
#include "tests/cuda/parameter_names.h"
#include "tests/cuda/queued_executor.h"
#include "worker/worker.h"

namespace rp::test {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kPieceBytes = 8 * kPage;  // the toy model's store has several of them

enum class Loss { kProcess, kContext };

struct GpuRun {
  GpuSignals signals = GpuSignals::kWords;
  Loss loss = Loss::kProcess;  // what a worker that is to die loses
  unsigned seed = 1;
  int max_delay_us = 0;
  std::uint64_t memory_bytes = 8 << 20;
  RefusalOptions refusals{};
};

// Expects weights, gradients and the control segment to be registered. Activations are registered
// when a copy meets them.
void expect_all_registered(const CudaDevice& device, Store& store) {
  device.pinned_store().wait_until_through();
  std::vector<Store::Region> regions = store.regions();
  regions.push_back(store.control());
  for (const Store::Region& region : regions) {
    if (region.part == StorePart::kActivations) continue;
    for (std::uint64_t at = 0; at < region.bytes;) {
      const PinnedMemory::Extent extent = device.pinned().extent(region.data + at, region.bytes - at);
      EXPECT_TRUE(extent.is_registered) << store_part_name(region.part) << ", byte " << at;
      at += extent.bytes;
    }
  }
}

// Expects the worker's own arena to be registered soon. REQUIRES: a copy has met it.
void expect_arena_registered(const CudaDevice& device, Store& store, int worker) {
  const std::span<std::byte> arena = store.arena(static_cast<std::uint64_t>(worker)).mapped();
  EXPECT_FALSE(arena.empty());
  const Deadline deadline = Deadline::after_seconds(20);
  for (std::size_t at = 0; at < arena.size();) {
    const PinnedMemory::Extent extent = device.pinned().extent(arena.data() + at, arena.size() - at);
    if (extent.is_registered) {
      at += extent.bytes;
    } else if (deadline.passed()) {
      ADD_FAILURE() << "the arena of worker " << worker << " is not registered at byte " << at;
      return;
    } else {
      std::this_thread::yield();
    }
  }
}

// Dies before a certain call of run().
class MortalExecutor : public QueuedExecutor {
 public:
  std::function<void()> on_output{};  // called once, when the worker has enqueued copies of outputs

  MortalExecutor(const ToyConfig& config, const Catalogue& catalogue, CudaDevice& device, int last,
                 std::function<void()> die)
      : QueuedExecutor(config, catalogue, device), left_(last), die_(std::move(die)) {}
  void run(const StageTask& task, int microbatch, const MicrobatchInputs& inputs, MicrobatchOutputs& outputs) override {
    if (left_ > 0 && --left_ == 0) die_();
    if (std::exchange(has_output_, false) && on_output) std::exchange(on_output, nullptr)();
    QueuedExecutor::run(task, microbatch, inputs, outputs);
    has_output_ = !outputs.blocks.empty();
  }

 private:
  int left_;
  bool has_output_ = false;
  const std::function<void()> die_;
};

// A layer that calls LibTorch meets the loss of the context as an exception like any other.
void lose(Loss loss, FakeDriver& driver) {
  if (loss == Loss::kProcess) kill(getpid(), SIGKILL);
  driver.fault(CUDA_ERROR_ILLEGAL_ADDRESS);
  throw std::runtime_error("CUDA error: an illegal memory access was encountered");
}

void serve_on_gpu(FakeDriver& fake, Store& store, int worker, const ToyConfig& config, const RunSettings& settings,
                  const GpuRun& run) {
  const CudaDriver& driver = fake.table();
  CudaDeviceOptions options{.memory_bytes = run.memory_bytes, .signals = run.signals};
  options.registration.policy.piece_bytes = kPieceBytes;
  options.registration.policy.least_bytes = kPage;
  options.registration.policy.lock_ns = 60 * kNsPerSecond;  // the machine may be busy with other tests
  CudaDevice device(driver, options, [](const std::string& text) { ADD_FAILURE() << text; });
  const int last = planned_death(settings, worker).operation;
  MortalExecutor executor(config, store.catalogue(), device, last, [&] { lose(run.loss, fake); });
  Worker served(store, worker, device, executor, entry(settings.board, 1 + worker), settings.trace);
  const bool stays_as_replacement = settings.life > 0 && last == 0;
  bool has_checked_arena = false;
  if (stays_as_replacement) {
    executor.on_output = [&] {
      expect_arena_registered(device, store, worker);
      has_checked_arena = true;
    };
  }
  // The other workers register while they copy, and may finish the run before the registration of
  // the store.
  if (stays_as_replacement || (worker % 2 == 0 && settings.deaths.empty())) expect_all_registered(device, store);
  served.serve();
  // With several workers, the run may end before a replacement computes.
  EXPECT_TRUE(has_checked_arena || !stays_as_replacement || settings.num_workers > 1);
  EXPECT_EQ(executor.num_loaded_late(), 0U) << "kernels were loaded while streams may have waited for other workers";
}

// Threads share a driver, as processes share a GPU; each process has its own view of the driver.
void expect_reference_on_gpus(const ToyConfig& config, RunSettings settings, const GpuRun& run, int trainings = 1) {
  const FakeDriverOptions options{.seed = run.seed, .max_delay_us = run.max_delay_us, .refusals = run.refusals};
  if (settings.harness == Harness::kProcesses) {
    FakeDriver::share_between_processes();
    settings.serve = [=](Store& store, int worker, const ToyConfig& toy, const RunSettings& of_run) {
      FakeDriver driver(options);
      serve_on_gpu(driver, store, worker, toy, of_run, run);
      EXPECT_EQ(driver.num_registered_twice(), 0);
      if (testing::Test::HasFailure()) _exit(1);
    };
    return expect_reference(config, settings, trainings);
  }
  FakeDriver driver(options);
  settings.serve = [&driver, run](Store& store, int worker, const ToyConfig& toy, const RunSettings& of_run) {
    serve_on_gpu(driver, store, worker, toy, of_run, run);
  };
  expect_reference(config, settings, trainings);
  EXPECT_EQ(driver.num_registered_twice(), 0);
}

constexpr const char* kPlans[] = {"fused 0-4", "forward 0-1 2-3 | fused 4 | backward 3 1-2 0", ""};

class GpuProtocol : public testing::TestWithParam<std::tuple<Harness, GpuSignals>> {
 protected:
  [[nodiscard]] static Harness harness() { return std::get<0>(GetParam()); }
  [[nodiscard]] static GpuSignals signals() { return std::get<1>(GetParam()); }
};

TEST_P(GpuProtocol, AnyNumberOfWorkersPlanAndPrefetchGivesTheBitsOfTheSequentialLoop) {
  ToyConfig config;
  config.tied = true;
  for (const bool asynchronous : {false, true}) {
    config.asynchronous = asynchronous;
    for (const int workers : {1, 2, 3, 4, 8}) {
      for (const char* plan : kPlans) {
        SCOPED_TRACE(testing::Message() << workers << " workers, plan '" << plan << "', asynchronous " << asynchronous);
        expect_reference_on_gpus(
            config,
            {.harness = harness(), .num_workers = workers, .prefetch = workers != 3, .plan = plan, .fits_device = true},
            {.signals = signals(), .seed = static_cast<unsigned>(workers)});
      }
    }
  }
}

// Runs more events than the ring has.
TEST_P(GpuProtocol, ManyStepsReuseTheRingsTheEventsAndTheMemory) {
  ToyConfig config;
  config.num_steps = 80;
  config.asynchronous = true;
  expect_reference_on_gpus(config, {.harness = harness(), .num_workers = 3, .plan = kPlans[1]}, {.signals = signals()});
}

TEST_P(GpuProtocol, SlowStreamsChangeNothing) {
  ToyConfig config;
  config.tied = true;
  config.rounds_per_step = 2;
  config.max_grad_norm = 0.5;
  config.dtype = DType::kBFloat16;
  expect_reference_on_gpus(config, {.harness = harness(), .num_workers = 3, .plan = kPlans[1]},
                           {.signals = signals(), .seed = 7, .max_delay_us = 200});
}

// Returns a function that kills workers that hang, as rp-launch does.
std::function<void(const std::map<pid_t, int>&)> hang_watch_of(const FaultBoard& board) {
  const auto watch = std::make_shared<HangWatch>();
  watch->set_wait_timeout(1, /*may_adapt=*/true);
  return [watch, &board](const std::map<pid_t, int>& workers) {
    if (!watch->next_check().passed()) return;
    std::vector<ProcessSnapshot> processes;
    for (int i = 0; i < board.num_entries(); ++i) processes.push_back(snapshot_of("gone", i, 0, 0, board.entry(i)));
    processes[0] = snapshot_of("coordinator", 0, getppid(), std::nullopt, board.entry(0));
    for (const auto& [pid, worker] : workers)
      processes[1 + worker] =
          snapshot_of(cat("worker ", worker), 1 + worker, pid, std::nullopt, board.entry(1 + worker));
    std::string notes;
    const std::optional<Hang> hang = watch->check(processes, now_ns(), notes);
    if (hang && hang->process > 0) kill(processes[hang->process].pid, SIGKILL);
  };
}

class GpuReplay : public testing::TestWithParam<std::tuple<GpuSignals, Loss>> {
 protected:
  // Worker `lost` is lost before its `last`-th microbatch, and so is the process that takes its place, before its
  // third. Returns the number of deaths.
  static int num_deaths_in(bool asynchronous, int num_workers, int lost, int last, int replacements) {
    const auto [signals, loss] = GetParam();
    ToyConfig config;
    config.tied = true;
    config.asynchronous = asynchronous;
    const FaultBoard board = FaultBoard::create(1 + num_workers);
    int num_deaths = 0;
    RunSettings settings{.harness = Harness::kProcesses,
                         .num_workers = num_workers,
                         .plan = kPlans[1],
                         .board = &board,
                         .deaths = {{.worker = lost, .operation = last}, {.worker = lost, .operation = 3, .life = 1}},
                         .serves_deaths = true,
                         .max_replacements = replacements,
                         .num_deaths = &num_deaths};
    if (signals == GpuSignals::kEvents && num_workers > 1) settings.look_after = hang_watch_of(board);
    expect_reference_on_gpus(
        config, settings, {.signals = signals, .loss = loss, .seed = static_cast<unsigned>(last), .max_delay_us = 100});
    return num_deaths;
  }
};

// A survivor's stream may be waiting for the word of the dead worker, with copies behind the wait. It waits for ever
// for an event, so the survivor is killed and replaced as well. That takes seconds, so there are only two places for
// each loss.
TEST_P(GpuReplay, ALostWorkerChangesNoBit) {
  const auto [signals, loss] = GetParam();
  const bool has_events = signals == GpuSignals::kEvents;
  for (const bool asynchronous : {false, true}) {
    const int place_of_events = (loss == Loss::kProcess) == asynchronous ? 9 : asynchronous ? 20 : 2;
    for (const int last : has_events ? std::vector{place_of_events} : std::vector{1, 4, 9, 16, 25}) {
      for (const int replacements : has_events ? std::vector{20} : std::vector{0, 2}) {
        SCOPED_TRACE(testing::Message() << "call " << last << ", " << replacements << " replacements, asynchronous "
                                        << asynchronous);
        const int num_deaths = num_deaths_in(asynchronous, 3, 1, last, replacements);
        EXPECT_GE(num_deaths, 1);
        // The run may end before the third microbatch of the replacement.
        EXPECT_LE(num_deaths, has_events ? replacements : replacements == 0 ? 1 : 2) << "survivors died as well";
      }
    }
  }
}

// So the last replacement computes all that is left, and checks its registrations.
TEST_P(GpuReplay, TheOnlyWorkerIsReplacedTwice) {
  for (const bool asynchronous : {false, true}) {
    for (const int last : {1, 8, 31}) {
      SCOPED_TRACE(testing::Message() << "call " << last << ", asynchronous " << asynchronous);
      EXPECT_EQ(num_deaths_in(asynchronous, 1, 0, last, 2), 2);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Of, GpuReplay,
                         testing::Combine(testing::Values(GpuSignals::kWords, GpuSignals::kEvents),
                                          testing::Values(Loss::kProcess, Loss::kContext)));

// Each piece of the store is refused a random number of times up to this maximum.
class RefusedRegistrations : public testing::TestWithParam<std::tuple<Harness, int>> {};

TEST_P(RefusedRegistrations, OfOneToEightWorkersAtOnceAreCuredByLaterAttempts) {
  const auto [harness, max_refusals] = GetParam();
  FakeDriver::share_between_processes();
  const int num_met = num_met_registrations();
  for (const int workers : {1, 2, 3, 5, 8}) {
    SCOPED_TRACE(testing::Message() << workers << " workers");
    expect_reference_on_gpus({}, {.harness = harness, .num_workers = workers, .plan = kPlans[1]},
                             {.seed = static_cast<unsigned>(10 * max_refusals + workers),
                              .refusals = {.max_refusals = max_refusals, .refuses_company = true}});
  }
  EXPECT_EQ(num_met_registrations(), num_met) << "two workers registered the same pages at once";
}

INSTANTIATE_TEST_SUITE_P(Over, RefusedRegistrations,
                         testing::Combine(testing::Values(Harness::kOneMapping, Harness::kTwoMappings,
                                                          Harness::kProcesses),
                                          testing::Range(1, 6)));

// Simulates kernels that pin at most 2 GiB at once.
class ShortPins : public testing::TestWithParam<Harness> {};

TEST_P(ShortPins, AreAllThatARunNeeds) {
  expect_reference_on_gpus({}, {.harness = GetParam(), .num_workers = 3, .plan = kPlans[1]},
                           {.refusals = {.max_pin_bytes = 3 * kPage}});
}

INSTANTIATE_TEST_SUITE_P(Over, ShortPins,
                         testing::Values(Harness::kOneMapping, Harness::kTwoMappings, Harness::kProcesses));

// The host signals, even if GPUs could.
class CheckedGpuProtocol : public testing::TestWithParam<Harness> {};

// The data that the check reads on the host are complete, and later operations of the streams do
// not overwrite them.
TEST_P(CheckedGpuProtocol, FindsNothing) {
  ToyConfig config;
  config.tied = true;
  config.asynchronous = true;
  config.num_steps = 2;
  config.num_elements = 300'000;  // more than one piece of the read-back
  expect_reference_on_gpus(config,
                           {.harness = GetParam(), .num_workers = 3, .plan = kPlans[1], .check_consistency = true},
                           {.seed = 5, .max_delay_us = 100, .memory_bytes = 48 << 20});
}

INSTANTIATE_TEST_SUITE_P(Over, CheckedGpuProtocol,
                         testing::Values(Harness::kOneMapping, Harness::kTwoMappings, Harness::kProcesses));
INSTANTIATE_TEST_SUITE_P(Words, GpuProtocol,
                         testing::Combine(testing::Values(Harness::kOneMapping, Harness::kTwoMappings,
                                                          Harness::kProcesses),
                                          testing::Values(GpuSignals::kWords)));
INSTANTIATE_TEST_SUITE_P(Events, GpuProtocol,
                         testing::Combine(testing::Values(Harness::kOneMapping, Harness::kTwoMappings,
                                                          Harness::kProcesses),
                                          testing::Values(GpuSignals::kEvents)));

}  // namespace
}  // namespace rp::test
