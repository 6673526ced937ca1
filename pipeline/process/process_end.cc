#include "pipeline/process/process_end.h"

#include <c10/util/Exception.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string_view>

#include "common/files/output_file.h"
#include "common/printable.h"
#include "pipeline/process/worker_watch.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

std::atomic<int> g_stop_signal{0};
std::atomic<int> g_num_interrupts{0};
std::atomic<bool> g_preempted{false};
std::string g_program;
void (*g_record)() = nullptr;

// The characters are atomic, because the handler may run while another thread writes a new text.
using AtomicText = std::array<std::atomic<char>, 201>;
AtomicText g_stop_notice{};  // ends with a zero

void store(const std::string& text, AtomicText& to) {
  const std::size_t length = std::min(text.size(), to.size() - 1);
  for (std::size_t i = 0; i < length; ++i) to[i].store(text[i], std::memory_order_relaxed);
  to[length].store('\0', std::memory_order_relaxed);
}

// Builds and prints a line in a signal handler.
class HandlerLine {
 public:
  void add(std::string_view text) {
    for (const char c : text) add(c);
  }
  void add(const AtomicText& text) {
    for (const auto& c : text) {
      const char value = c.load(std::memory_order_relaxed);
      if (value == '\0') return;
      add(value);
    }
  }
  // Prints nothing if stderr is not ready for writing: a handler that blocks could not end the
  // process any more.
  void print() const {
    pollfd stderr_ready{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
    if (poll(&stderr_ready, 1, 0) == 1 && (stderr_ready.revents & POLLOUT) != 0)
      (void)!write(STDERR_FILENO, text_.data(), length_);
  }

 private:
  void add(char c) {
    if (length_ < text_.size()) text_[length_++] = c;
  }
  std::array<char, 400> text_{};
  std::size_t length_ = 0;
};

void print_stop_notice(int signal_number) {
  if (g_stop_notice[0].load(std::memory_order_relaxed) == '\0') return;
  const int error_number = errno;
  HandlerLine line;
  if (isatty(STDERR_FILENO) == 1) line.add("\r\x1b[K");  // overwrites a progress bar, or the ^C of the terminal
  line.add(g_program);
  line.add(": ");
  line.add(g_stop_notice);
  if (signal_number == SIGINT) line.add("; Ctrl-C again ends at once");
  line.add("\n");
  line.print();
  errno = error_number;
}

void on_stop_signal(int signal_number) {
  int none = 0;
  if (g_stop_signal.compare_exchange_strong(none, signal_number)) print_stop_notice(signal_number);
  if (signal_number != SIGINT) return;
  const int interrupts = g_num_interrupts.fetch_add(1) + 1;
  if (interrupts == 2 && interrupt_unfinished_output(SIGINT)) return;
  if (interrupts >= 2) _exit(128 + SIGINT);
}

int code_of_interrupt(int signal_number) {
  if (g_preempted.load() && signal_number != SIGINT) return static_cast<int>(ExitCode::kPreempted);
  return 128 + signal_number;
}

// Prints the exception in flight, unless it is reported elsewhere, and returns the exit code.
int report_current_exception() {
  try {
    throw;
  } catch (const Interrupted& interrupted) {
    return code_of_interrupt(interrupted.signal_number());
  } catch (const WorkerGone& error) {
    return static_cast<int>(error.code());
  } catch (...) {
    const ExceptionDescription exception = describe_without_backtrace();
    std::fprintf(stderr, "%s: error: %s\n", g_program.c_str(), printable(exception.text).c_str());
    return static_cast<int>(exception.code);
  }
}

[[noreturn]] void on_terminate() {
  if (!std::current_exception()) std::abort();  // not called for an exception: abort, so that there is a core dump
  if (g_record != nullptr) g_record();
  std::cout.flush();
  std::fflush(nullptr);
  const int code = report_current_exception();
  std::fflush(nullptr);
  _exit(code);
}

}  // namespace

ExceptionDescription describe_without_backtrace() {
  try {
    throw;
  } catch (const c10::Error& error) {
    return {.text = error.what_without_backtrace()};
  } catch (...) {
    return describe_current_exception();
  }
}

void end_process(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (...) {
    on_terminate();
  }
}

void install_stop_handlers() {
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    struct sigaction present {};
    sigaction(signal_number, nullptr, &present);
    if (signal_number == SIGHUP && present.sa_handler == SIG_IGN) continue;  // set by nohup
    sigaction(signal_number, &action, nullptr);
  }
  // Writes then fail with an error that can be reported. A reader of stdout that goes away is no
  // reason to end a run.
  for (const int signal_number : {SIGPIPE, SIGXFSZ}) {
    struct sigaction present {};
    sigaction(signal_number, nullptr, &present);
    if (present.sa_handler == SIG_DFL) signal(signal_number, SIG_IGN);
  }
}

void set_stop_notice(const std::string& text) { store(text, g_stop_notice); }

int stop_signal() { return g_stop_signal.load(); }

void set_preempted() { g_preempted.store(true); }

void install_terminate_handler(const char* program, void (*record)()) {
  g_program = program == nullptr ? "program" : program;
  const std::size_t slash = g_program.find_last_of('/');
  if (slash != std::string::npos) g_program = g_program.substr(slash + 1);
  g_record = record;
  std::set_terminate(on_terminate);
}

}  // namespace rp
