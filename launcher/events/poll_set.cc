#include "launcher/events/poll_set.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

void PollSet::add(int fd, short events, std::function<void()> handler) {
  fds_.push_back(pollfd{.fd = fd, .events = events, .revents = 0});
  handlers_.push_back(std::move(handler));
}

void PollSet::wait(const Deadline& deadline) {
  const std::int64_t left_ns = std::max<std::int64_t>(0, deadline.left_ns());
  timespec timeout{.tv_sec = left_ns / kNsPerSecond, .tv_nsec = left_ns % kNsPerSecond};
  const int ready = ppoll(fds_.data(), fds_.size(), left_ns == INT64_MAX ? nullptr : &timeout, nullptr);
  if (ready < 0 && errno != EINTR) throw Error(ExitCode::kLauncherFailed, cat("poll: ", errno_text(errno)));
  if (ready <= 0) return;
  for (std::size_t i = 0; i < fds_.size(); ++i) {
    if (fds_[i].revents != 0) handlers_[i]();
  }
}

}  // namespace rp
