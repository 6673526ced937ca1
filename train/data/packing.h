// train/data/packing.h
// Packs documents into sequences, so that little of what is computed is padding.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace rp {

// Items in packs, one pack behind the other.
struct Packs {
  std::vector<std::uint64_t> items;  // numbers of items, pack by pack
  std::vector<std::uint64_t> ends;   // of pack i: items ends[i - 1] (0 for the first) to ends[i]

  [[nodiscard]] std::uint64_t size() const { return ends.size(); }
  [[nodiscard]] std::span<const std::uint64_t> pack(std::uint64_t number) const {
    const std::uint64_t begin = number == 0 ? 0 : ends[number - 1];
    return std::span(items).subspan(begin, ends[number] - begin);
  }
};

// Puts items into as few packs of `capacity` as first fit decreasing needs (at most 11/9 of the fewest possible, and
// one more; Dosa 2007): the largest item first, each into the first pack that has room for it. Items of equal size keep
// their order. The number of packs depends on the sizes alone, not on their order. Takes n log n time for n items.
// REQUIRES: each size is between 1 and capacity.
[[nodiscard]] Packs first_fit_decreasing(std::span<const std::uint32_t> sizes, std::uint32_t capacity);

}  // namespace rp
