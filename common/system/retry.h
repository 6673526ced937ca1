// common/system/retry.h
// System calls that a signal may interrupt.
#pragma once

#include <cerrno>

namespace rp {

// Makes a system call, and makes it again as long as a signal interrupts it (EINTR). `call` returns what the system
// call does: -1, with errno, where it fails. Not for close(), which has closed the descriptor even then.
template <typename Call>
auto retry_interrupted(Call&& call) {
  while (true) {
    const auto result = call();
    if (result != -1 || errno != EINTR) return result;
  }
}

}  // namespace rp
