// train/data/packing.h
// Packs documents into sequences, so that little computation is spent on padding.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace rp {

// Items that are grouped into packs. Packs are stored one after another.
struct Packs {
  std::vector<std::uint64_t> items;  // indices of items, pack by pack
  std::vector<std::uint64_t> ends;   // pack i is items ends[i - 1] (0 for the first pack) to ends[i]

  [[nodiscard]] std::uint64_t size() const { return ends.size(); }
  [[nodiscard]] std::span<const std::uint64_t> pack(std::uint64_t number) const {
    const std::uint64_t begin = number == 0 ? 0 : ends[number - 1];
    return std::span(items).subspan(begin, ends[number] - begin);
  }
};

// Puts items into packs of `capacity` by first fit decreasing: the largest item first, each into
// the first pack that has space for it. This needs at most 11/9 of the minimum number of packs, and
// one more (Dosa 2007). Items of equal size keep their order. The number of packs depends only on
// the sizes, not on their order. Needs n log n time for n items. REQUIRES: each size is between 1
// and capacity.
[[nodiscard]] Packs first_fit_decreasing(std::span<const std::uint32_t> sizes, std::uint32_t capacity);

}  // namespace rp
