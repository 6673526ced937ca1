// train/output/standard_output.h
// Prints the output of `train`. stdout and stderr may be pipes whose readers are slow or go away,
// or files on a full disk.
#pragma once

#include <functional>
#include <string>

namespace rp {

// Prints on stdout. Waits for a slow reader. If printing fails, reports that once on stderr, and
// the run continues: its results are in the output directory.
void print(const std::string& text);
// Prints on stderr in the same way, but does not report a failure.
void print_error(const std::string& text);

// Makes both print nothing from now on: of several nodes, only the first one prints.
void set_quiet();

// Limits the wait for slow readers. Once `stop_requested` returns true, printing waits at most 2 s
// longer; after that, text that cannot be printed is dropped and counted. The function is kept
// until the process ends. Not to be called while another thread prints.
void set_print_limit(std::function<bool()> stop_requested);

// Sets a function that also receives print()'s report of a failure, until another one or {} is set.
// If print() has failed before, the function is called at once.
void set_failure_log(std::function<void(const std::string&)> log);

// Throws rp::Error (kOutputFailed) if something could not be printed, unless its reader closed the
// pipe and thus has read enough. To be called at the end of a successful run.
void check_printed();
// Reports on stderr how many bytes were dropped, if any. To be called at the end of a run that a
// signal has ended.
void report_dropped_output();

}  // namespace rp
