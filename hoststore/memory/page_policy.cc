#include "hoststore/memory/page_policy.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <cstddef>
#include <fstream>
#include <utility>

#include "common/text.h"

namespace rp {

namespace {

constexpr std::size_t kMaxNodes = 1024;  // the largest number that kernels are built for
constexpr std::size_t kBits = sizeof(unsigned long) * CHAR_BIT;

using Mask = std::vector<unsigned long>;

bool has_processors(const std::string& root, std::size_t node) {
  std::ifstream file(cat(root, "/sys/devices/system/node/node", node, "/cpulist"));
  std::string list;
  return static_cast<bool>(file >> list);
}

}  // namespace

// The file lists all settings, with the current one in brackets.
SharedHugePages shared_huge_pages(const std::string& root) {
  std::ifstream file(root + "/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  std::string word;
  while (file >> word) {
    if (word == "[advise]") return SharedHugePages::kAdvised;
    if (word == "[always]" || word == "[within_size]" || word == "[force]") return SharedHugePages::kAlways;
  }
  return SharedHugePages::kNever;
}

std::vector<int> allowed_memory_nodes(const std::string& root) {
  Mask mask(kMaxNodes / kBits);
  std::vector<int> nodes;
  if (syscall(SYS_get_mempolicy, nullptr, mask.data(), kMaxNodes, nullptr, MPOL_F_MEMS_ALLOWED) != 0) return nodes;
  for (std::size_t i = 0; i < kMaxNodes; ++i) {
    if ((mask[i / kBits] >> (i % kBits) & 1) != 0 && has_processors(root, i)) nodes.push_back(static_cast<int>(i));
  }
  return nodes;
}

InterleavedPages::InterleavedPages(const std::vector<int>& nodes) {
  if (nodes.size() < 2) return;
  Policy before{.nodes = Mask(kMaxNodes / kBits)};
  if (syscall(SYS_get_mempolicy, &before.mode, before.nodes.data(), kMaxNodes, nullptr, 0) != 0) return;
  Mask mask(kMaxNodes / kBits);
  for (const int node : nodes)
    mask[static_cast<std::size_t>(node) / kBits] |= 1UL << (static_cast<std::size_t>(node) % kBits);
  // The kernel expects the number of bits plus one.
  if (syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, mask.data(), kMaxNodes + 1) == 0) before_ = std::move(before);
}

InterleavedPages::~InterleavedPages() {
  if (before_) (void)syscall(SYS_set_mempolicy, before_->mode, before_->nodes.data(), kMaxNodes + 1);
}

}  // namespace rp
