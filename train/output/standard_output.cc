#include "train/output/standard_output.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "common/files/output_file.h"
#include "common/system/clock.h"
#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {
namespace {

constexpr std::int64_t kLimitNs = 2 * kNsPerSecond;

struct Stream {
  explicit Stream(int number) : fd(number), pipe(reopen_pipe_without_waiting(number)) {}
  [[nodiscard]] int writable() const { return pipe ? pipe.get() : fd; }

  int fd;
  UniqueFd pipe;  // the stream reopened as non-blocking, if it is a pipe
  int error = 0;  // the first failure's errno
  std::uint64_t dropped_bytes = 0;
};

Stream& out() {
  static Stream stream(STDOUT_FILENO);
  return stream;
}
Stream& err() {
  static Stream stream(STDERR_FILENO);
  return stream;
}
bool g_is_quiet = false;
std::function<bool()> g_stop_requested;
std::function<void(const std::string&)> g_failure_log;
std::string g_failure;       // print()'s report of a failure; empty: none
std::int64_t g_stop_ns = 0;  // when a request to end was first seen; 0: not yet

// Returns false once there is no time left to wait for a reader.
bool wait_for_room(int fd) {
  while (true) {
    pollfd room{.fd = fd, .events = POLLOUT, .revents = 0};
    if (poll(&room, 1, 100) > 0) return true;  // also if the write will fail
    if (!g_stop_requested || !g_stop_requested()) continue;
    if (g_stop_ns == 0) g_stop_ns = now_ns();
    if (now_ns() - g_stop_ns > kLimitNs) return false;
  }
}

// Returns false at the first failure of the stream.
bool write_text(Stream& stream, std::string_view text) {
  if (g_is_quiet) return true;
  if (stream.error == EPIPE) return true;
  while (!text.empty()) {
    if (!wait_for_room(stream.writable())) {
      stream.dropped_bytes += text.size();
      return true;
    }
    const ssize_t written = ::write(stream.writable(), text.data(), std::min<std::size_t>(text.size(), PIPE_BUF));
    if (written < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (written < 0)
      return std::exchange(stream.error, errno) != 0;  // a full disk may have space again for the next text
    text.remove_prefix(written);
  }
  return true;
}

}  // namespace

void print(const std::string& text) {
  if (write_text(out(), text)) return;
  g_failure = cat("train: ", out().error == EPIPE ? "stdout has no reader any more" : "stdout cannot be written", " (",
                  errno_text(out().error), "); the run goes on, and metrics.jsonl has its steps\n");
  print_error(g_failure);
  if (g_failure_log) g_failure_log(g_failure);
}

void print_error(const std::string& text) { (void)write_text(err(), text); }

void set_quiet() { g_is_quiet = true; }

void set_print_limit(std::function<bool()> stop_requested) { g_stop_requested = std::move(stop_requested); }

void set_failure_log(std::function<void(const std::string&)> log) {
  g_failure_log = std::move(log);
  if (g_failure_log && !g_failure.empty()) g_failure_log(g_failure);
}

void report_dropped_output() {
  if (out().dropped_bytes > 0)
    print_error(
        cat("train: ", bytes_text(out().dropped_bytes), " of stdout could not be written in time and are dropped\n"));
}

void check_printed() {
  if (out().error == 0 || out().error == EPIPE) return;
  throw Error(ExitCode::kOutputFailed, cat("stdout could not be written: ", errno_text(out().error),
                                           "; the run is complete, and what it printed is cut off"));
}

}  // namespace rp
