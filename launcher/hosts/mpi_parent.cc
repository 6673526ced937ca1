#include "launcher/hosts/mpi_parent.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <string>

#include "common/system/kernel_file.h"
#include "common/text.h"
#include "launcher/hosts/connection_watch.h"

namespace rp {

namespace {

std::string name_of(pid_t process) {
  std::string name;
  std::istringstream(kernel_file_text(cat("/proc/", process, "/comm"))) >> name;
  return name;
}

pid_t parent_of(pid_t process) {
  const std::string status = kernel_file_text(cat("/proc/", process, "/status"));
  const std::string field = "\nPPid:";
  const std::size_t place = status.find(field);
  return place == std::string::npos ? 0 : std::atoi(status.c_str() + place + field.size());
}

bool is_cut_off(pid_t daemon) {
  constexpr int kRetries = 3;  // after about 1.4 s
  return std::ranges::any_of(tcp_connections(daemon),
                             [](const TcpConnection& connection) { return connection.num_retries >= kRetries; });
}

// Becomes a process that nothing waits for.
void detach(int kept_fd) {
  constexpr int kKept = 3;
  if (kept_fd != kKept) dup2(kept_fd, kKept);
  for (int standard = 0; standard < kKept; ++standard) close(standard);  // the daemon waits for the end of the output
  closefrom(kKept + 1);
  setsid();
  (void)chdir("/");
  prctl(PR_SET_NAME, "rp-mpi-end");
}

}  // namespace

void end_mpi_parent(int code) {
  const pid_t parent = getppid();
  const std::string name = name_of(parent);
  const bool is_own_mpirun = name == "mpirun" && name_of(parent_of(parent)) == "rp-launch";
  if (name != "orted" && !(is_own_mpirun && code == static_cast<int>(ExitCode::kNodeLost))) return;
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, parent, 0));
  if (pidfd < 0 || fork() != 0) return;
  detach(pidfd);
  pollfd process{.fd = 3, .events = POLLIN, .revents = 0};
  // mpirun has 0.3 s to pass the last words of this node on.
  constexpr int kLastWordsMs = 300;
  constexpr int kLookMs = 100;
  while (poll(&process, 1, is_own_mpirun ? kLastWordsMs : kLookMs) == 0) {
    if (is_own_mpirun || is_cut_off(parent)) kill(parent, SIGKILL);
  }
  _exit(0);
}

}  // namespace rp
