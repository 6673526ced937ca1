// launcher/output.h
// Collects the output of processes into whole lines and forwards them to rp-launch's own stdout and
// stderr, or to log files.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "common/files/output_file.h"
#include "common/system/fd.h"

namespace rp {

// Cuts a stream of bytes into whole lines and prefixes each with the tag, and if asked to, before it with the local
// time at which the line arrived: "2026-11-28T05:25:34.123 [worker 0] ".
class LineAssembler {
 public:
  explicit LineAssembler(std::string tag, bool has_times = false) : tag_(std::move(tag)), has_times_(has_times) {}

  // Returns the lines that are now complete. A line of more than kMaxLineBytes is returned in
  // pieces, each as a line of its own.
  [[nodiscard]] std::string add(std::string_view bytes);
  // Returns the incomplete rest as a line; "" if there is none.
  [[nodiscard]] std::string finish();

  static constexpr std::size_t kMaxLineBytes = 1 << 20;

 private:
  [[nodiscard]] std::string prefix() const;

  std::string tag_;
  bool has_times_;
  std::string partial_;
};

// Queues output for a descriptor that other processes write to as well, so its flags must not be
// changed. Whenever poll() reports that the descriptor is writable, one write of at most PIPE_BUF
// bytes passes on as many whole lines as fit, or a part of a line that is longer; to a file, all of them. A pipe is
// written through a second, non-blocking descriptor, because other processes may fill the pipe between poll() and
// write().
class OutputSink {
 public:
  explicit OutputSink(int fd);

  void add(std::string_view lines);
  [[nodiscard]] int fd() const { return pipe_ ? pipe_.get() : fd_; }
  [[nodiscard]] bool empty() const { return queue_.empty(); }
  [[nodiscard]] std::size_t queued_bytes() const { return queue_.size(); }
  // Returns true if the processes that write to this sink should wait.
  [[nodiscard]] bool is_full() const { return queue_.size() >= kMaxQueuedBytes && !drops_; }
  // From now on no process waits for the reader: lines that are added while the queue is full are
  // dropped and counted.
  void drop_what_does_not_fit() { drops_ = true; }
  // Drops the lines that are still queued, and counts them as dropped.
  void drop_queued();
  [[nodiscard]] std::size_t dropped_bytes() const { return dropped_bytes_; }
  // Writes a part of the queue. Once the reader is gone, all further output is dropped. REQUIRES:
  // poll() reported POLLOUT or an error.
  void write_some();

  static constexpr std::size_t kMaxQueuedBytes = 256 << 10;

 private:
  int fd_;
  UniqueFd pipe_;
  bool is_file_ = false;
  std::string queue_;
  bool broken_ = false;
  bool drops_ = false;
  std::size_t dropped_bytes_ = 0;
};

// Reads one output stream of one process from a pipe and passes its lines on to a sink. If `held`
// is set, it first keeps the newest kMaxHeldBytes, until open() drops them or release() passes them
// on.
class ProcessOutput {
 public:
  // `pipe`: the read end, non-blocking. The sink must outlive this.
  ProcessOutput(UniqueFd pipe, LineAssembler assembler, bool held, OutputSink* sink);

  [[nodiscard]] int fd() const { return pipe_.get(); }
  [[nodiscard]] bool ended() const { return !pipe_; }
  // Returns true if the pipe should be read. False at its end, and while the sink is so full that
  // the process should wait.
  [[nodiscard]] bool wants_more() const;
  // Reads what is in the pipe now, at most kMaxReadBytes. At the end of the pipe, an incomplete
  // last line counts as complete.
  void read_available();
  // Drops the held output and what is in the pipe now. Later output is passed on. Does nothing if
  // output is not held.
  void open();
  // Passes on the held output and everything that comes later. Returns the held output.
  std::string release();

  static constexpr std::size_t kMaxHeldBytes = 64 << 10;
  static constexpr std::size_t kMaxReadBytes = 1 << 20;

 private:
  void take(std::string_view lines);

  UniqueFd pipe_;
  LineAssembler assembler_;
  bool holding_;
  std::string held_;
  OutputSink* sink_;
};

}  // namespace rp
