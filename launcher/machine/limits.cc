#include "launcher/machine/limits.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <utility>

#include "common/system/cgroup.h"
#include "common/text.h"

namespace rp {

namespace {

constexpr std::uint64_t kUsualMapCount = 65530;  // the default of Linux
constexpr std::uint64_t kMinOpenFiles = 1024;

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

// Sums up the nodes' zones "Node 0, zone  Movable", each with the line "managed PAGES" below it.
std::uint64_t movable_bytes(const std::string& root) {
  std::ifstream file(root + "/proc/zoneinfo");
  std::uint64_t pages = 0;
  bool is_movable = false;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "Node") is_movable = line.ends_with(" Movable");
    std::uint64_t managed = 0;
    if (is_movable && word == "managed" && words >> managed) pages += managed;
  }
  return pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

// Returns the word in brackets from a text such as "always within_size advise [never] deny force".
std::string bracketed_word(const std::string& path) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    if (word.size() > 2 && word.front() == '[' && word.back() == ']') return word.substr(1, word.size() - 2);
  }
  return "";
}

LimitLine group_line(const MachineLimits& limits) {
  LimitLine line{.key = "group_memory", .name = "memory of the control group"};
  // Control groups of version 1 report no limit as a number that is larger than the memory.
  const bool is_limited = limits.group_left_bytes && *limits.group_left_bytes < limits.memory_bytes;
  line.value = is_limited ? cat(bytes_text(*limits.group_left_bytes), " left") : "no limit";
  if (is_limited && *limits.group_left_bytes < limits.available_bytes) {
    line.advice =
        "less than the machine has available: the host store (16 bytes a trained parameter, docs/memory.md) must fit "
        "in it; raise the memory limit of the container or job for larger models";
  }
  return line;
}

LimitLine shm_line(const MachineLimits& limits) {
  LimitLine line{.key = "shm", .name = "/dev/shm"};
  line.value =
      limits.shm_bytes ? cat(bytes_text(*limits.shm_bytes), ", ", bytes_text(limits.shm_free_bytes), " free") : "none";
  if (!limits.shm_bytes || limits.shm_free_bytes < limits.available_bytes / 2) {
    line.advice =
        "a host store that is larger uses anonymous memory instead (memfd), which has no such limit: nothing needs "
        "to be done; other programs may want it larger (docker run --shm-size)";
  }
  return line;
}

LimitLine locked_line(const MachineLimits& limits) {
  LimitLine line{.key = "locked_memory", .name = "locked memory (ulimit -l)"};
  line.value = limits.locked_bytes ? bytes_text(*limits.locked_bytes) : "no limit";
  if (limits.locked_bytes && *limits.locked_bytes < limits.memory_bytes) {
    line.advice =
        "less than the memory: where the driver counts what is registered for GPUs against it, registering fails and "
        "copies become slow; then raise it (ulimit -l unlimited, docker run --ulimit memlock=-1, in Slurm "
        "PropagateResourceLimits)";
  }
  return line;
}

// The host store is shared memory and requests huge pages, so it has small pages only if the kernel
// is configured to give no huge pages at all.
LimitLine huge_page_line(const MachineLimits& limits) {
  LimitLine line{.key = "huge_pages", .name = "huge pages of shared memory"};
  line.value = limits.huge_pages.empty() ? "unknown" : limits.huge_pages;
  if (limits.huge_pages == "never" || limits.huge_pages == "deny") {
    line.advice =
        "the host store has small pages: touching it for the first time, which is part of the first step, and "
        "registering it for GPUs take longer, and the GPU's page tables take 2 MiB for each GiB; as root: echo advise "
        "> /sys/kernel/mm/transparent_hugepage/shmem_enabled";
  }
  return line;
}

// Returns the major and minor version of a release such as "6.12.3-generic"; 0.0 for any other
// text.
std::pair<int, int> version_of(const std::string& release) {
  int major = 0, minor = 0;
  return std::sscanf(release.c_str(), "%d.%d", &major, &minor) == 2 ? std::pair{major, minor} : std::pair{0, 0};
}

LimitLine kernel_line(const MachineLimits& limits) {
  LimitLine line{.key = "kernel", .name = "kernel", .value = limits.kernel.empty() ? "unknown" : limits.kernel};
  const std::pair<int, int> version = version_of(limits.kernel);
  if (version >= std::pair{6, 11} && version <= std::pair{6, 13}) {
    line.advice =
        "some kernels 6.11 to 6.13 refuse to register more than 2 GB in one call: runs here are not harmed, since "
        "workers register smaller pieces, but other programs for GPUs may fail; install a newer kernel, or the newest "
        "of its series";
  }
  return line;
}

LimitLine movable_line(const MachineLimits& limits) {
  LimitLine line{.key = "movable_memory", .name = "movable memory (ZONE_MOVABLE)"};
  line.value = limits.movable_bytes == 0 ? "none" : bytes_text(limits.movable_bytes);
  if (limits.movable_bytes > 0) {
    line.advice =
        cat("memory that is registered for GPUs may not stay there: the kernel moves its pages out first, which takes "
            "time and may fail at the first attempts (workers try again)");
    if (limits.movable_bytes > limits.memory_bytes / 2) {
      line.advice +=
          "; it is more than half of the memory, so a large host store cannot be registered as a whole and its copies "
          "become slow";
      line.is_problem = true;
    }
    line.advice +=
        "; boot without movable_node, movablecore= and kernelcore=, and bring added memory online as online_kernel";
  }
  return line;
}

LimitLine map_line(const MachineLimits& limits) {
  LimitLine line{.key = "map_count", .name = "vm.max_map_count"};
  line.value = limits.map_count == 0 ? "unknown" : std::to_string(limits.map_count);
  if (limits.map_count != 0 && limits.map_count < kUsualMapCount) {
    line.advice = cat("below Linux's usual ", kUsualMapCount,
                      ": registering memory for GPUs may fail; as root: sysctl -w vm.max_map_count=", kUsualMapCount);
    line.is_problem = true;
  }
  return line;
}

LimitLine open_files_line(const MachineLimits& limits) {
  LimitLine line{.key = "open_files", .name = "open files (ulimit -Hn)", .value = std::to_string(limits.open_files)};
  if (limits.open_files < kMinOpenFiles) {
    line.advice = cat("below ", kMinOpenFiles,
                      ": runs with many workers fail; raise the hard limit (limits.conf, docker run --ulimit nofile=)");
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
  std::ifstream(root + "/proc/sys/kernel/osrelease") >> limits.kernel;
  limits.movable_bytes = movable_bytes(root);
  limits.huge_pages = bracketed_word(root + "/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  return limits;
}

std::vector<LimitLine> limit_lines(const MachineLimits& limits) {
  const LimitLine memory{
      .key = "memory",
      .name = "memory",
      .value = cat(bytes_text(limits.memory_bytes), ", ", bytes_text(limits.available_bytes), " available")};
  return {memory,
          group_line(limits),
          shm_line(limits),
          locked_line(limits),
          huge_page_line(limits),
          movable_line(limits),
          map_line(limits),
          open_files_line(limits),
          kernel_line(limits)};
}

}  // namespace rp
