#include "tests/coordinator/toy_workers.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>

#include "common/system/clock.h"
#include "device/cpu_device.h"
#include "roundpipe/error.h"
#include "tests/hoststore/processes.h"
#include "worker/running_task.h"
#include "worker/worker.h"

namespace rp::test {

namespace {

// How long a stopped worker keeps the others waiting before it is ended.
constexpr std::int64_t kStopNs = 3 * kNsPerMs;

// The toy model's executor, which knows where the outputs of its last microbatch belong.
class MortalToyExecutor : public ToyExecutor {
 public:
  MortalToyExecutor(const ToyConfig& config, Store& store) : ToyExecutor(config, store.catalogue()), store_(store) {}
  void run(const StageTask& task, int microbatch, const MicrobatchInputs& inputs, MicrobatchOutputs& outputs) override {
    ToyExecutor::run(task, microbatch, inputs, outputs);
    places_.clear();
    const RoundTable table = store_.round_table(*task.command);
    for (const OutputBlock& block : outputs.blocks)
      places_.push_back(&table.place(block.kind, block.index, microbatch));
  }
  // REQUIRES: the event of the microbatch is not announced yet.
  void spoil_places() {
    for (BlockPlace* place : places_) *place = {.slot = place->slot, .arena = 0, .offset = 1 << 20, .bytes = 7};
  }

 private:
  Store& store_;
  std::vector<BlockPlace*> places_;
};

// Writes garbage to some of what the worker writes at the end of a task.
void spoil_totals(Store& store, const RunningTask& task) {
  const Command& command = task.command;
  const RoundTable table = store.round_table(command);
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (int m = 0; command.runs_loss() && m < command.num_microbatches; ++m)
    table.loss(m) = {.num = 5, .values = {kNan, kNan}};
  for (const UseMemory& use : task.uses) {
    if (use.gradient != nullptr) table.square_sum(use.use) = kNan;
  }
  for (int layer = command.first_layer; layer < command.end_layer; ++layer) {
    LayerTime& time = table.layer_time(layer);
    (command.phase == Phase::kBackward ? time.recompute_ns : time.forward_ns) = -1;
  }
}

// A device on the processor whose worker dies before a certain operation is enqueued on any of its streams.
class MortalDevice : public Device {
 public:
  // `die` does not return.
  MortalDevice(Store& store, MortalToyExecutor& executor, const Death& death, std::function<void()> die)
      : store_(store),
        executor_(executor),
        left_(death.operation == 0 ? -1 : death.operation),
        writes_half_(death.writes_half),
        die_(std::move(die)),
        streams_{MortalStream(*this, StreamKind::kUploadParameters),
                 MortalStream(*this, StreamKind::kUploadActivations), MortalStream(*this, StreamKind::kDownload),
                 MortalStream(*this, StreamKind::kDownloadGradients), MortalStream(*this, StreamKind::kCompute)} {}

  [[nodiscard]] std::string name() const override { return "cpu"; }
  [[nodiscard]] DeviceMemory allocate(std::uint64_t bytes, MemoryUse use) override { return cpu_.allocate(bytes, use); }
  [[nodiscard]] bool allocates_zeros() const override { return true; }
  [[nodiscard]] Stream& stream(StreamKind kind) override { return streams_[static_cast<std::size_t>(kind)]; }

 private:
  class MortalStream : public Stream {
   public:
    MortalStream(MortalDevice& device, StreamKind kind)
        : device_(device), kind_(kind), stream_(device.cpu_.stream(kind)) {}
    void copy(std::byte* to, const std::byte* from, std::uint64_t bytes) override {
      device_.meet(writes_outputs() || kind_ == StreamKind::kDownloadGradients, [&] {
        if (writes_outputs()) device_.executor_.spoil_places();
        std::memset(to, 0xff, (bytes + 1) / 2);  // not a number in either type
      });
      stream_.copy(to, from, bytes);
    }
    void signal(SequenceWord& word, std::uint64_t value) override {
      device_.meet(writes_outputs(), [&] { device_.executor_.spoil_places(); });
      stream_.signal(word, value);
    }
    void call(void (*function)(void*), void* argument) override {
      // Only at the end of a task, except by the consistency check.
      device_.meet(kind_ == StreamKind::kDownloadGradients && !device_.store_.checks_consistency(),
                   [&] { spoil_totals(device_.store_, *static_cast<const RunningTask*>(argument)); });
      stream_.call(function, argument);
    }
    void drain() override { stream_.drain(); }

   private:
    [[nodiscard]] bool writes_outputs() const { return kind_ == StreamKind::kDownload; }
    MortalDevice& device_;
    const StreamKind kind_;
    Stream& stream_;
  };
  // Called before each operation. `spoil`: writes garbage to a part of what it would write, if it writes to the store.
  template <typename Spoil>
  void meet(bool writes, const Spoil& spoil) {
    if (writes_half_ && !writes) return;
    if (left_.load() <= 0 || left_.fetch_sub(1) != 1) return;
    if (writes_half_) spoil();
    die_();
  }

