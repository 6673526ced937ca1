// pipeline/process/process_end.h
// Handles signals that stop a process of a run, and exceptions that leave main(), and decides the
// exit code.
#pragma once

#include <exception>
#include <string>

#include "common/exception_description.h"

namespace rp {

// Handles INT, TERM, HUP and USR1. stop_signal() returns the first of them that arrives, which also
// prints the stop notice. A second INT ends the process at once; but if an unfinished file is on
// disk, the process first removes it. A third INT ends it at once in any case.
void install_stop_handlers();

// Sets the text that the handler of the first signal prints on stderr after the program's name;
// with "" it prints nothing. The text is cut at 200 bytes.
void set_stop_notice(const std::string& text);

// Returns the first signal that requested a stop, or 0.
[[nodiscard]] int stop_signal();

// Records that the program has saved its state, so that an end by TERM, HUP or USR1 has the exit
// code of a preemption.
void set_preempted();

// Describes the exception that is being handled, as describe_current_exception() does, but that of LibTorch without its
// backtrace.
[[nodiscard]] ExceptionDescription describe_without_backtrace();

// Installs a handler for exceptions that leave main(): the exception is printed once and ends the
// process with its exit code. `record` is called while the exception is in flight; it may be null.
void install_terminate_handler(const char* program, void (*record)());

// Ends the process as an exception that leaves main() does. For exceptions that cannot be thrown
// there.
[[noreturn]] void end_process(const std::exception_ptr& error);

}  // namespace rp
