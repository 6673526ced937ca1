// tests/launcher/launched_run.h
// Runs the real rp-launch with the toy program, for tests of whole runs.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "common/system/fd.h"

namespace rp {

// Owns the launcher process; the destructor kills it. Its stdout and stderr are memory files, which
// can be read while it runs.
class LaunchedRun {
 public:
  // `arguments`: those of rp-launch, where "TOY" is replaced by the path of the toy program.
  explicit LaunchedRun(const std::vector<std::string>& arguments,
                       const std::vector<std::pair<std::string, std::string>>& variables = {});
  LaunchedRun(const LaunchedRun&) = delete;
  LaunchedRun& operator=(const LaunchedRun&) = delete;
  ~LaunchedRun();

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] std::string out() const { return text_of(out_.get()); }
  [[nodiscard]] std::string err() const { return text_of(err_.get()); }

  // Waits until stdout contains `text`. Returns false after 20 s.
  [[nodiscard]] bool wait_for_output(const std::string& text) const;
  void send_signal(int signal_number) const { kill(pid_, signal_number); }
  // Returns the exit code, 128 + n if signal n killed the launcher, or -1 if it has not ended
  // within `seconds`.
  [[nodiscard]] int wait_for_end(double seconds = 20);
  // Returns the existing processes of this run, including the launcher. They are found by an
  // environment variable that only they have.
  [[nodiscard]] std::vector<pid_t> processes() const;
  // Waits until no process of this run exists. Returns false after `seconds`.
  [[nodiscard]] bool all_gone_within(double seconds) const;

 private:
  [[nodiscard]] static std::string text_of(int fd);

  std::string mark_;
  UniqueFd out_;
  UniqueFd err_;
  pid_t pid_ = -1;
  int code_ = -1;
};

// Returns the files that runs of this test program have left in its own /dev/shm or TMPDIR. Every
// test program has its own TMPDIR, and a mount namespace with its own /dev/shm, so files of other
// programs are not included. Without the right to create a mount namespace, /dev/shm is not
// checked.
[[nodiscard]] std::vector<std::string> files_left();

// Returns the number of occurrences of `part` in `text`.
[[nodiscard]] int count_of(const std::string& text, const std::string& part);
[[nodiscard]] std::vector<std::string> lines_of(const std::string& text);

}  // namespace rp
