// tests/hoststore/processes.h
// A part of a test in a process of its own.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <fcntl.h>

#include <cstdio>
#include <exception>
#include <vector>

#include "common/fd.h"

namespace rp::test {

// Runs `body` in a child and returns its wait status; it exits 0, or 1 if `body` returns false or throws. Fork before
// any thread is started.
template <typename Body>
int status_of_process(Body&& body) {
  const pid_t child = fork();
  if (child == 0) {
    bool good = false;
    try {
      good = body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child: %s\n", error.what());
    }
    _exit(good ? 0 : 1);
  }
  int status = -1;
  if (waitpid(child, &status, 0) != child) return -1;
  return status;
}

// Starts `body` in a child and goes on; wait for it with waitpid().
template <typename Body>
pid_t start_process(Body&& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body() ? 0 : 1);
  return child;
}

inline int wait_for_process(pid_t child) {
  int status = -1;
  return waitpid(child, &status, 0) == child ? status : -1;
}

// Descriptors as another process would get them.
inline std::vector<UniqueFd> duplicates(const std::vector<int>& descriptors) {
  std::vector<UniqueFd> result;
  for (const int fd : descriptors) result.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  return result;
}

}  // namespace rp::test
