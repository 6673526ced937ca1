// roundpipe/error.h
// The errors that reach a user of the library, and the exit codes of every program of the project.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace rp {

// Exit codes of rp-launch and of every program that uses a Session. 128+n stands for the first fatal signal n.
// Documented in docs/exit-codes.md.
enum class ExitCode : int {
  kOk = 0,                // a program that ended well
  kUserError = 1,         // an exception in user code; processes that differ
  kUsage = 2,             // an unknown option or an impossible setting
  kBadInput = 64,         // a model, data or configuration file that is wrong
  kNoResource = 69,       // memory, GPU or disk that is missing
  kOutputFailed = 74,     // output that cannot be written
  kPreempted = 75,        // preempted, and a checkpoint is written: requeue
  kDoNotRequeue = 93,     // a crash loop; reserved
  kTimeout = 110,         // a time limit of the user's ran out; reserved
  kHang = 124,            // a process hung
  kLauncherFailed = 125,  // the launcher's own error
  kCannotExecute = 126,   // a program that is there and cannot be run
  kNotFound = 127,        // a program that is not there
};

// The environment or the user is wrong: what is wrong with names and numbers, and what to do about it.
class Error : public std::runtime_error {
 public:
  // `message` says what is wrong, with names and numbers, and what to do.
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}

  // The exit code of a program that this error ends.
  [[nodiscard]] ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// Where in a training run something happened in a worker. A field that does not apply is -1.
struct TaskPlace {
  std::int64_t worker = -1;
  std::int64_t round = -1;        // of training, counted from 0 over the whole run
  std::int64_t step = -1;         // counted from 1
  std::int64_t first_layer = -1;  // of the stage
  std::int64_t end_layer = -1;    // one past the last layer of the stage
  std::int64_t layer = -1;        // counted from 0 in the model
  std::int64_t microbatch = -1;   // counted from 0 in the round
};

// An exception in a layer or loss (kUserError), or memory of a GPU that it lacked (kNoResource), carried from a worker
// to the caller of the round that it belongs to.
class WorkerError : public Error {
 public:
  // Made by the library only.
  WorkerError(const std::string& message, const TaskPlace& place, ExitCode code = ExitCode::kUserError)
      : Error(code, message), place_(place) {}

  // Where it happened.
  [[nodiscard]] const TaskPlace& place() const { return place_; }

 private:
  TaskPlace place_;
};

// Thrown by start(), forward_backward(), forward() and forward_packed() once a signal asked the program to stop;
// step(), backward(), reading and saving still work.
class Interrupted : public std::runtime_error {
 public:
  // Made by the library; a program may throw it to end as a signal would end it.
  explicit Interrupted(int signal_number);

  // As SIGINT.
  [[nodiscard]] int signal_number() const { return signal_number_; }

 private:
  int signal_number_;
};

}  // namespace rp
