#include "launcher/machine/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <utility>

#include "common/system/clock.h"
#include "common/system/crash_point.h"
#include "common/system/retry.h"
#include "common/text.h"
#include "launcher/machine/terminal.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

constexpr int kKillPatienceMs = 1000;

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> list;
  for (const std::string& word : words) list.push_back(const_cast<char*>(word.c_str()));
  list.push_back(nullptr);
  return list;
}

void bind_to(const CpuList& cpus) {
  if (cpus.empty()) return;
  const int most = 1 + *std::max_element(cpus.begin(), cpus.end());
  cpu_set_t* set = CPU_ALLOC(most);
  const std::size_t size = CPU_ALLOC_SIZE(most);
  CPU_ZERO_S(size, set);
  for (const int cpu : cpus) CPU_SET_S(static_cast<std::size_t>(cpu), size, set);
  sched_setaffinity(0, size, set);
  CPU_FREE(set);
}

void raise_oom_score(int added) {
  if (added == 0) return;
  FILE* file = std::fopen("/proc/self/oom_score_adj", "r+");
  if (file == nullptr) return;
  int score = 0;
  if (std::fscanf(file, "%d", &score) == 1) {
    std::rewind(file);
    std::fprintf(file, "%d", std::min(1000, score + added));
  }
  std::fclose(file);
}

void restore_signals(const ChildSpec& spec) {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  for (const int number : {SIGPIPE, SIGXFSZ}) sigaction(number, &action, nullptr);
  if (spec.ignores_stop_signals) action.sa_handler = SIG_IGN;
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    struct sigaction present {};
    sigaction(number, nullptr, &present);
    // HUP stays ignored under nohup. INT is always restored, although shells start background jobs
    // with INT ignored.
    if (number != SIGHUP || present.sa_handler != SIG_IGN) sigaction(number, &action, nullptr);
  }
  sigprocmask(SIG_SETMASK, &spec.signal_mask, nullptr);
}

void place_stdio(const ChildSpec& spec) {
  for (int fd = 0; fd < 3; ++fd) {
    const std::optional<int>& from = spec.stdio[fd];
    if (from) retry_interrupted([&] { return dup2(*from, fd); });
  }
}

// Runs in the child. Uses only what is allowed between fork and exec in a process with one thread.
[[noreturn]] void become(const ChildSpec& spec, pid_t launcher, int error_pipe) {
  if (spec.own_group) setpgid(0, 0);
  if (spec.terminal) set_foreground(*spec.terminal, getpgrp());
  RP_CRASH_POINT("launcher.child.is_forked");
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // If the launcher died before the line above, no signal will arrive.
  if (getppid() != launcher) _exit(static_cast<int>(ExitCode::kLauncherFailed));
  place_stdio(spec);
  for (const int fd : spec.inherited) fcntl(fd, F_SETFD, 0);
  bind_to(spec.cpus);
  raise_oom_score(spec.oom_score_added);
  setrlimit(RLIMIT_NOFILE, &spec.open_files);
  restore_signals(spec);
  const std::vector<char*> arguments = pointers(spec.arguments);
  const std::vector<char*> environment = pointers(spec.environment);
  RP_CRASH_POINT("launcher.child.executes");
  execve(spec.program.c_str(), arguments.data(), environment.data());
  const int error_number = errno;
  const ssize_t written = write(error_pipe, &error_number, sizeof(error_number));
  _exit(written == sizeof(error_number) ? 126 : 125);
}

[[noreturn]] void throw_not_started(const ChildSpec& spec, int error_number) {
  const ExitCode code = error_number == ENOENT ? ExitCode::kNotFound : ExitCode::kCannotExecute;
  const char* hint = error_number == ENOEXEC  ? "; it is neither a program nor a script with #! in its first line"
                     : error_number == ENOENT ? "; it, or the interpreter that it names, does not exist"
                                              : "";
  throw Error(code, cat("cannot execute ", spec.program.string(), ": ", errno_text(error_number), hint));
}

