// train/output/standard_output.h
// What `train` prints: stdout and stderr may be pipes whose readers are slow or go away, or files on a full disk.
#pragma once

#include <functional>
#include <string>

namespace rp {

// Prints on stdout. Waits for a slow reader. Where printing fails, says so once on stderr, and the run goes on: its
// results are in the output directory.
void print(const std::string& text);
// Likewise on stderr, without a word if it fails.
void print_error(const std::string& text);

// Once `stop_requested` is true nobody is waited for longer than 2 s: what cannot be printed by then is dropped, and
// counted. The function is kept until the end of the process. Not to be called while another thread prints.
void set_print_limit(std::function<bool()> stop_requested);

// What print() says of a failure goes to `log`, too, until another one or {} is set.
void set_failure_log(std::function<void(const std::string&)> log);

// Throws rp::Error (kOutputFailed) if something could not be printed, unless its reader went away: who closes a pipe
// has read enough. To be called at the end of a run that went well.
void check_printed();
// Says on stderr how much was dropped, if anything. To be called at the end of a run that was told to end.
void report_dropped_output();

}  // namespace rp
