#include "launcher/report.h"

#include <cxxabi.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <vector>

#include "common/printable.h"
#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

constexpr std::size_t kMaxMessageLines = 4;
constexpr std::ptrdiff_t kMaxFrameLines = 4;
constexpr std::size_t kMaxLineChars = 400;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) lines.push_back(line.substr(0, kMaxLineChars));
  }
  return lines;
}

bool is_in_c_library(const std::string& frame) {
  const std::size_t space = frame.find(' ');
  return frame.compare(space + 1, 7, "libc.so") == 0 || frame.compare(space + 1, 12, "libstdc++.so") == 0;
}

// Returns the first frames, starting with the one that called abort() or a similar function of the
// C library.
std::vector<std::string> useful_frames(const std::string& backtrace) {
  const std::vector<std::string> frames = lines_of(backtrace);
  auto first = std::find_if_not(frames.begin(), frames.end(), is_in_c_library);
  if (first == frames.end()) first = frames.begin();
  const auto most = std::min<std::ptrdiff_t>(kMaxFrameLines, frames.end() - first);
  return {first, first + most};
}

// Demangles the symbol: "#0 train!_ZN2rp3runEv+0x1f" -> "#0 train!rp::run()+0x1f".
std::string readable_frame(const std::string& frame) {
  const std::size_t name = frame.find('!');
  const std::size_t plus = frame.rfind('+');
  if (name == std::string::npos || plus == std::string::npos || plus < name) return frame;
  const std::string symbol = frame.substr(name + 1, plus - name - 1);
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status),
                                                         std::free);
  if (status != 0) return frame;
  return cat(frame.substr(0, name + 1), text.get(), frame.substr(plus)).substr(0, kMaxLineChars);
}

// Returns the lines of the message that the process recorded, or none if its own output contains
// that message, as after an exception that leaves main().
std::vector<std::string> untold_lines(const Failure& failure) {
  std::vector<std::string> lines = lines_of(failure.fault->message);
  if (!lines.empty() && failure.said.find(lines.front()) != std::string::npos) return {};
  lines.resize(std::min(lines.size(), kMaxMessageLines));
  return lines;
}

std::string how_it_ended(const Failure& failure) {
  const int status = failure.status;
  if (!failure.hang.empty()) return failure.hang;
  if (WIFSIGNALED(status)) return "was killed by " + signal_text(WTERMSIG(status));
  if (WEXITSTATUS(status) == 0) return "ended before the end of the run";
  return cat("ended with exit code ", WEXITSTATUS(status));
}

std::string place_text(const Failure& failure) {
  const BoardTask& task = failure.task;
  if (task.slot < 0) {
    if (failure.process == "coordinator" && failure.state > ProcessState::kStarting) return "after session.start()";
    switch (failure.state) {
      case ProcessState::kNotStarted:
      case ProcessState::kStarting: return "during its start, before session.start() was done";
      case ProcessState::kEnding: return "while it ended";
      default: return "between two tasks";
    }
  }
  std::string text = cat("task ", task.slot, ", ", task.phase_text(), " stage of layers ", task.first_layer, " to ",
                         task.end_layer - 1);
  if (task.layer >= 0) text += cat(", layer ", task.layer);
  if (task.microbatch >= 0) text += cat(", microbatch ", task.microbatch);
  return text;
}

// Returns the number of the worker as text; "" for the coordinator.
std::string worker_number(const Failure& failure) {
  constexpr std::string_view kWorker = "worker ";
  return failure.process.starts_with(kWorker) ? failure.process.substr(kWorker.size()) : "";
}

std::string advice(const Failure& failure) {
  const std::string worker = worker_number(failure);
  const int signal_number = WIFSIGNALED(failure.status) ? WTERMSIG(failure.status) : 0;
  if (!failure.hang.empty()) {
    return failure.fault ? "the frames show what it did when rp-launch ended it; for tasks that take longer than that, "
                           "raise --wait-timeout"
                         : "it could have been continued with `kill -CONT`; a process to which a debugger is attached "
                           "is not ended";
  }
  if (!failure.out_of_memory.empty()) {
    return cat("the kernel's out-of-memory killer ended it: ", failure.out_of_memory,
               "; give the job more memory, or use fewer workers, a smaller batch or shorter sequences");
  }
  if (signal_number == SIGKILL) return "somebody or the kernel killed it: see dmesg, or the batch system's limits";
  if (signal_number != 0) {
    if (worker.empty()) return "run the program without rp-launch under a debugger";
    return cat(
        "to look into it, run this again with --debug-worker ", worker,
        ", which runs this worker under gdb, or with --attach-on-fault, which keeps any process that crashes for gdb");
  }
  if (failure.fault && WEXITSTATUS(failure.status) == static_cast<int>(ExitCode::kGpuFailed)) {
    return cat(
        "a kernel, the GPU or its driver has failed: see dmesg (Xid); to find the kernel, run this again with "
        "--debug-worker ",
        worker, "=compute-sanitizer");
  }
  if (failure.under_tool) return "its tool has ended, and the run with it; detach a debugger to let the worker go on";
  const bool is_unexplained = !failure.fault && failure.said.empty();
  if (is_unexplained && failure.task.slot >= 0) {
    return "something that the layer calls ends the process (exit(), _exit()): a layer must return, or throw to end "
           "the run";
  }
  if (WEXITSTATUS(failure.status) == 0) return "what the program does before session.start() must not end a worker";
  return "the message above says what is wrong; docs/exit-codes.md lists the exit codes";
}

}  // namespace

std::string signal_text(int signal_number) {
  const char* name = sigabbrev_np(signal_number);
  const char* meaning = sigdescr_np(signal_number);
  if (name == nullptr || meaning == nullptr) return cat("signal ", signal_number);
  return cat("SIG", name, " (", meaning, ")");
}

std::string failure_text(const Failure& failure) {
  std::ostringstream out;
  out << "rp-launch: " << failure.process << " (pid " << failure.pid << ") " << how_it_ended(failure) << "\n";
  if (failure.fault && failure.hang.empty()) {
    const char* label = "  what:   ";
    for (const std::string& line : untold_lines(failure)) {
      out << label << printable(line) << "\n";
      label = "          ";
    }
  }
  out << "  where:  " << place_text(failure) << "\n";
  if (!failure.layer_inputs.empty()) out << "  inputs: " << printable(failure.layer_inputs) << "\n";
  if (failure.fault) {
    for (const std::string& frame : useful_frames(failure.fault->backtrace)) {
      out << "          " << readable_frame(frame) << "\n";
    }
  }
  if (!failure.crash_notice.empty()) out << "  lost:   " << printable(failure.crash_notice) << "\n";
  if (failure.seen_late) out << "  when:   while rp-launch was stopped (SIGSTOP), which saw it only when it went on\n";
  out << "  to do:  " << advice(failure) << "\n";
  if (!failure.log_file.empty()) out << "  output: " << failure.log_file << "\n";
  return out.str();
}

}  // namespace rp
