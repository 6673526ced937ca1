#include "launcher/nodes_run.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <optional>
#include <utility>

#include "common/system/clock.h"
#include "common/system/fd.h"
#include "common/text.h"
#include "launcher/hosts/connection_watch.h"
#include "launcher/machine/child_process.h"
#include "launcher/machine/program_path.h"
#include "launcher/poll_set.h"
#include "launcher/signal_reader.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

// What mpirun needs to end the processes of all hosts after TERM; then it is killed.
constexpr std::int64_t kMpirunEndNs = 10 * kNsPerSecond;
constexpr std::int64_t kLookNs = kNsPerSecond / 4;  // at mpirun's connections

// The exit codes that Open MPI 4 has for failures of its own (docs/design/several-nodes.md).
struct MpirunCode {
  int code;
  ExitCode means;
  const char* text;
};
constexpr MpirunCode kMpirunCodes[] = {
    {132, ExitCode::kNotFound,
     "a host has no rp-launch under the path that it has here; install the same build on all hosts"},
    {135, ExitCode::kNotFound, "a host does not have the current directory; start the run in one that all hosts share"},
    {205, ExitCode::kNodeLost, "the connection with a host is lost, and all nodes have ended"},
    {255, ExitCode::kNoResource,
     "a host cannot be reached, or has no Open MPI (orted) in its PATH; try: ssh HOST orted --version"}};

std::filesystem::path find_mpirun() try {
  return find_program("mpirun", {}, environment_value("PATH").value_or(""));
} catch (const Error&) {
  throw Error(ExitCode::kNotFound, "--hosts needs Open MPI 4, and there is no mpirun in PATH: install openmpi-bin");
}

