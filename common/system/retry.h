// common/system/retry.h
// Repeats system calls that a signal interrupts.
#pragma once

#include <cerrno>

namespace rp {

// Makes a system call, and repeats it while a signal interrupts it (EINTR). `call` returns what the
// system call returns: -1, with errno set, if it fails. Not for close(), which has closed the
// descriptor even if it was interrupted.
template <typename Call>
auto retry_interrupted(Call&& call) {
  while (true) {
    const auto result = call();
    if (result != -1 || errno != EINTR) return result;
  }
}

}  // namespace rp
