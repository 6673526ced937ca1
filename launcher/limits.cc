#include "launcher/limits.h"

#include <sys/resource.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "common/cgroup.h"
#include "common/text.h"

namespace rp {

namespace {

constexpr std::uint64_t kUsualMapCount = 65530;  // of Linux
constexpr std::uint64_t kFewestOpenFiles = 1024;

std::uint64_t memory_figure(const std::string& root, const std::string& key) {
  std::ifstream file(root + "/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    std::uint64_t kib = 0;
    if (words >> name >> kib && name == key) return kib * 1024;
  }
  return 0;
}

// The word in brackets of "always within_size advise [never] deny force".
std::string bracketed_word(const std::string& path) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    if (word.size() > 2 && word.front() == '[' && word.back() == ']') return word.substr(1, word.size() - 2);
  }
  return "";
}

LimitLine group_line(const MachineLimits& limits) {
  LimitLine line{.key = "group_memory", .name = "memory of the control group"};
  // Version 1 writes a number beyond all memory for no limit.
  const bool is_limited = limits.group_left_bytes && *limits.group_left_bytes < limits.memory_bytes;
  line.value = is_limited ? cat(bytes_text(*limits.group_left_bytes), " left") : "no limit";
  if (is_limited && *limits.group_left_bytes < limits.available_bytes) {
    line.advice = "less than the machine has available: the host store (16 bytes a trained parameter, docs/memory.md) must fit in "
                  "it; raise the memory limit of the container or job for larger models";
  }
  return line;
}

LimitLine shm_line(const MachineLimits& limits) {
  LimitLine line{.key = "shm", .name = "/dev/shm"};
  line.value = limits.shm_bytes ? cat(bytes_text(*limits.shm_bytes), ", ", bytes_text(limits.shm_free_bytes), " free") : "none";
  if (!limits.shm_bytes || limits.shm_free_bytes < limits.available_bytes / 2) {
    line.advice = "a host store that is larger lies in anonymous memory instead (memfd), which has no such limit: nothing needs to be "
                  "done; other programs may want it larger (docker run --shm-size)";
  }
  return line;
}

LimitLine locked_line(const MachineLimits& limits) {
  LimitLine line{.key = "locked_memory", .name = "locked memory (ulimit -l)"};
  line.value = limits.locked_bytes ? bytes_text(*limits.locked_bytes) : "no limit";
  if (limits.locked_bytes && *limits.locked_bytes < limits.memory_bytes) {
    line.advice = "less than the memory: where the driver counts what is registered for GPUs against it, registering fails and copies "
                  "become slow; then raise it (ulimit -l unlimited, docker run --ulimit memlock=-1, in Slurm PropagateResourceLimits)";
  }
  return line;
}

LimitLine huge_page_line(const MachineLimits& limits) {
  LimitLine line{.key = "huge_pages", .name = "huge pages of shared memory"};
  line.value = limits.huge_pages.empty() ? "unknown" : limits.huge_pages;
  if (limits.huge_pages == "never" || limits.huge_pages == "deny") {
    line.advice = "registering memory for GPUs takes longer with small pages; as root: echo always > "
                  "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
  }
  return line;
}

LimitLine map_line(const MachineLimits& limits) {
  LimitLine line{.key = "map_count", .name = "vm.max_map_count"};
  line.value = limits.map_count == 0 ? "unknown" : std::to_string(limits.map_count);
  if (limits.map_count != 0 && limits.map_count < kUsualMapCount) {
    line.advice = cat("below Linux's usual ", kUsualMapCount, ": registering memory for GPUs may fail; as root: "
                      "sysctl -w vm.max_map_count=", kUsualMapCount);
    line.is_problem = true;
  }
  return line;
}

LimitLine open_files_line(const MachineLimits& limits) {
  LimitLine line{.key = "open_files", .name = "open files (ulimit -Hn)", .value = std::to_string(limits.open_files)};
  if (limits.open_files < kFewestOpenFiles) {
    line.advice = cat("below ", kFewestOpenFiles, ": runs with many workers fail; raise the hard limit (limits.conf, "
                      "docker run --ulimit nofile=)");
    line.is_problem = true;
  }
  return line;
}

}  // namespace

MachineLimits observe_limits(const std::string& root) {
  MachineLimits limits;
  limits.memory_bytes = memory_figure(root, "MemTotal:");
  limits.available_bytes = memory_figure(root, "MemAvailable:");
  limits.group_left_bytes = Cgroup::of_this_process(root).memory_left_bytes();
  struct statvfs shm {};
  if (statvfs((root + "/dev/shm").c_str(), &shm) == 0) {
    limits.shm_bytes = shm.f_blocks * shm.f_frsize;
    limits.shm_free_bytes = shm.f_bavail * shm.f_frsize;
  }
  rlimit locked{};
  getrlimit(RLIMIT_MEMLOCK, &locked);
  if (locked.rlim_cur != RLIM_INFINITY) limits.locked_bytes = locked.rlim_cur;
  rlimit open_files{};
  getrlimit(RLIMIT_NOFILE, &open_files);
  limits.open_files = open_files.rlim_max;
  std::ifstream(root + "/proc/sys/vm/max_map_count") >> limits.map_count;
  limits.huge_pages = bracketed_word(root + "/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  return limits;
}

std::vector<LimitLine> limit_lines(const MachineLimits& limits) {
  const LimitLine memory{.key = "memory", .name = "memory",
                         .value = cat(bytes_text(limits.memory_bytes), ", ", bytes_text(limits.available_bytes), " available")};
  return {memory, group_line(limits), shm_line(limits), locked_line(limits), huge_page_line(limits), map_line(limits),
          open_files_line(limits)};
}

}  // namespace rp
