#include "launcher/output.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <ctime>
#include <utility>

#include "common/system/clock.h"

namespace rp {

std::string LineAssembler::add(std::string_view bytes) {
  std::string lines;
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    const bool whole = end != std::string_view::npos;
    partial_ += bytes.substr(0, whole ? end + 1 : bytes.size());
    bytes.remove_prefix(whole ? end + 1 : bytes.size());
    if (whole) {
      lines += prefix() + partial_;
      partial_.clear();
    } else if (partial_.size() >= kMaxLineBytes) {
      lines += finish();
    }
  }
  return lines;
}

std::string LineAssembler::finish() {
  if (partial_.empty()) return "";
  std::string line = prefix() + std::exchange(partial_, "");
  return line + "\n";
}

std::string LineAssembler::prefix() const {
  if (!has_times_) return tag_;
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm parts{};
  localtime_r(&now.tv_sec, &parts);
  std::array<char, 32> text{};
  const std::size_t end = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text.data() + end, text.size() - end, ".%03ld ", now.tv_nsec / kNsPerMs);
  return text.data() + tag_;
}

OutputSink::OutputSink(int fd) : fd_(fd), pipe_(reopen_pipe_without_waiting(fd)) {
  struct stat status {};
  is_file_ = fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}

void OutputSink::add(std::string_view lines) {
  if (drops_ && queue_.size() >= kMaxQueuedBytes) {
    dropped_bytes_ += lines.size();
  } else {
    queue_ += lines;
  }
}

void OutputSink::drop_queued() {
  dropped_bytes_ += queue_.size();
  queue_.clear();
}

void OutputSink::write_some() {
  if (broken_) queue_.clear();
  if (queue_.empty()) return;
  // A write of up to PIPE_BUF bytes to a pipe is never mixed with the output of another process.
  const std::size_t last_newline = std::string_view(queue_).substr(0, PIPE_BUF).rfind('\n');
  const std::size_t size = is_file_                                 ? queue_.size()
                           : last_newline == std::string_view::npos ? std::min<std::size_t>(queue_.size(), PIPE_BUF)
                                                                    : last_newline + 1;
  const ssize_t written = write(fd(), queue_.data(), size);
  if (written >= 0) {
    queue_.erase(0, static_cast<std::size_t>(written));
  } else if (errno == ENOSPC || errno == EDQUOT) {
    drop_queued();  // there may be space again later
  } else if (errno != EINTR && errno != EAGAIN) {
    broken_ = true;
    queue_.clear();
  }
}

ProcessOutput::ProcessOutput(UniqueFd pipe, LineAssembler assembler, bool held, OutputSink* sink)
    : pipe_(std::move(pipe)), assembler_(std::move(assembler)), holding_(held), sink_(sink) {}

bool ProcessOutput::wants_more() const { return !ended() && (holding_ || !sink_->is_full()); }

void ProcessOutput::read_available() {
  std::array<char, 16384> bytes;
  for (std::size_t total = 0; !ended() && total < kMaxReadBytes;) {
    const ssize_t received = read(pipe_.get(), bytes.data(), bytes.size());
    if (received < 0 && errno == EINTR) continue;
    if (received < 0 && errno == EAGAIN) return;
    if (received <= 0) {
      pipe_.reset();
      take(assembler_.finish());
      return;
    }
    total += static_cast<std::size_t>(received);
    take(assembler_.add({bytes.data(), static_cast<std::size_t>(received)}));
  }
}

void ProcessOutput::open() {
  if (!holding_) return;
  read_available();
  (void)assembler_.finish();
  held_.clear();
  holding_ = false;
}

std::string ProcessOutput::release() {
  holding_ = false;
  sink_->add(held_);
  return std::exchange(held_, "");
}

void ProcessOutput::take(std::string_view lines) {
  if (!holding_) {
    sink_->add(lines);
    return;
  }
  held_ += lines;
  if (held_.size() <= kMaxHeldBytes) return;
  const std::size_t cut = held_.find('\n', held_.size() - kMaxHeldBytes);
  held_.erase(0, cut == std::string::npos ? held_.size() - kMaxHeldBytes : cut + 1);
}

}  // namespace rp
