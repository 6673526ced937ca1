#include "launcher/view/run_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/printable.h"
#include "common/system/clock.h"
#include "common/text.h"
#include "common/text_table.h"

namespace rp {

namespace {

using Json = nlohmann::ordered_json;

// Returns the same run at the earlier moment, or nullptr.
const RunView* earlier(const RunsReport& report, const RunView& run) {
  const auto found = std::find_if(report.before.begin(), report.before.end(), [&run](const RunView& other) {
    return other.launcher == run.launcher && other.start_ticks == run.start_ticks;
  });
  return found == report.before.end() || found->seconds >= run.seconds ? nullptr : &*found;
}

// Returns the number of slots that were committed in a second. Nothing for a program that was started again meanwhile.
std::optional<double> slots_per_second(const RunView* before, const RunView& run) {
  if (before == nullptr || before->processes.empty() || run.processes.empty()) return std::nullopt;
  const ProcessSnapshot& was = before->processes[0].snapshot;
  const ProcessSnapshot& is = run.processes[0].snapshot;
  if (was.pid != is.pid) return std::nullopt;
  return static_cast<double>(is.progress.committed - was.progress.committed) / (run.seconds - before->seconds);
}

// Returns how many processors the process has used, on average.
std::optional<double> used_processors(const RunView* before, const RunView& run, std::size_t index) {
  if (before == nullptr || index >= before->processes.size()) return std::nullopt;
  const ProcessView& was = before->processes[index];
  const ProcessView& is = run.processes[index];
  if (is.snapshot.pid == 0 || was.snapshot.pid != is.snapshot.pid) return std::nullopt;
  return (is.cpu_seconds - was.cpu_seconds) / (run.seconds - before->seconds);
}

std::string duration_text(double seconds) {
  const auto whole = static_cast<long long>(seconds);
  const auto two_digits = [](long long number) { return cat(number < 10 ? "0" : "", number); };
  return cat(whole / 3600, ":", two_digits(whole / 60 % 60), ":", two_digits(whole % 60));
}

std::string command_text(const RunView& run) {
  std::string text;
  for (const std::string& word : run.command) text += (text.empty() ? "" : " ") + word;
  return printable(text);
}

std::string heading(const RunsReport& report, const RunView& run) {
  const std::optional<double> rate = slots_per_second(earlier(report, run), run);
  return cat("run ", run.launcher, ", for ", duration_text(run.seconds),
             rate ? cat(", ", decimal(*rate, 1), " slots/s") : "", ": ", command_text(run), "\n");
}

std::string table_text(const RunsReport& report, const RunView& run) {
  const RunView* before = earlier(report, run);
  TextTable table({"  PROCESS", "PID", "STATE", before ? "CPU" : "CPU TIME", "MEMORY", "SHARED", "LOST", "TASK"});
  for (std::size_t i = 0; i < run.processes.size(); ++i) {
    const ProcessView& process = run.processes[i];
    const std::optional<double> processors = used_processors(before, run, i);
    const std::string use = !before      ? duration_text(process.cpu_seconds)
                            : processors ? cat(decimal(100 * *processors, 0), " %")
                                         : "-";
    table.add({cat("  ", process.snapshot.name), process.snapshot.pid == 0 ? "-" : cat(process.snapshot.pid),
               state_text(process.snapshot), use, bytes_text(process.memory.own_bytes),
               bytes_text(process.memory.shared_bytes), cat(process.num_lost), place_text(process.snapshot)});
  }
  return table.text();
}

std::string waits_text(const RunView& run) {
  std::vector<ProcessSnapshot> snapshots;
  for (const ProcessView& process : run.processes) snapshots.push_back(process.snapshot);
  return processes_text(snapshots, now_ns());
}

template <typename TextOf>
std::string text_of_runs(const RunsReport& report, TextOf&& text_of) {
  if (report.now.empty()) return "no run of this user\n";
  std::string text;
  for (const RunView& run : report.now) {
    text += cat(text.empty() ? "" : "\n", heading(report, run));
    text += run.problem.empty() ? text_of(run) : cat("  ", printable(run.problem), "\n");
  }
  return text;
}

Json or_null(const std::optional<double>& number) { return number ? Json(*number) : Json(nullptr); }

Json task_json(const BoardTask& task) {
  if (task.slot < 0) return nullptr;
  return {{"slot", task.slot},
          {"round", task.round},
          {"step", task.step},
          {"phase", task.phase_text()},
          {"first_layer", task.first_layer},
          {"end_layer", task.end_layer},
          {"layer", task.layer},
          {"microbatch", task.microbatch}};
}

Json process_json(const ProcessView& process, const std::optional<double>& processors) {
  const ProcessSnapshot& snapshot = process.snapshot;
  Json json = {{"name", snapshot.name},
               {"pid", snapshot.pid},
               {"state", state_text(snapshot)},
               {"cpu_seconds", process.cpu_seconds},
               {"processors", or_null(processors)},
               {"own_bytes", process.memory.own_bytes},
               {"shared_bytes", process.memory.shared_bytes},
               {"lost", process.num_lost}};
  if (snapshot.is_worker) {
    json["task"] = task_json(snapshot.task);
  } else {
    const BoardProgress& progress = snapshot.progress;
    json["progress"] = {{"step", progress.step},
                        {"round", progress.round},
                        {"accepted", progress.accepted},
                        {"dispatched", progress.dispatched},
                        {"committed", progress.committed}};
  }
  return json;
}

Json run_json(const RunsReport& report, const RunView& run) {
  const RunView* before = earlier(report, run);
  Json processes = Json::array();
  for (std::size_t i = 0; i < run.processes.size(); ++i)
    processes.push_back(process_json(run.processes[i], used_processors(before, run, i)));
  return {{"pid", run.launcher},    {"command", run.command},
          {"seconds", run.seconds}, {"slots_per_second", or_null(slots_per_second(before, run))},
          {"problem", run.problem}, {"processes", std::move(processes)}};
}

}  // namespace

std::string runs_text(const RunsReport& report) {
  return text_of_runs(report, [&report](const RunView& run) { return table_text(report, run); });
}

std::string runs_waits_text(const RunsReport& report) { return text_of_runs(report, waits_text); }

std::string fitted_text(const std::string& text, std::size_t columns, std::size_t lines) {
  const auto continues_character = [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80; };
  std::string fitted;
  std::size_t column = 0;
  for (const char byte : text) {
    if (byte == '\n') {
      if (--lines == 0) return fitted;
      column = 0;
      fitted += byte;
      continue;
    }
    if (!continues_character(byte)) ++column;  // UTF-8
    if (column <= columns) fitted += byte;
  }
  return fitted;
}

std::string runs_json(const RunsReport& report) {
  Json runs = Json::array();
  for (const RunView& run : report.now) runs.push_back(run_json(report, run));
  // Words of a command line need not be UTF-8.
  return Json{{"runs", std::move(runs)}}.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace rp
