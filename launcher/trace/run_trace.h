// launcher/trace/run_trace.h
// Owns the trace of a run, from the check that its file can be written to the complete file:
// docs/design/trace.md.
//
// The coordinator opens it. Its journal and file travel with the host store, in the message that
// starts the workers, to rp-launch, which writes the file when all other processes have ended. A
// process without rp-launch writes the file itself.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "common/system/fd.h"
#include "hoststore/records/trace_journal.h"
#include "launcher/process/channel.h"

namespace rp {

class RunTrace {
 public:
  // Creates the file and writes a trace without events to it. Throws rp::Error kOutputFailed.
  [[nodiscard]] static RunTrace open(const std::filesystem::path& file, const TraceTitle& title);

  // Adds the trace to a message.
  void append_to(Message& message) const;
  // Return the trace in a received message, or nullopt if it contains none. copy_of() leaves the
  // trace in the message; take_from() removes it. Throw rp::Error kLauncherFailed if the trace is
  // from another build.
  [[nodiscard]] static std::optional<RunTrace> copy_of(const Message& message);
  [[nodiscard]] static std::optional<RunTrace> take_from(Message& message);

  [[nodiscard]] TraceJournal& journal() { return journal_; }

  // Writes the contents of the journal to the file. Throws rp::Error kOutputFailed.
  void write() const;
  // Like write(), but returns a failure as one line for stderr that begins with `program`; "" if
  // there is none.
  [[nodiscard]] std::string write_or_warn(const char* program) const;

 private:
  RunTrace(std::string path, UniqueFd file, TraceJournal journal)
      : path_(std::move(path)), file_(std::move(file)), journal_(std::move(journal)) {}

  std::string path_;
  UniqueFd file_;
  TraceJournal journal_;
};

}  // namespace rp