// Returns true if a run with this exit code has lost a process or a host, so that another run may go on from its newest
// checkpoint. Codes by which a run reports what would only happen again are left out.
bool is_loss(int code) {
  constexpr std::array kSignals = {SIGKILL, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
  constexpr std::array kCodes = {ExitCode::kNodeLost, ExitCode::kGpuFailed, ExitCode::kHang};
  return std::ranges::any_of(kSignals, [code](int number) { return code == 128 + number; }) ||
         std::ranges::any_of(kCodes, [code](ExitCode of_loss) { return code == static_cast<int>(of_loss); });
}

class NodesRun {
 public:
  explicit NodesRun(NodesRunOptions options) : options_(std::move(options)) {
    signal(SIGPIPE, SIG_IGN);
    spec_.program = find_mpirun();
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      if (!concerns_whole_run(text.substr(0, text.find('=')))) spec_.environment.push_back(text);
    }
    const sigset_t handled = SignalReader::handled();
    pthread_sigmask(SIG_BLOCK, &handled, &spec_.signal_mask);
    getrlimit(RLIMIT_NOFILE, &spec_.open_files);
    signals_.emplace();
    if (options_.time_limit_seconds > 0) time_limit_ = Deadline::after_ns(options_.time_limit_seconds * kNsPerSecond);
  }

  int run() {
    for (int restart = 1;; ++restart) {
      const int code = run_once();
      if (stop_signal_ != 0 || restart > options_.max_restarts || !is_loss(code)) return code;
      std::cerr << "rp-launch: the run has ended with code " << code << "; looking for the hosts that answer\n";
      std::vector<Host> hosts = hosts_that_answer();
      if (hosts.empty() || stop_signal_ != 0) return code;
      std::string names;
      for (const Host& host : hosts) names += cat(names.empty() ? "" : ", ", host.name);
      std::cerr << "rp-launch: starting the program again on " << hosts.size() << " of "
                << options_.command.hosts.size() << " hosts (restart " << restart << " of " << options_.max_restarts
                << "): " << names << "\n";
      options_.command.hosts = std::move(hosts);
    }
  }

 private:
  [[nodiscard]] ChildProcess start(const NodesCommand& command) {
    spec_.arguments = mpirun_arguments(command);
    return ChildProcess::start(spec_);
  }

  int run_once() {
    mpirun_.emplace(start(options_.command));
    ConnectionWatch connections(mpirun_->pid());
    const std::int64_t timeout_ns = options_.command.timeout_seconds * kNsPerSecond;
    bool is_cut_off = false;
    while (!mpirun_->try_reap()) {
      PollSet set;
      set.add(signals_->fd(), POLLIN, [this] { read_signals(); });
      set.add(mpirun_->pidfd(), POLLIN, [] {});
      set.wait(Deadline::after_ns(std::min({deadline_.left_ns(), time_limit_.left_ns(), kLookNs})));
      if (time_limit_.passed()) end_for_time_limit();
      is_cut_off = is_cut_off || connections.unanswered_ns(now_ns()) >= timeout_ns;
      if (deadline_.passed() || is_cut_off) mpirun_->kill_group();
    }
    const int status = *std::exchange(mpirun_, std::nullopt)->status();
    if (is_cut_off) {
      std::cerr << "rp-launch: a host has not answered mpirun for " << options_.command.timeout_seconds
                << " s (--node-timeout), and all nodes were ended\n";
      return static_cast<int>(ExitCode::kNodeLost);
    }
    return exit_code_of(status);
  }

  void read_signals() {
    while (const auto signal = signals_->next()) {
      const auto number = static_cast<int>(signal->ssi_signo);
      if (number == SIGINT || number == SIGTERM || number == SIGHUP || number == SIGUSR1) stop(number);
    }
  }

  void end_for_time_limit() {
    time_limit_ = Deadline::never();
    std::cerr << "rp-launch: the time limit of " << options_.time_limit_seconds << " s is reached\n";
    if (stop_signal_ == 0) stop(SIGUSR1);
  }

  // mpirun passes USR1 on to every rp-launch; with TERM and INT, it ends them at once.
  void stop(int number) {
    if (stop_signal_ == 0) {
      stop_signal_ = number;
      if (!mpirun_) return;
      mpirun_->send_signal(SIGUSR1);
      std::cerr << "rp-launch: SIG" << sigabbrev_np(number) << " is passed on to all nodes; again ends them at once\n";
    } else if (!ends_at_once_ && number != SIGUSR1) {
      ends_at_once_ = true;
      if (mpirun_) mpirun_->send_signal(SIGTERM);
      deadline_ = Deadline::after_ns(kMpirunEndNs);
    }
  }

  // Nodes that were asked to stop end as if by USR1.
  [[nodiscard]] int exit_code_of(int status) const {
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (stop_signal_ == 0 && WIFEXITED(status)) {
      for (const MpirunCode& own : kMpirunCodes) {
        if (code != own.code) continue;
        std::cerr << "rp-launch: " << own.text << "\n";
        return static_cast<int>(own.means);
      }
    }
    const bool was_stopped = stop_signal_ != 0 && (code == 128 + SIGUSR1 || ends_at_once_);
    if (was_stopped || (stop_signal_ == SIGINT && code == static_cast<int>(ExitCode::kPreempted)))
      return 128 + stop_signal_;
    return code;
  }

  // Returns the hosts on which rp-launch can be started within the timeout. Tries all of them at the same time.
  [[nodiscard]] std::vector<Host> hosts_that_answer() {
    const UniqueFd no_output(open("/dev/null", O_RDWR | O_CLOEXEC));
    spec_.stdio = {no_output.get(), no_output.get(), no_output.get()};
    std::vector<ChildProcess> tries;
    for (const Host& host : options_.command.hosts) {
      NodesCommand command = options_.command;
      command.hosts = {{.name = host.name}};
      command.options = {"--version"};
      command.command.clear();
      tries.push_back(start(command));
    }
    spec_.stdio = {};
    const Deadline deadline = Deadline::after_ns((kStartSeconds + options_.command.timeout_seconds) * kNsPerSecond);
    const auto all_have_ended = [&] {
      std::size_t num_ended = 0;
      for (ChildProcess& process : tries) num_ended += process.try_reap() ? 1 : 0;
      return num_ended == tries.size();
    };
    while (!all_have_ended() && !deadline.passed() && !ends_at_once_) {
      PollSet set;
      set.add(signals_->fd(), POLLIN, [this] { read_signals(); });
      for (const ChildProcess& process : tries) {
        if (!process.status()) set.add(process.pidfd(), POLLIN, [] {});
      }
      set.wait(deadline);
    }
    std::vector<Host> hosts;
    for (std::size_t i = 0; i < tries.size(); ++i) {
      if (tries[i].status() == 0) hosts.push_back(options_.command.hosts[i]);
    }
    return hosts;  // the others are killed
  }

  static constexpr std::int64_t kStartSeconds = 5;  // which mpirun needs to start a program on a busy host

  NodesRunOptions options_;
  ChildSpec spec_;
  std::optional<SignalReader> signals_;
  std::optional<ChildProcess> mpirun_;
  Deadline deadline_ = Deadline::never();
  Deadline time_limit_ = Deadline::never();
  int stop_signal_ = 0;
  bool ends_at_once_ = false;
};

}  // namespace

int run_on_hosts(NodesRunOptions options) { return NodesRun(std::move(options)).run(); }

}  // namespace rp
