// launcher/trace/run_trace.h
// The trace of a run, from the check that its file can be written to the file itself: docs/design/trace.md.
//
// Opened by the coordinator; its journal and file travel with the host store, in the message that starts the workers,
// to rp-launch, which writes the file when all others have ended. A process without rp-launch writes it itself.
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
  // Writes a trace without events to the file, which is there from now on. Throws rp::Error kOutputFailed.
  [[nodiscard]] static RunTrace open(const std::filesystem::path& file, const TraceTitle& title);

  // Adds the trace to a message.
  void append_to(Message& message) const;
  // The trace in a message that has come, nullopt if there is none; the message keeps it (copy_of) or has none
  // afterwards. Throws rp::Error kLauncherFailed for what is none of this build.
  [[nodiscard]] static std::optional<RunTrace> copy_of(const Message& message);
  [[nodiscard]] static std::optional<RunTrace> take_from(Message& message);

  [[nodiscard]] TraceJournal& journal() { return journal_; }

  // Writes what the journal has to the file. Throws rp::Error kOutputFailed.
  void write() const;
  // The same; what fails is one line for stderr, else "". `program` begins the line.
  [[nodiscard]] std::string write_or_warn(const char* program) const;

 private:
  RunTrace(std::string path, UniqueFd file, TraceJournal journal)
      : path_(std::move(path)), file_(std::move(file)), journal_(std::move(journal)) {}

  std::string path_;
  UniqueFd file_;
  TraceJournal journal_;
};

}  // namespace rp
