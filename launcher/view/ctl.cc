#include "launcher/view/ctl.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cxxopts.hpp>
#include <thread>

#include "common/program_main.h"
#include "common/system/clock.h"
#include "common/text.h"
#include "launcher/process/control_signal.h"
#include "launcher/process/runtime_settings.h"
#include "launcher/view/runs.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

constexpr int kStartSeconds = 10;  // from the request until the worker has a process
constexpr const char* kUsageText = "usage: rp-launch ctl add-worker [N] [--run PID]";

cxxopts::Options make_parser() {
  return option_parser("rp-launch ctl", "Starts a worker again that a run goes on without.", "add-worker [N] [options]",
                       control_option_specs());
}

// Returns the run with this process of rp-launch, or the only run.
RunView chosen_run(const std::vector<RunView>& runs, std::optional<pid_t> launcher) {
  const auto found = std::find_if(runs.begin(), runs.end(),
                                  [launcher](const RunView& run) { return !launcher || run.launcher == *launcher; });
  if (found == runs.end()) {
    throw Error(ExitCode::kUsage, launcher ? cat("--run ", *launcher, ": you have no such run; see rp-launch ps")
                                           : "you have no run on this machine; see rp-launch ps");
  }
  if (!launcher && runs.size() > 1)
    throw Error(ExitCode::kUsage, cat("you have ", runs.size(), " runs: choose one with --run PID, see rp-launch ps"));
  if (!found->problem.empty()) throw Error(ExitCode::kNoResource, found->problem);
  return *found;
}

bool is_gone(const ProcessView& process) { return process_stat(process.snapshot.pid).state == '?'; }

// Returns the place in the list of the worker to add.
std::size_t chosen_place(const RunView& run, std::optional<int> worker) {
  const std::size_t num_workers = run.processes.size() - 1;
  if (worker) {
    const auto place = static_cast<std::size_t>(*worker) + 1;
    if (place > num_workers)
      throw Error(ExitCode::kUsage, cat("there is no worker ", *worker, ", the last one is ", num_workers - 1));
    if (!is_gone(run.processes[place])) throw Error(ExitCode::kUsage, cat("worker ", *worker, " runs already"));
    return place;
  }
  const auto gone = std::find_if(run.processes.begin() + 1, run.processes.end(), is_gone);
  if (gone == run.processes.end()) throw Error(ExitCode::kUsage, cat("all ", num_workers, " workers are there"));
  return static_cast<std::size_t>(gone - run.processes.begin());
}

}  // namespace

const std::vector<OptionSpec>& control_option_specs() {
  static const std::vector<OptionSpec> specs = {
      {.name = "run",
       .argument = "PID",
       .help = "The process of rp-launch, if you have several runs: see rp-launch ps"},
      {.letter = "h", .name = "help", .help = "Print this text"},
  };
  return specs;
}

ControlOptions parse_control_options(const std::vector<std::string>& arguments) {
  std::vector<const char*> words{"rp-launch ctl"};
  for (const std::string& argument : arguments) words.push_back(argument.c_str());
  ControlOptions options;
  try {
    const cxxopts::ParseResult parsed = make_parser().parse(static_cast<int>(words.size()), words.data());
    const std::vector<std::string>& rest = parsed.unmatched();
    options.help = parsed.count("help") > 0;
    if (options.help) return options;
    if (rest.empty() || rest[0] != "add-worker" || rest.size() > 2) throw Error(ExitCode::kUsage, kUsageText);
    if (rest.size() == 2) options.worker = parse_count("add-worker", rest[1], 0, 1'000'000);
    if (parsed.count("run") > 0) options.run = parse_count("--run", parsed["run"].as<std::string>(), 1, 1'000'000'000);
  } catch (const cxxopts::exceptions::exception& error) {
    throw Error(ExitCode::kUsage, cat(error.what(), "; rp-launch ctl --help lists the options"));
  }
  return options;
}

int run_control(const ControlOptions& options) {
  if (options.help) return print_output(make_parser().help());
  const RunView run = chosen_run(find_runs(geteuid()), options.run);
  const std::size_t place = chosen_place(run, options.worker);
  const int worker = static_cast<int>(place) - 1;
  const std::uint32_t num_lost = run.processes[place].num_lost;
  const sigval value{.sival_int = worker};
  if (sigqueue(run.launcher, add_worker_signal(), value) != 0)
    throw Error(ExitCode::kNoResource,
                cat("rp-launch (pid ", run.launcher, ") cannot be reached: ", errno_text(errno)));
  const Deadline deadline = Deadline::after_seconds(kStartSeconds);
  while (!deadline.passed()) {
    for (const RunView& now : find_runs(geteuid())) {
      if (now.launcher != run.launcher || now.processes.size() <= place) continue;
      const ProcessView& process = now.processes[place];
      if (process.num_lost > num_lost && process.snapshot.pid != 0)
        return print_output(cat("worker ", worker, " starts (pid ", process.snapshot.pid, ")\n"));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  throw Error(ExitCode::kNoResource, cat("worker ", worker, " was not started within ", kStartSeconds,
                                         " s: see what rp-launch (pid ", run.launcher, ") has printed"));
}

}  // namespace rp
