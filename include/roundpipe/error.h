// roundpipe/error.h
// The errors that reach a user of the library, and the exit codes of all programs of the project.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace rp {

// Exit codes of rp-launch and of every program that uses a Session. In addition, 128+n reports the
// first fatal signal n. Documented in docs/exit-codes.md.
enum class ExitCode : int {
  kOk = 0,                // the program ended normally
  kUserError = 1,         // an exception in user code, or processes that differ
  kUsage = 2,             // an unknown option or an impossible setting
  kBadInput = 64,         // a wrong model, data or configuration file
  kNoResource = 69,       // memory, a GPU or disk space is missing
  kGpuFailed = 71,        // a GPU or its driver failed
  kNodeLost = 72,         // another node of the run, or the network to it, is lost
  kOutputFailed = 74,     // output cannot be written
  kPreempted = 75,        // preempted after a checkpoint was written: requeue
  kTaskSetAside = 93,     // a task ended several workers and was not computed again
  kHang = 124,            // a process hung
  kLauncherFailed = 125,  // an error of the launcher itself
  kCannotExecute = 126,   // the program exists but cannot be run
  kNotFound = 127,        // the program does not exist
};

// An error of the environment or the user.
class Error : public std::runtime_error {
 public:
  // `message` describes what is wrong, with names and numbers, and what to do about it.
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}

  // Returns the exit code of a program that this error ends.
  [[nodiscard]] ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// The place in a training run where something happened in a worker. A field that does not apply is
// -1.
struct TaskPlace {
  std::int64_t worker = -1;
  std::int64_t round = -1;        // of training; counted from 0 over the whole run
  std::int64_t step = -1;         // counted from 1
  std::int64_t first_layer = -1;  // of the stage
  std::int64_t end_layer = -1;    // one past the last layer of the stage
  std::int64_t layer = -1;        // counted from 0 in the model
  std::int64_t microbatch = -1;   // counted from 0 in the round
};

// An exception in a layer or loss (kUserError), or a lack of GPU memory (kNoResource), carried from
// a worker to the caller of the round in which it happened.
class WorkerError : public Error {
 public:
  // Called by the library only.
  WorkerError(const std::string& message, const TaskPlace& place, ExitCode code = ExitCode::kUserError)
      : Error(code, message), place_(place) {}

  // Returns where it happened.
  [[nodiscard]] const TaskPlace& place() const { return place_; }

 private:
  TaskPlace place_;
};

// Thrown by start(), forward_backward(), forward(), forward_packed() and evaluate() after a signal
// has requested that the program stop. step(), backward(), and functions that read or save still
// work.
class Interrupted : public std::runtime_error {
 public:
  // Called by the library. A program may throw it to end as if by this signal.
  explicit Interrupted(int signal_number);
  Interrupted(const Interrupted& other) noexcept;
  Interrupted& operator=(const Interrupted&) = default;
  ~Interrupted() override;

  // Returns the number of the signal, such as SIGINT.
  [[nodiscard]] int signal_number() const { return signal_number_; }

 private:
  int signal_number_;
};

}  // namespace rp
