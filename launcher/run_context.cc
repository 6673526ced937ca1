#include "launcher/run_context.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "common/system/retry.h"
#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

// Opens /dev/null on those of the descriptors 0, 1 and 2 that are closed. Otherwise descriptors that the
// launcher opens later would get these numbers.
void fill_standard_descriptors() {
  int fd = 0;
  do {
    fd = open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= 2);
  if (fd > 2) close(fd);
}

rlimit raise_open_files() {
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  rlimit raised = before;
  raised.rlim_cur = raised.rlim_max;
  setrlimit(RLIMIT_NOFILE, &raised);
  return before;
}

// Checks the limit against the minimum number of files that a run opens, so that a run which is
// bound to fail does not start. Files that the program itself opens are not included.
void check_open_files(const rlimit& limit, const LaunchPlan& plan) {
  const std::size_t num_workers = plan.processes.size() - 1;
  const std::size_t num_logs = plan.timestamp_output && !plan.log_dir.empty() ? 2 : 0;  // that rp-launch writes
  const auto check = [&](rlim_t allowed, rlim_t needed, const char* who) {
    if (allowed >= needed) return;
    throw Error(ExitCode::kNoResource, cat("only ", allowed, " open files are allowed, but with ", num_workers,
                                           num_workers == 1 ? " worker " : " workers ", who, " needs at least ", needed,
                                           "; raise the limit (ulimit -n)"));
  };
  check(limit.rlim_max, 24 + (5 + num_logs) * num_workers, "rp-launch");
  check(limit.rlim_cur, 24 + 2 * num_workers, "each process of the run");
}

void make_log_directory(const std::filesystem::path& directory) {
  if (directory.empty()) return;
  std::error_code failed;
  std::filesystem::create_directories(directory, failed);
  if (failed) {
    throw Error(ExitCode::kOutputFailed, cat("cannot make the log directory ", directory.string(), ": ",
                                             failed.message(), "; choose another --log-dir"));
  }
}

}  // namespace

RunContext RunContext::create(LaunchPlan plan, const sigset_t& handled) {
  fill_standard_descriptors();
  // Before the board exists, by which others find this process.
  sigset_t signal_mask{};
  sigprocmask(SIG_BLOCK, &handled, &signal_mask);
  signal(SIGXFSZ, SIG_IGN);  // memory is in files: one beyond `ulimit -f` then fails with an error code
  make_log_directory(plan.log_dir);
  const rlimit open_files = raise_open_files();
  check_open_files(open_files, plan);
  std::optional<Watchdog> watchdog;  // destroyed after the write end of the pipe
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw Error(ExitCode::kNoResource, cat("cannot make a pipe (", errno_text(errno), "); raise ulimit -n"));
  }
  UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  std::string number = make_run_number();
  watchdog.emplace(number, read_end.get(), write_end.get());
  const int num_processes = static_cast<int>(plan.processes.size());
  RunContext run{.plan = std::move(plan),
                 .number = std::move(number),
                 .board = FaultBoard::create(num_processes),
                 .liveness_read = std::move(read_end),
                 .liveness_write = std::move(write_end),
                 .no_input = UniqueFd(retry_interrupted([] { return open("/dev/null", O_RDONLY | O_CLOEXEC); }))};
  if (!run.no_input) {
    throw Error(ExitCode::kNoResource,
                cat("cannot open /dev/null (", errno_text(errno), "); raise the limit on open files (ulimit -n)"));
  }
  run.open_files = open_files;
  // A signal from the terminal (Ctrl-C) reaches the whole foreground group, so the coordinator must
  // be in that group: see forward().
  run.terminal = Terminal::open();
  run.signal_mask = signal_mask;
  run.watchdog.emplace(std::move(*watchdog));
  return run;
}

void RunContext::say(const std::string& lines) {
  LineAssembler assembler("", plan.timestamp_output);
  err.add(assembler.add(lines));
  err.add(assembler.finish());
}

std::vector<OutputSink*> RunContext::sinks() {
  std::vector<OutputSink*> list = {&out, &err};
  for (auto& [path, log] : logs) list.push_back(&log.sink);
  return list;
}

}  // namespace rp
