#include "launcher/machine/watchdog.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <sstream>
#include <system_error>

#include "common/system/clock.h"
#include "common/system/fd.h"
#include "common/system/kernel_file.h"
#include "common/text.h"

namespace rp {

namespace {

// Returns the value that the variable had when the process was started; "" if it is not set, or must not be read.
std::string variable_of(const std::filesystem::path& process, const std::string& name) {
  const std::string variables = '\0' + kernel_file_text(process / "environ");
  const std::size_t begin = variables.find(cat(std::string(1, '\0'), name, "="));
  if (begin == std::string::npos) return "";
  const std::size_t value = begin + name.size() + 2;
  return variables.substr(value, variables.find('\0', value) - value);
}

// Returns whether the process is in this process's control groups or in groups below them.
bool is_in_own_groups(const std::filesystem::path& process) {
  std::istringstream own(kernel_file_text("/proc/self/cgroup"));
  std::istringstream others(kernel_file_text(process / "cgroup"));
  for (std::string mine, other; std::getline(own, mine) && std::getline(others, other);) {
    if (!other.starts_with(mine)) return false;
  }
  return true;
}

// Kills the processes of the run. Returns whether there were any.
bool kill_processes_of(const std::string& run) {
  bool found = false;
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", failed)) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0 || pid == getpid()) continue;
    // Opened first, because the process may end, and another get its pid.
    const UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    if (!process || variable_of(entry.path(), kRunVariable).find(run) == std::string::npos) continue;
    if (!is_in_own_groups(entry.path())) continue;
    found |= syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0) == 0;
  }
  return found;
}

// Closes every descriptor except `fd`. Otherwise a reader of rp-launch's output, or a process that wants a lock that
// rp-launch held, would wait for this process. Returns the new number of `fd`.
int close_all_but(int fd) {
  constexpr int kKept = 3;
  if (fd != kKept) dup2(fd, kKept);
  closefrom(kKept + 1);
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int standard = 0; standard <= 2; ++standard) nothing < 0 ? close(standard) : dup2(nothing, standard);
  (void)chdir("/");
  return kKept;
}

[[noreturn]] void watch(const std::string& run, int read_end) {
  constexpr std::int64_t kPatienceNs = 10 * kNsPerSecond;
  constexpr useconds_t kPauseUs = 2000;
  pollfd launcher{.fd = read_end, .events = 0, .revents = 0};
  while (poll(&launcher, 1, -1) <= 0) {}
  // A process may start another one while it is looked at, and has no environment in the middle of an exec.
  constexpr int kMaxEmptyLooks = 3;
  const Deadline deadline = Deadline::after_ns(kPatienceNs);
  for (int num_empty = 0; num_empty < kMaxEmptyLooks && !deadline.passed(); usleep(kPauseUs))
    num_empty = kill_processes_of(run) ? 0 : num_empty + 1;
  _exit(0);
}

}  // namespace

std::string make_run_number() {
  std::random_device random;
  std::array<char, 17> digits{};
  std::snprintf(digits.data(), digits.size(), "%08x%08x", random(), random());
  const char* const outer = std::getenv(kRunVariable);
  return outer == nullptr ? std::string(digits.data()) : cat(outer, "/", digits.data());
}

Watchdog::Watchdog(const std::string& run, int read_end, int write_end) : pid_(fork()) {
  if (pid_ != 0) return;
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  setpgid(0, 0);  // a SIGKILL for the group of rp-launch must not end it
  prctl(PR_SET_NAME, "rp-watchdog");
  close(write_end);
  watch(run, close_all_but(read_end));
}

Watchdog::~Watchdog() {
  if (pid_ > 0) waitpid(pid_, nullptr, 0);
}

}  // namespace rp