[[noreturn]] void throw_no_process(const char* step) {
  throw Error(ExitCode::kNoResource, cat("cannot start a process (", step, ": ", errno_text(errno),
                                         "); raise the limits on processes and open files (ulimit -u, ulimit -n)"));
}

std::vector<pid_t> children_of_this_process() {
  std::ifstream list(cat("/proc/self/task/", getpid(), "/children"));
  std::vector<pid_t> pids;
  for (pid_t pid = 0; list >> pid;) pids.push_back(pid);
  return pids;
}

}  // namespace

ChildProcess ChildProcess::start(const ChildSpec& spec) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) throw_no_process("pipe");
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  const pid_t launcher = getpid();
  const pid_t pid = fork();
  if (pid < 0) throw_no_process("fork");
  if (pid == 0) become(spec, launcher, write_end.get());
  write_end.reset();
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  ChildProcess child(pid, std::move(pidfd), spec.own_group);
  if (!child.pidfd_) throw_no_process("pidfd_open (Linux 5.4 or newer is needed)");
  int error_number = 0;
  ssize_t received = 0;
  do {
    received = read(read_end.get(), &error_number, sizeof(error_number));
  } while (received < 0 && errno == EINTR);
  if (received == sizeof(error_number)) throw_not_started(spec, error_number);
  return child;
}

ChildProcess::ChildProcess(pid_t pid, UniqueFd pidfd, bool own_group)
    : pid_(pid), pidfd_(std::move(pidfd)), own_group_(own_group) {}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      pidfd_(std::move(other.pidfd_)),
      own_group_(other.own_group_),
      status_(other.status_) {}

ChildProcess::~ChildProcess() {
  if (pid_ < 0 || status_) return;
  kill_group();
  // Killed processes end at once, except those that hang in the kernel, and no process may wait for
  // those.
  pollfd ended{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
  poll(&ended, 1, kKillPatienceMs);
  waitpid(pid_, nullptr, WNOHANG);
}

bool ChildProcess::try_reap() {
  if (status_) return true;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return false;
  status_ = status;
  return true;
}

void ChildProcess::send_signal(int signal_number) {
  // As long as the child is not reaped, its pid is not used again.
  if (!status_) kill(pid_, signal_number);
}

void ChildProcess::send_signal_to_thread(pid_t thread, int signal_number) {
  if (!status_) syscall(SYS_tgkill, pid_, thread, signal_number);
}

void ChildProcess::send_signal_to_group(int signal_number) {
  if (!status_) kill(own_group_ ? -pid_ : pid_, signal_number);
}

void ChildProcess::kill_group() {
  send_signal(SIGKILL);
  // A group continues to exist, and its number is not used again, as long as it has a member.
  if (own_group_) kill(-pid_, SIGKILL);
}

void reap_adopted_processes(const std::vector<pid_t>& own) {
  while (true) {
    siginfo_t info{};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    if (std::find(own.begin(), own.end(), info.si_pid) != own.end()) return;
    waitpid(info.si_pid, nullptr, WNOHANG);
  }
}

void end_adopted_processes(std::int64_t timeout_ns) {
  const Deadline deadline = Deadline::after_ns(timeout_ns);
  sigset_t child_ended;
  sigemptyset(&child_ended);
  sigaddset(&child_ended, SIGCHLD);
  while (true) {
    while (waitpid(-1, nullptr, WNOHANG) > 0) {}
    const std::vector<pid_t> left = children_of_this_process();
    if (left.empty() || deadline.passed()) return;
    for (const pid_t pid : left) kill(pid, SIGKILL);
    const timespec patience{.tv_sec = 0, .tv_nsec = 50 * kNsPerMs};
    sigtimedwait(&child_ended, nullptr, &patience);
  }
}

}  // namespace rp
