// hoststore/memory/page_policy.h
// Determines which kind of pages the kernel provides for shared memory, and from which NUMA nodes.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace rp {

// The kernel's setting for huge pages in memory files
// (/sys/kernel/mm/transparent_hugepage/shmem_enabled). With kAdvised, only a mapping that requests
// huge pages before its pages are allocated gets them. /dev/shm has a setting of its own (the mount
// option `huge`), which is `never` by default.
enum class SharedHugePages { kNever, kAdvised, kAlways };
// Returns the current setting, or kNever if the file does not exist. `root` is put in front of
// /sys, for tests.
[[nodiscard]] SharedHugePages shared_huge_pages(const std::string& root = "");

// Returns the NUMA nodes with processors from which this process may allocate memory; empty if the
// kernel reports none. Nodes that have only memory are slower and are left to the kernel.
[[nodiscard]] std::vector<int> allowed_memory_nodes(const std::string& root = "");

// While this object exists, pages that the kernel allocates for the calling thread come from all of
// `nodes` in turn, so that data that every GPU and every optimizer thread reads has the bandwidth
// of all nodes. Does nothing for fewer than two nodes. Throws nothing: if the kernel refuses, the
// thread keeps its policy.
class InterleavedPages {
 public:
  explicit InterleavedPages(const std::vector<int>& nodes);
  ~InterleavedPages();
  InterleavedPages(const InterleavedPages&) = delete;
  InterleavedPages& operator=(const InterleavedPages&) = delete;

 private:
  struct Policy {
    int mode = 0;
    std::vector<unsigned long> nodes;  // a bit mask
  };
  std::optional<Policy> before_;  // nothing if the policy was not changed
};

}  // namespace rp
