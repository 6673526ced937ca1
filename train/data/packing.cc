#include "train/data/packing.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "common/check.h"

namespace rp {
namespace {

// Stores the free capacity of each of a fixed number of packs, as a tree of maxima.
class RoomTree {
 public:
  RoomTree(std::uint64_t num_packs, std::uint32_t capacity)
      : leaves_(std::bit_ceil(num_packs)), most_(2 * leaves_, capacity) {}

  // Takes `size` from the first pack that has enough free capacity, and returns the pack's index.
  // REQUIRES: such a pack exists.
  std::uint64_t take(std::uint32_t size) {
    std::uint64_t node = 1;
    while (node < leaves_) node = most_[2 * node] >= size ? 2 * node : 2 * node + 1;
    const std::uint64_t pack = node - leaves_;
    most_[node] -= size;
    for (node /= 2; node > 0; node /= 2) most_[node] = std::max(most_[2 * node], most_[2 * node + 1]);
    return pack;
  }

 private:
  std::uint64_t leaves_;
  std::vector<std::uint32_t> most_;  // the maximum free capacity below node i, whose children are 2 i and 2 i + 1
};

}  // namespace

Packs first_fit_decreasing(std::span<const std::uint32_t> sizes, std::uint32_t capacity) {
  Packs packs;
  if (sizes.empty()) return packs;
  std::vector<std::uint64_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::uint64_t a, std::uint64_t b) { return sizes[a] > sizes[b]; });
  RoomTree room(sizes.size(), capacity);
  std::vector<std::uint64_t> pack_of;  // of each item, in the order of `order`
  pack_of.reserve(sizes.size());
  for (const std::uint64_t item : order) {
    RP_ASSERT(sizes[item] > 0 && sizes[item] <= capacity);
    pack_of.push_back(room.take(sizes[item]));
    if (pack_of.back() >= packs.ends.size()) packs.ends.push_back(0);
    ++packs.ends[pack_of.back()];
  }
  std::partial_sum(packs.ends.begin(), packs.ends.end(), packs.ends.begin());
  packs.items.resize(sizes.size());
  std::vector<std::uint64_t> next(packs.ends.size(), 0);
  std::copy(packs.ends.begin(), packs.ends.end() - 1, next.begin() + 1);
  for (std::size_t i = 0; i < order.size(); ++i) packs.items[next[pack_of[i]]++] = order[i];
  return packs;
}

}  // namespace rp
