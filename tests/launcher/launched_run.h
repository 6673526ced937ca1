// tests/launcher/launched_run.h
// A real rp-launch with the toy program under it, for tests of whole runs.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "common/system/fd.h"

namespace rp {

// Owns the launcher; kills it at the end. Its stdout and stderr are files that are read while it runs.
class LaunchedRun {
 public:
  // `arguments` of rp-launch; a "TOY" among them becomes the toy program's path.
  explicit LaunchedRun(const std::vector<std::string>& arguments,
                       const std::vector<std::pair<std::string, std::string>>& variables = {});
  LaunchedRun(const LaunchedRun&) = delete;
  LaunchedRun& operator=(const LaunchedRun&) = delete;
  ~LaunchedRun();

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] std::string out() const { return text_of(out_.get()); }
  [[nodiscard]] std::string err() const { return text_of(err_.get()); }

  // False if stdout does not contain `text` within 20 s.
  [[nodiscard]] bool wait_for_output(const std::string& text) const;
  void send_signal(int signal_number) const { kill(pid_, signal_number); }
  // The exit code, 128 + n for an end by signal n, or -1 if it has not ended within `seconds`.
  [[nodiscard]] int wait_for_end(double seconds = 20);
  // Processes of this run that exist, found by a variable that only they have; the launcher included.
  [[nodiscard]] std::vector<pid_t> processes() const;
  // True once there are none, false if that takes more than `seconds`.
  [[nodiscard]] bool all_gone_within(double seconds) const;

 private:
  [[nodiscard]] static std::string text_of(int fd);

  std::string mark_;
  UniqueFd out_;
  UniqueFd err_;
  pid_t pid_ = -1;
  int code_ = -1;
};

// Files that the runs of this test program left in its own /dev/shm or TMPDIR. Every test program has these two to
// itself (a mount namespace; without the right to make one, /dev/shm is not looked at), so that nobody else's files
// count.
[[nodiscard]] std::vector<std::string> files_left();

// How often `part` is in `text`.
[[nodiscard]] int count_of(const std::string& text, const std::string& part);
[[nodiscard]] std::vector<std::string> lines_of(const std::string& text);

}  // namespace rp
