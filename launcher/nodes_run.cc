#include "launcher/nodes_run.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <iostream>

#include "common/system/clock.h"
#include "common/text.h"
#include "launcher/hosts/mpirun_command.h"
#include "launcher/machine/child_process.h"
#include "launcher/machine/program_path.h"
#include "launcher/poll_set.h"
#include "launcher/signal_reader.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

// What mpirun needs to end the processes of all hosts after TERM; then it is killed.
constexpr std::int64_t kMpirunEndNs = 10 * kNsPerSecond;

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
    {205, ExitCode::kNoResource,
     "the connection with a host is lost, and all nodes have ended; go on from the newest checkpoint"},
    {255, ExitCode::kNoResource,
     "a host cannot be reached, or has no Open MPI (orted) in its PATH; try: ssh HOST orted --version"}};

std::filesystem::path find_mpirun() try {
  return find_program("mpirun", {}, environment_value("PATH").value_or(""));
} catch (const Error&) {
  throw Error(ExitCode::kNotFound, "--hosts needs Open MPI 4, and there is no mpirun in PATH: install openmpi-bin");
}

class NodesRun {
 public:
  explicit NodesRun(const std::vector<std::string>& arguments) {
    ChildSpec spec;
    spec.program = find_mpirun();
    spec.arguments = arguments;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      if (!names_hosts(text.substr(0, text.find('=')))) spec.environment.push_back(text);
    }
    const sigset_t handled = SignalReader::handled();
    pthread_sigmask(SIG_BLOCK, &handled, &spec.signal_mask);
    getrlimit(RLIMIT_NOFILE, &spec.open_files);
    signals_.emplace();
    mpirun_.emplace(ChildProcess::start(spec));
  }

  int run() {
    while (!mpirun_->try_reap()) {
      PollSet set;
      set.add(signals_->fd(), POLLIN, [this] { read_signals(); });
      set.add(mpirun_->pidfd(), POLLIN, [] {});
      set.wait(deadline_);
      if (deadline_.passed()) mpirun_->kill_group();
    }
    return exit_code();
  }

 private:
  void read_signals() {
    while (const auto signal = signals_->next()) {
      const auto number = static_cast<int>(signal->ssi_signo);
      if (number == SIGINT || number == SIGTERM || number == SIGHUP || number == SIGUSR1) stop(number);
    }
  }

  // mpirun passes USR1 on to every rp-launch; with TERM and INT, it ends them at once.
  void stop(int number) {
    if (stop_signal_ == 0) {
      stop_signal_ = number;
      mpirun_->send_signal(SIGUSR1);
      std::cerr << "rp-launch: SIG" << sigabbrev_np(number) << " is passed on to all nodes; again ends them at once\n";
    } else if (!ends_at_once_ && number != SIGUSR1) {
      ends_at_once_ = true;
      mpirun_->send_signal(SIGTERM);
      deadline_ = Deadline::after_ns(kMpirunEndNs);
    }
  }

  // Nodes that were asked to stop end as if by USR1.
  [[nodiscard]] int exit_code() const {
    const int status = *mpirun_->status();
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

  std::optional<SignalReader> signals_;
  std::optional<ChildProcess> mpirun_;
  Deadline deadline_ = Deadline::never();
  int stop_signal_ = 0;
  bool ends_at_once_ = false;
};

}  // namespace

int run_on_hosts(const std::vector<std::string>& arguments) { return NodesRun(arguments).run(); }

}  // namespace rp
