// Preloaded into a program by tests of hangs: a thread that gets SIGUSR2 never does anything else again, as in a layer
// that never ends.

#include <signal.h>

namespace {

void spin(int) {
  for (;;) asm volatile("");
}

// Runs before main().
[[gnu::constructor]] void install() {
  struct sigaction action {};
  action.sa_handler = spin;
  sigaction(SIGUSR2, &action, nullptr);
}

}  // namespace
