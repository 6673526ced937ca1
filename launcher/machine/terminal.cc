#include "launcher/machine/terminal.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/system/blocked_signals.h"

namespace rp {

void set_foreground(int terminal, pid_t group) {
  const BlockedSignals blocked;  // SIGTTOU would stop a process in the background
  tcsetpgrp(terminal, group);
}

Terminal Terminal::open() {
  Terminal terminal;
  terminal.fd_ = UniqueFd(::open("/dev/tty", O_RDWR | O_CLOEXEC));
  return terminal;
}

bool Terminal::is_ours() const { return exists() && tcgetpgrp(fd_.get()) == getpgrp(); }

int Terminal::lend() {
  termios now{};
  if (tcgetattr(fd_.get(), &now) == 0) settings_ = now;
  return fd_.get();
}

void Terminal::lend_to(pid_t group) { set_foreground(lend(), group); }

void Terminal::take_back() {
  if (!settings_) return;
  const BlockedSignals blocked;  // as in set_foreground()
  tcsetpgrp(fd_.get(), getpgrp());
  tcsetattr(fd_.get(), TCSADRAIN, &*settings_);
  settings_.reset();
}

}  // namespace rp
