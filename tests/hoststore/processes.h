// tests/hoststore/processes.h
// A part of a test in a process of its own.
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

// Starts `body` in a child and goes on; wait for it with wait_for_process(). The child exits 0, or 1 if `body` returns
// false or throws. Fork before any thread is started.
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

// Its wait status.
inline int wait_for_process(pid_t child) {
  int status = -1;
  return waitpid(child, &status, 0) == child ? status : -1;
}

// Both.
template <typename Body>
int status_of_process(Body&& body) {
  return wait_for_process(start_process(std::forward<Body>(body)));
}

// Descriptors as another process would get them.
inline std::vector<UniqueFd> duplicates(const std::vector<int>& descriptors) {
  std::vector<UniqueFd> result;
  for (const int fd : descriptors) result.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  return result;
}

}  // namespace rp::test
