#include "launcher/nodes_run.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <optional>
#include <utility>

#include "common/system/clock.h"
#include "common/text.h"
#include "launcher/events/poll_set.h"
#include "launcher/events/signal_reader.h"
#include "launcher/hosts/connection_watch.h"
#include "launcher/hosts/host_check.h"
#include "launcher/hosts/mpirun_process.h"
#include "launcher/launch_plan.h"
#include "launcher/machine/child_process.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

// What mpirun needs to end the processes of all hosts after TERM; then it is killed.
constexpr std::int64_t kMpirunEndNs = 10 * kNsPerSecond;
constexpr std::int64_t kLookNs = kNsPerSecond / 4;  // at mpirun's connections
// What the daemons of other hosts need to end their processes when mpirun was killed. Until then these may still write.
constexpr std::int64_t kDaemonsEndNs = 3 * kNsPerSecond;
// How long all hosts together have to answer; then each is asked alone.
constexpr std::int64_t kTogetherNs = kHostStartSeconds * kNsPerSecond;
constexpr std::int64_t kTogetherNsPerHost = kNsPerSecond / 10;

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
    spec_ = mpirun_spec();
    signals_.emplace();
    if (options_.time_limit_seconds > 0) time_limit_ = Deadline::after_ns(options_.time_limit_seconds * kNsPerSecond);
  }

  int run() {
    const int code = check_hosts();
    if (stop_signal_ != 0) return 128 + stop_signal_;
    if (code != 0) return code;
    for (int restart = 1;; ++restart) {
      const int code = run_once();
      if (stop_signal_ != 0 || restart > options_.max_restarts || !is_loss(code)) return code;
      std::cerr << "rp-launch: the run has ended with code " << code << "; looking for the hosts that answer\n";
      pause(kDaemonsEndNs);
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
  [[nodiscard]] ChildProcess start(NodesCommand command) const {
    ChildSpec spec = spec_;
    std::string hosts;
    for (const Host& host : command.hosts) hosts += cat(hosts.empty() ? "" : ",", host.name);
    spec.environment.push_back(cat(kNodeHostsVariable, "=", hosts));
    command.variables.emplace_back(kNodeHostsVariable);
    spec.arguments = mpirun_arguments(command);
    return ChildProcess::start(spec);
  }

  int run_once() {
    mpirun_.emplace(start(options_.command));
    ConnectionWatch connections(mpirun_->pid());
    bool is_cut_off = false;
    while (!mpirun_->try_reap()) {
      PollSet set;
      set.add(signals_->fd(), POLLIN, [this] { read_signals(); });
      set.add(mpirun_->pidfd(), POLLIN, [] {});
      set.wait(Deadline::after_ns(std::min({deadline_.left_ns(), time_limit_.left_ns(), kLookNs})));
      if (time_limit_.passed()) end_for_time_limit();
      is_cut_off = is_cut_off || connections.unanswered_ns(now_ns()) >= patience_ns();
      if (deadline_.passed() || is_cut_off) mpirun_->kill_group();
    }
    const int status = *std::exchange(mpirun_, std::nullopt)->status();
    if (is_cut_off) {
      std::cerr << "rp-launch: a host does not answer mpirun any more, and all nodes were ended\n";
      return static_cast<int>(ExitCode::kNodeLost);
    }
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && !deadline_.passed()) {
      std::cerr << "rp-launch: mpirun was killed, and all nodes have ended\n";
      return static_cast<int>(ExitCode::kNodeLost);
    }
    return exit_code_of(status);
  }

  // How long a host may leave mpirun without an answer. mpirun sends nothing until the run ends, so that a host is lost
  // was noticed before; but if it has passed a signal on, the nodes still need the time to notice it and to say so.
  [[nodiscard]] std::int64_t patience_ns() const {
    const std::int64_t timeout_ns = options_.command.timeout_seconds * kNsPerSecond;
    return stop_signal_ == 0 ? timeout_ns / 2 : timeout_ns + timeout_ns / 4;
  }

  void pause(std::int64_t ns) {
    const Deadline deadline = Deadline::after_ns(ns);
    while (!deadline.passed() && stop_signal_ == 0) {
      PollSet set;
      set.add(signals_->fd(), POLLIN, [this] { read_signals(); });
      set.wait(deadline);
    }
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
      if (const MpirunFailure* failure = mpirun_failure(code)) {
        std::cerr << "rp-launch: a host " << failure->text << "\n";
        return static_cast<int>(failure->means);
      }
    }
    const bool was_stopped = stop_signal_ != 0 && (code == 128 + SIGUSR1 || ends_at_once_);
    if (was_stopped || (stop_signal_ == SIGINT && code == static_cast<int>(ExitCode::kPreempted)))
      return 128 + stop_signal_;
    return code;
  }

  [[nodiscard]] NodesCommand question() const {
    NodesCommand question = options_.command;
    question.options.emplace_back("--dry-run");
    return question;
  }

  // Returns false once a signal has asked the run to end.
  bool wait(PollSet& set, const Deadline& deadline) {
    set.add(signals_->fd(), POLLIN, [this] { read_signals(); });
    set.wait(deadline);
    return stop_signal_ == 0;
  }

  [[nodiscard]] std::vector<HostAnswer> ask_each_host() {
    return rp::ask_each_host(question(), spec_,
                             [this](auto& set, const auto& deadline) { return wait(set, deadline); });
  }

  // Reports each host on which the program cannot run, and returns the exit code of the first one; 0 if there is none.
  [[nodiscard]] int check_hosts() {
    const auto num_hosts = static_cast<std::int64_t>(options_.command.hosts.size());
    const Deadline deadline = Deadline::after_ns(kTogetherNs + num_hosts * kTogetherNsPerHost);
    const std::string problem =
        ask_hosts_together(question(), spec_, kPlanTableHeading, deadline,
                           [this](auto& set, const auto& deadline) { return wait(set, deadline); });
    if (problem.empty() || stop_signal_ != 0) return 0;
    if (deadline.passed()) pause(kDaemonsEndNs);
    int code = 0;
    for (const HostAnswer& answer : ask_each_host()) {
      std::cerr << answer.text;
      if (code == 0) code = answer.code;
    }
    if (code == 0) {
      std::cerr
          << "rp-launch: note: each host answers alone, and not all together: " << problem
          << "rp-launch: starting the run all the same; if it does not begin, does a firewall block TCP connections "
             "or ssh between the hosts?\n";
    }
    return code;
  }

  // Returns the hosts on which the program can run.
  [[nodiscard]] std::vector<Host> hosts_that_answer() {
    std::vector<Host> hosts;
    for (const HostAnswer& answer : ask_each_host()) {
      if (answer.code == 0) hosts.push_back(answer.host);
    }
    return hosts;
  }

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