  Store& store_;
  MortalToyExecutor& executor_;
  std::atomic<int> left_;
  const bool writes_half_;
  const std::function<void()> die_;
  CpuDevice cpu_;
  std::array<MortalStream, kNumStreamKinds> streams_;
};

}  // namespace

Death planned_death(const RunSettings& settings, int worker) {
  for (const Death& death : settings.deaths) {
    if (death.worker == worker && death.life == settings.life) return death;
  }
  return {.worker = worker, .operation = 0};
}

void serve_on_cpu(Store& store, int worker, const ToyConfig& config, const RunSettings& settings) {
  CpuDevice device;
  ToyExecutor executor(config, store.catalogue());
  Worker(store, worker, device, executor, entry(settings.board, 1 + worker), settings.trace).serve();
}

Workers::Workers(Store& store, const RunSettings& settings, const ToyConfig& config)
    : store_(store),
      settings_(settings),
      config_(config),
      views_(settings.num_workers),
      lives_(settings.num_workers),
      replacements_left_(settings.max_replacements),
      num_present_(settings.num_workers) {
  if (settings.harness == Harness::kProcesses) {
    int ends[2] = {};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    socket_ = UniqueFd(ends[0]);
    const UniqueFd other(ends[1]);
    launcher_ = fork();
    if (launcher_ == 0) run_launcher(other);
    return;
  }
  for (int worker = 0; worker < settings.num_workers; ++worker) start_thread(worker);
}

Workers::~Workers() {
  unwatch();
  if (launcher_ > 0) {
    const Report quit{.kind = 'q'};
    EXPECT_EQ(send(socket_.get(), &quit, sizeof(quit), 0), static_cast<ssize_t>(sizeof(quit)));
    int status = -1;
    EXPECT_EQ(waitpid(launcher_, &status, 0), launcher_);
    EXPECT_EQ(status, 0);
  }
  std::vector<std::thread> threads;
  {
    MutexLock lock(mutex_);
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
}

void Workers::serve(Store& store, int worker, int life, const Die& die) {
  RunSettings settings = settings_;
  settings.life = life;
  const Death death = planned_death(settings, worker);
  if (death.operation == Death::kAtStart) die(death);
  if (settings.deaths.empty() || settings.serves_deaths) return settings.serve(store, worker, config_, settings);
  MortalToyExecutor executor(config_, store);
  MortalDevice device(store, executor, death, [&] { die(death); });
  Worker(store, worker, device, executor, entry(settings.board, 1 + worker), settings.trace).serve();
}

void Workers::start(int worker) {
  if (launcher_ < 0) return start_thread(worker);
  const Report request{.kind = 'r', .worker = worker};
  EXPECT_EQ(send(socket_.get(), &request, sizeof(request), 0), static_cast<ssize_t>(sizeof(request)));
}

void Workers::start_thread(int worker) {
  const int life = lives_[worker]++;
  if (settings_.harness == Harness::kTwoMappings) views_[worker] = Store::attach(duplicates(store_.descriptors()));
  MutexLock lock(mutex_);
  threads_.emplace_back([this, worker, life] { run_thread(worker, life); });
}

void Workers::run_thread(int worker, int life) {
  Store& store = views_[worker] ? *views_[worker] : store_;
  Report report{.kind = 'x', .worker = worker};
  try {
    return serve(store, worker, life, [this](const Death& death) {
      if (death.stops_before) stop_thread(death.worker);
      throw DeathOfWorker();
    });
  } catch (const DeathOfWorker&) {
    report.kind = 'd';
  } catch (const std::exception& error) {
    ADD_FAILURE() << "worker " << worker << ": " << error.what();
  }
  MutexLock lock(mutex_);
  reports_.push_back(report);
}

void Workers::stop_thread(int worker) {
  MutexLock lock(mutex_);
  stopped_.insert(worker);
  reports_.push_back({.kind = 's', .worker = worker});
  while (stopped_.contains(worker) && !ends_.load()) changed_.wait(mutex_);
}

void Workers::end_stopped(int worker) {
  MutexLock lock(mutex_);
  stopped_.erase(worker);
  changed_.notify_all();
}

pid_t Workers::start_process(int worker, int life) {
  const pid_t child = fork();
  if (child != 0) return child;
  try {
    const auto view = Store::attach(duplicates(store_.descriptors()));
    serve(*view, worker, life, [](const Death& death) {
      kill(getpid(), death.stops_before ? SIGSTOP : SIGKILL);
      while (true) pause();  // until the signal has reached all threads
    });
    _exit(0);
  } catch (const Error& error) {
    if (settings_.serves_deaths && error.code() == ExitCode::kGpuFailed) _exit(static_cast<int>(error.code()));
    std::fprintf(stderr, "worker %d: %s\n", worker, error.what());
    _exit(1);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "worker %d: %s\n", worker, error.what());
    _exit(1);
  }
}

void Workers::run_launcher(const UniqueFd& socket) {
  socket_ = UniqueFd();  // open only in the coordinator, so that its death is noticed
  std::map<pid_t, int> workers;
  std::map<pid_t, Deadline> stopped;
  bool has_failed = false;
  const auto start = [&](int worker) { workers[start_process(worker, lives_[worker]++)] = worker; };
  for (int worker = 0; worker < settings_.num_workers; ++worker) start(worker);
  for (bool quits = false; !quits || !workers.empty();) {
    pollfd request{.fd = socket.get(), .events = POLLIN, .revents = 0};
    if (poll(&request, quits ? 0 : 1, 1) == 1) {
      Report message;
      if (recv(socket.get(), &message, sizeof(message), 0) <= 0) {  // the coordinator has died
        quits = true;
        for (const auto& [pid, worker] : workers) kill(pid, SIGKILL);
      }
      if (message.kind == 'q') quits = true;
      if (message.kind == 'r') start(message.worker);
    }
    if (settings_.look_after) settings_.look_after(workers);
    for (const auto& [pid, ends_at] : stopped) {
      if (ends_at.passed()) kill(pid, SIGKILL);
    }
    int status = 0;
    for (pid_t child = waitpid(-1, &status, WNOHANG | WUNTRACED); child > 0;
         child = waitpid(-1, &status, WNOHANG | WUNTRACED)) {
      if (WIFSTOPPED(status)) {
        stopped.emplace(child, Deadline::after_ns(kStopNs));
        continue;
      }
      stopped.erase(child);
      const bool has_died = (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) ||
                            (settings_.serves_deaths && WIFEXITED(status) &&
                             WEXITSTATUS(status) == static_cast<int>(ExitCode::kGpuFailed));
      const Report report{.kind = has_died ? 'd' : 'x', .worker = workers[child]};
      workers.erase(child);
      if (status == 0) continue;
      has_failed |= report.kind == 'x';
      if (report.kind == 'x') std::fprintf(stderr, "worker %d ended with status %#x\n", report.worker, status);
      (void)send(socket.get(), &report, sizeof(report), MSG_DONTWAIT | MSG_NOSIGNAL);
    }
  }
  _exit(has_failed ? 1 : 0);
}

void Workers::watch(Coordinator& coordinator) {
  watch_ = std::thread([this, &coordinator] { follow(coordinator); });
}

void Workers::unwatch() {
  {
    MutexLock lock(mutex_);
    ends_.store(true);
    changed_.notify_all();
  }
  if (watch_.joinable()) watch_.join();
}

std::optional<Workers::Report> Workers::next_report() {
  if (launcher_ > 0) {
    pollfd message{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    Report report;
    if (poll(&message, 1, 1) != 1) return std::nullopt;
    if (recv(socket_.get(), &report, sizeof(report), 0) <= 0) return std::nullopt;
    return report;
  }
  {
    MutexLock lock(mutex_);
    if (!reports_.empty()) {
      const Report report = reports_.front();
      reports_.erase(reports_.begin());
      return report;
    }
  }
  usleep(500);
  return std::nullopt;
}

void Workers::follow(Coordinator& coordinator) {
  while (!ends_.load()) {
    bring_back_workers();
    if (const std::optional<Report> report = next_report()) handle(*report, coordinator);
  }
}

void Workers::handle(const Report& report, Coordinator& coordinator) {
  if (report.kind == 's') {
    sleep_until_ns(now_ns() + kStopNs);
    return end_stopped(report.worker);
  }
  if (report.kind != 'd')
    return coordinator.fail(std::make_exception_ptr(std::runtime_error("a worker failed that was not to die")));
  if (settings_.set_aside) coordinator.set_aside(*settings_.set_aside);
  const std::int64_t comes_back_at = num_commits_ + settings_.commits_until_return;
  coordinator.lose_worker(report.worker);
  if (settings_.num_deaths != nullptr) ++*settings_.num_deaths;
  if (replacements_left_ > 0) {
    --replacements_left_;
    return start(report.worker);
  }
  --num_present_;
  if (settings_.commits_until_return > 0) away_.push_back({.worker = report.worker, .comes_back_at = comes_back_at});
}

void Workers::bring_back_workers() {
  while (!away_.empty() && (num_present_ == 0 || num_commits_ >= away_.front().comes_back_at)) {
    start(away_.front().worker);
    away_.pop_front();
    ++num_present_;
    if (settings_.num_returns != nullptr) ++*settings_.num_returns;
  }
}

}  // namespace rp::test
