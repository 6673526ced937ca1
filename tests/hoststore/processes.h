// tests/hoststore/processes.h
// Runs a part of a test in a process of its own.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <fcntl.h>

#include <cstdio>
#include <exception>
#include <utility>
#include <vector>

#include "common/system/fd.h"

namespace rp::test {

// Starts `body` in a child process and returns the child, for wait_for_process(). The child exits
// with 0, or with 1 if `body` returns false or throws. Must be called before any thread is started,
// because it forks.
template <typename Body>
pid_t start_process(Body&& body) {
  const pid_t child = fork();
  if (child != 0) return child;
  bool good = false;
  try {
    good = body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "child: %s\n", error.what());
  }
  _exit(good ? 0 : 1);
}

// Waits for the process to end. Returns its wait status.
inline int wait_for_process(pid_t child) {
  int status = -1;
  return waitpid(child, &status, 0) == child ? status : -1;
}

// Calls start_process() and wait_for_process().
template <typename Body>
int status_of_process(Body&& body) {
  return wait_for_process(start_process(std::forward<Body>(body)));
}

// Returns duplicates of descriptors, as another process would get them.
inline std::vector<UniqueFd> duplicates(const std::vector<int>& descriptors) {
  std::vector<UniqueFd> result;
  for (const int fd : descriptors) result.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  return result;
}

}  // namespace rp::test
