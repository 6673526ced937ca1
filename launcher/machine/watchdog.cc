#include "launcher/machine/watchdog.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <system_error>

#include "common/system/clock.h"
#include "common/system/fd.h"
#include "common/text.h"

namespace rp {

namespace {

// Returns the value that the variable had when the process was started; "" if it is not set, or must not be read.
std::string variable_of(const std::filesystem::path& process, const std::string& name) {
  std::ifstream file(process / "environ");
  const std::string variables = '\0' + std::string(std::istreambuf_iterator<char>(file), {});
  const std::size_t begin = variables.find(cat(std::string(1, '\0'), name, "="));
  if (begin == std::string::npos) return "";
  const std::size_t value = begin + name.size() + 2;
  return variables.substr(value, variables.find('\0', value) - value);
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
    found |= syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0) == 0;
  }
  return found;
}

[[noreturn]] void watch(const std::string& run, int read_end) {
  constexpr std::int64_t kPatienceNs = 10 * kNsPerSecond;
  constexpr useconds_t kPauseUs = 2000;
  pollfd launcher{.fd = read_end, .events = 0, .revents = 0};
  while (poll(&launcher, 1, -1) <= 0) {}
  // A process may be starting another one while it is looked at, so the last look must find none.
  for (const Deadline deadline = Deadline::after_ns(kPatienceNs); kill_processes_of(run) && !deadline.passed();)
    usleep(kPauseUs);
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

void start_watchdog(const std::string& run, int read_end, int write_end) {
  if (fork() != 0) return;
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  setpgid(0, 0);  // a SIGKILL for the group of rp-launch must not end it
  prctl(PR_SET_NAME, "rp-watchdog");
  close(write_end);
  // Whoever reads what rp-launch prints must not wait for this process.
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; fd <= 2; ++fd) dup2(nothing, fd);
  watch(run, read_end);
}

}  // namespace rp
