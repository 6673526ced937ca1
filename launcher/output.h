// launcher/output.h
// Takes what processes write to whole lines, and those to rp-launch's own stdout and stderr.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "common/files/output_file.h"
#include "common/system/fd.h"

namespace rp {

// Cuts a stream of bytes into whole lines, each with the tag in front.
class LineAssembler {
 public:
  explicit LineAssembler(std::string tag) : tag_(std::move(tag)) {}

  // The lines that are whole now. A line of more than kMaxLineBytes is given in pieces, each as a line.
  [[nodiscard]] std::string add(std::string_view bytes);
  // The rest, as a line; "" if there is none.
  [[nodiscard]] std::string finish();

  static constexpr std::size_t kMaxLineBytes = 1 << 20;

 private:
  std::string tag_;
  std::string partial_;
};

// A queue in front of a descriptor that others write to as well, which therefore stays as it is: one write of whole
// lines, of at most PIPE_BUF bytes where they are no longer, whenever poll() says that there is room. A pipe is written
// through a descriptor of its own that does not wait: between poll() and write() others may have filled it.
class OutputSink {
 public:
  explicit OutputSink(int fd) : fd_(fd), pipe_(reopen_pipe_without_waiting(fd)) {}

  void add(std::string_view lines);
  [[nodiscard]] int fd() const { return pipe_ ? pipe_.get() : fd_; }
  [[nodiscard]] bool empty() const { return queue_.empty(); }
  [[nodiscard]] std::size_t queued_bytes() const { return queue_.size(); }
  // Whether processes that write should wait.
  [[nodiscard]] bool is_full() const { return queue_.size() >= kMaxQueuedBytes && !drops_; }
  // From now on nobody waits for the reader: lines that come while the queue is full are dropped, and counted.
  void drop_what_does_not_fit() { drops_ = true; }
  // What is still queued will not be written.
  void drop_queued();
  [[nodiscard]] std::size_t dropped_bytes() const { return dropped_bytes_; }
  // REQUIRES: poll() reported POLLOUT or an error. Once nobody reads any more all further output is dropped.
  void write_some();

  static constexpr std::size_t kMaxQueuedBytes = 256 << 10;

 private:
  int fd_;
  UniqueFd pipe_;
  std::string queue_;
  bool broken_ = false;
  bool drops_ = false;
  std::size_t dropped_bytes_ = 0;
};

// One output stream of one process: a pipe, its lines, and where they go. Held at first, if asked for: then the newest
// kMaxHeldBytes are kept until open() drops them or release() passes them on.
class ProcessOutput {
 public:
  // `pipe`: the read end, non-blocking. The sink must outlive this.
  ProcessOutput(UniqueFd pipe, std::string tag, bool held, OutputSink* sink);

  [[nodiscard]] int fd() const { return pipe_.get(); }
  [[nodiscard]] bool ended() const { return !pipe_; }
  // False while the sink has so much to do that the process should wait.
  [[nodiscard]] bool wants_more() const;
  // Takes what is in the pipe now, at most kMaxReadBytes; at its end the last line too.
  void read_available();
  // What is in the pipe and what was held is dropped; what comes later is passed on.
  void open();
  // What was held is passed on, and all that comes later. Returns what was held.
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
