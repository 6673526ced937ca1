#include "launcher/view/runs.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "common/system/fd.h"
#include "common/system/kernel_file.h"
#include "common/text.h"
#include "hoststore/records/fault_board.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

namespace fs = std::filesystem;

constexpr const char* kLauncherName = "rp-launch";

double ticks_per_second() { return static_cast<double>(sysconf(_SC_CLK_TCK)); }

double seconds_since_start_of_machine() {
  timespec time{};
  clock_gettime(CLOCK_BOOTTIME, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

std::vector<fs::path> entries_of(const fs::path& directory, std::error_code& error) {
  std::vector<fs::path> entries;
  for (fs::directory_iterator entry(directory, error); !error && entry != fs::directory_iterator();
       entry.increment(error))
    entries.push_back(entry->path());
  return entries;
}

// Returns the processes of the user that are called rp-launch, some of which may not run anything.
std::vector<pid_t> launchers_of(uid_t user) {
  std::vector<pid_t> launchers;
  std::error_code ignored;
  for (const fs::path& process : entries_of("/proc", ignored)) {
    const std::string name = process.filename();
    if (!std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isdigit(c) != 0; })) continue;
    struct stat info {};
    if (stat(process.c_str(), &info) != 0 || info.st_uid != user) continue;
    if (kernel_file_text(process / "comm") == cat(kLauncherName, "\n")) launchers.push_back(std::stoi(name));
  }
  return launchers;
}

std::vector<std::string> command_of(pid_t pid) {
  std::vector<std::string> words = command_line_of(pid);
  if (!words.empty()) words[0] = fs::path(words[0]).filename();
  return words;
}

// Opens the fault board of an rp-launch process for reading. Returns nothing if it has none, or sets `problem` if its
// descriptors may not be read.
UniqueFd open_board(pid_t launcher, std::string& problem) {
  std::error_code error;
  for (const fs::path& descriptor : entries_of(cat("/proc/", launcher, "/fd"), error)) {
    std::error_code closed;
    const std::string target = fs::read_symlink(descriptor, closed).string();
    if (!target.starts_with(cat("/memfd:", kFaultBoardName))) continue;
    if (UniqueFd board(open(descriptor.c_str(), O_RDONLY | O_CLOEXEC)); board) return board;
    error = {errno, std::generic_category()};
  }
  if (error == std::errc::permission_denied) problem = "its processes cannot be seen: permission denied";
  return UniqueFd();
}

ProcessView view_of(int board_index, FaultBoardEntry entry) {
  const std::string name = board_index == 0 ? "coordinator" : cat("worker ", board_index - 1);
  const pid_t pid = entry.pid();
  const std::uint32_t num_starts = entry.num_starts();
  ProcessView view{.snapshot = snapshot_of(name, board_index, pid, std::nullopt, entry)};
  view.num_lost = num_starts > 0 ? num_starts - 1 : 0;
  if (pid == 0) return view;
  if (view.snapshot.kernel_state == '?') view.snapshot.kernel_state = 'Z';  // its entry is not cleared yet
  view.cpu_seconds = static_cast<double>(process_stat(pid).cpu_ticks) / ticks_per_second();
  view.memory = process_memory(pid);
  return view;
}

// Returns nothing for an rp-launch process that runs nothing, or whose board is already in `boards`: before it executes
// the program, a child of rp-launch looks like its parent.
std::optional<RunView> view_of_run(pid_t launcher, std::set<ino_t>& boards) {
  RunView run{.launcher = launcher, .command = command_of(launcher)};
  UniqueFd fd = open_board(launcher, run.problem);
  if (!fd && run.problem.empty()) return std::nullopt;
  struct stat info {};
  if (fd && (fstat(fd.get(), &info) != 0 || !boards.insert(info.st_ino).second)) return std::nullopt;
  const ProcessStat stat = process_stat(launcher);
  if (stat.state == '?') return std::nullopt;
  run.start_ticks = stat.start_ticks;
  run.seconds =
      std::max(0.0, seconds_since_start_of_machine() - static_cast<double>(stat.start_ticks) / ticks_per_second());
  if (!fd) return run;
  try {
    const FaultBoard board = FaultBoard::attach(std::move(fd));
    for (int i = 0; i < board.num_entries(); ++i) run.processes.push_back(view_of(i, board.entry(i)));
  } catch (const Error& error) {
    run.problem = cat("its processes cannot be seen: ", error.what());
  }
  return run;
}

}  // namespace

std::vector<RunView> find_runs(uid_t user) {
  // Sorted by values that are read once: a process may end meanwhile.
  std::vector<std::pair<std::int64_t, pid_t>> launchers;
  for (const pid_t launcher : launchers_of(user)) launchers.emplace_back(process_stat(launcher).start_ticks, launcher);
  std::sort(launchers.begin(), launchers.end());
  std::vector<RunView> runs;
  std::set<ino_t> boards;
  for (const auto& [start_ticks, launcher] : launchers) {
    if (std::optional<RunView> run = view_of_run(launcher, boards)) runs.push_back(*std::move(run));
  }
  return runs;
}

}  // namespace rp
