// launcher/machine/terminal.h
// Lends the foreground of the controlling terminal to another process group.
#pragma once

#include <sys/types.h>
#include <termios.h>

#include <optional>

#include "common/system/fd.h"

namespace rp {

// The controlling terminal of this process, or none. Keys such as Ctrl-C go to the group in its foreground, and only
// that group may read from it. Move-only.
class Terminal {
 public:
  Terminal() = default;
  [[nodiscard]] static Terminal open();

  [[nodiscard]] bool exists() const { return static_cast<bool>(fd_); }
  // Returns whether this process's group is in the foreground.
  [[nodiscard]] bool is_ours() const;

  // Notes the settings for take_back(), and returns the descriptor for a child that moves itself to the foreground
  // (ChildSpec::terminal).
  [[nodiscard]] int lend();
  // Moves a group to the foreground.
  void lend_to(pid_t group);
  // Moves this process's group to the foreground, with the settings of before. Does nothing if nothing was lent.
  void take_back();

 private:
  UniqueFd fd_;
  std::optional<termios> settings_;  // set while it is lent
};

// Moves a group to the foreground of a terminal, also if the calling process is in the background.
void set_foreground(int terminal, pid_t group);

}  // namespace rp
