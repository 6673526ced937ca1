#include "launcher/machine/terminal.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

namespace rp {

namespace {

// A process in the background that changes its terminal gets SIGTTOU, which stops it, unless it blocks the signal.
class BlockedTtou {
 public:
  BlockedTtou() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTTOU);
    sigprocmask(SIG_BLOCK, &set, &before_);
  }
  BlockedTtou(const BlockedTtou&) = delete;
  BlockedTtou& operator=(const BlockedTtou&) = delete;
  ~BlockedTtou() { sigprocmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

}  // namespace

void set_foreground(int terminal, pid_t group) {
  const BlockedTtou blocked;
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
  const BlockedTtou blocked;
  tcsetpgrp(fd_.get(), getpgrp());
  tcsetattr(fd_.get(), TCSADRAIN, &*settings_);
  settings_.reset();
}

}  // namespace rp
