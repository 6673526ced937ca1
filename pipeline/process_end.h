// pipeline/process_end.h
// How a process of a run is asked to stop, and with which code it ends.
#pragma once

#include <exception>
#include <string>

namespace rp {

// Catches INT, TERM, HUP and USR1: stop_signal() gives the first, which also prints the stop notice. A second INT ends
// the process at once, or where something half-written lies on disk, as soon as that is removed; a third one at once.
void install_stop_handlers();

// What the handler of the first signal prints on stderr behind the program's name; "": nothing. Cut at 200 bytes.
void set_stop_notice(const std::string& text);

// The signal that asked for an end, or 0.
[[nodiscard]] int stop_signal();

// The program has saved its state: an end by TERM, HUP or USR1 has the exit code of a preemption.
void set_preempted();

// An exception that leaves main() is printed once and ends the process with its code. `record` is called with the
// exception in flight; it may be null.
void install_terminate_handler(const char* program, void (*record)());

// What happens to an exception that leaves main(), for one that can leave no other way.
[[noreturn]] void end_process(const std::exception_ptr& error);

}  // namespace rp
