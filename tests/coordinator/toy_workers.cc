#include "tests/coordinator/toy_workers.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <map>

#include "device/cpu_device.h"
#include "roundpipe/error.h"
#include "tests/hoststore/processes.h"
#include "worker/worker.h"

namespace rp::test {

namespace {

// A device on the processor whose worker dies before a certain operation is enqueued on any of its streams.
class MortalDevice : public Device {
 public:
  // `last`: the number of the operation, from 1; 0: never.
  MortalDevice(int last, std::function<void()> die)
      : left_(last == 0 ? -1 : last),
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
    MortalStream(MortalDevice& device, StreamKind kind) : device_(device), stream_(device.cpu_.stream(kind)) {}
    void copy(std::byte* to, const std::byte* from, std::uint64_t bytes) override {
      device_.count();
      stream_.copy(to, from, bytes);
    }
    void signal(SequenceWord& word, std::uint64_t value) override {
      device_.count();
      stream_.signal(word, value);
    }
    void call(void (*function)(void*), void* argument) override {
      device_.count();
      stream_.call(function, argument);
    }
    void drain() override { stream_.drain(); }

   private:
    MortalDevice& device_;
    Stream& stream_;
  };
  void count() {
    if (left_.load() > 0 && left_.fetch_sub(1) == 1) die_();
  }

  std::atomic<int> left_;
  const std::function<void()> die_;
  CpuDevice cpu_;
  std::array<MortalStream, kNumStreamKinds> streams_;
};

}  // namespace

int last_operation(const RunSettings& settings, int worker) {
  for (const Death& death : settings.deaths) {
    if (death.worker == worker && death.life == settings.life) return death.operation;
  }
  return 0;
}

void serve_on_cpu(Store& store, int worker, const ToyConfig& config, const RunSettings& settings) {
  CpuDevice device;
  ToyExecutor executor(config, store.catalogue());
  Worker(store, worker, device, executor, entry(settings.board, 1 + worker), settings.trace).serve();
}

Workers::Workers(Store& store, const RunSettings& settings, const ToyConfig& config)
    : store_(store), settings_(settings), config_(config), views_(settings.num_workers), lives_(settings.num_workers) {
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

void Workers::serve(Store& store, int worker, int life, const std::function<void()>& die) {
  RunSettings settings = settings_;
  settings.life = life;
  const int last = last_operation(settings, worker);
  if (last == Death::kAtStart) die();
  if (settings.deaths.empty() || settings.serves_deaths) return settings.serve(store, worker, config_, settings);
  MortalDevice device(last, die);
  ToyExecutor executor(config_, store.catalogue());
  Worker(store, worker, device, executor, entry(settings.board, 1 + worker), settings.trace).serve();
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
    return serve(store, worker, life, [] { throw DeathOfWorker(); });
  } catch (const DeathOfWorker&) {
    report.kind = 'd';
  } catch (const std::exception& error) {
    ADD_FAILURE() << "worker " << worker << ": " << error.what();
  }
  MutexLock lock(mutex_);
  reports_.push_back(report);
}

pid_t Workers::start_process(int worker, int life) {
  const pid_t child = fork();
  if (child != 0) return child;
  try {
    const auto view = Store::attach(duplicates(store_.descriptors()));
    serve(*view, worker, life, [] { kill(getpid(), SIGKILL); });
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
  std::map<pid_t, int> workers;
  bool has_failed = false;
  const auto start = [&](int worker) { workers[start_process(worker, lives_[worker]++)] = worker; };
  for (int worker = 0; worker < settings_.num_workers; ++worker) start(worker);
  for (bool quits = false; !quits || !workers.empty();) {
    pollfd request{.fd = socket.get(), .events = POLLIN, .revents = 0};
    if (poll(&request, 1, 1) == 1) {
      Report message;
      if (recv(socket.get(), &message, sizeof(message), 0) <= 0 || message.kind == 'q') quits = true;
      if (message.kind == 'r') start(message.worker);
    }
    if (settings_.look_after) settings_.look_after(workers);
    int status = 0;
    for (pid_t child = waitpid(-1, &status, WNOHANG); child > 0; child = waitpid(-1, &status, WNOHANG)) {
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
  ends_.store(true);
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
  int replacements_left = settings_.max_replacements;
  while (!ends_.load()) {
    const std::optional<Report> report = next_report();
    if (!report) continue;
    if (report->kind != 'd') {
      coordinator.fail(std::make_exception_ptr(std::runtime_error("a worker failed that was not to die")));
      continue;
    }
    if (settings_.set_aside) coordinator.set_aside(*settings_.set_aside);
    coordinator.lose_worker(report->worker);
    if (settings_.num_deaths != nullptr) ++*settings_.num_deaths;
    if (replacements_left-- <= 0) continue;
    if (launcher_ < 0) {
      start_thread(report->worker);
      continue;
    }
    const Report request{.kind = 'r', .worker = report->worker};
    EXPECT_EQ(send(socket_.get(), &request, sizeof(request), 0), static_cast<ssize_t>(sizeof(request)));
  }
}

}  // namespace rp::test
