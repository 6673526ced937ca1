// hoststore/memory/page_policy.h
// What kind of pages the kernel gives to shared memory, and from which NUMA nodes.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace rp {

// Huge pages for memory files: what /sys/kernel/mm/transparent_hugepage/shmem_enabled says. kAdvised: only where a
// mapping asks for them, before its pages are allocated. /dev/shm has a setting of its own (the mount option `huge`),
// which is `never` by default.
enum class SharedHugePages { kNever, kAdvised, kAlways };
// `root` stands before /sys, for tests. kNever where there is no such file.
[[nodiscard]] SharedHugePages shared_huge_pages(const std::string& root = "");

// The NUMA nodes with processors that this process may take memory from; empty where the kernel knows none. (Nodes of
// memory alone are slower, and left to the kernel.)
[[nodiscard]] std::vector<int> allowed_memory_nodes(const std::string& root = "");

// While it lives, pages that this thread has the kernel allocate come from all of `nodes` in turn: what every GPU and
// every thread of the optimizer reads then has the bandwidth of all nodes. Does nothing for fewer than two nodes.
// Throws nothing: where the kernel refuses, pages come from where they came before.
class InterleavedPages {
 public:
  explicit InterleavedPages(const std::vector<int>& nodes);
  ~InterleavedPages();
  InterleavedPages(const InterleavedPages&) = delete;
  InterleavedPages& operator=(const InterleavedPages&) = delete;

 private:
  struct Policy {
    int mode = 0;
    std::vector<unsigned long> nodes;  // a mask
  };
  std::optional<Policy> before_;  // nothing if it was not changed
};

}  // namespace rp
