#include "hoststore/range_allocator.h"

#include <algorithm>
#include <tuple>

#include "common/check.h"
#include "hoststore/boundary.h"

namespace rp {

namespace {

constexpr std::uint64_t kGranularity = 4096;

}  // namespace

std::uint64_t RangeAllocator::rounded_bytes(std::uint64_t bytes) {
  return align_up(bytes == 0 ? 1 : bytes, kGranularity);
}

void RangeAllocator::add_free(std::uint64_t offset, std::uint64_t bytes) {
  free_.emplace(offset, bytes);
  free_by_size_.emplace(bytes, offset);
}

void RangeAllocator::remove_free(std::uint64_t offset, std::uint64_t bytes) {
  free_.erase(offset);
  free_by_size_.erase({bytes, offset});
}

void RangeAllocator::extend(std::uint64_t bytes) {
  bytes = align_up(bytes, kGranularity);
  if (bytes == 0) return;
  allocated_.emplace(total_, bytes);
  used_ += bytes;
  total_ += bytes;
  free(total_ - bytes);
}

std::optional<std::uint64_t> RangeAllocator::allocate(std::uint64_t bytes, Fit fit) {
  bytes = rounded_bytes(bytes);
  const auto best = free_by_size_.lower_bound({bytes, 0});
  if (best == free_by_size_.end()) return std::nullopt;
  auto [range, first] = *best;
  if (fit == Fit::kFirst) {
    std::tie(first, range) =
        *std::find_if(free_.begin(), free_.end(), [bytes](const auto& candidate) { return candidate.second >= bytes; });
  }
  remove_free(first, range);
  const std::uint64_t rest = range - bytes;
  const std::uint64_t offset = fit == Fit::kBestEnd ? first + rest : first;
  if (rest > 0) add_free(fit == Fit::kBestEnd ? first : first + bytes, rest);
  allocated_.emplace(offset, bytes);
  used_ += bytes;
  return offset;
}

void RangeAllocator::allocate_at(std::uint64_t offset, std::uint64_t bytes) {
  bytes = rounded_bytes(bytes);
  const auto after = free_.upper_bound(offset);
  RP_ASSERT(after != free_.begin());
  const auto [first, range] = *std::prev(after);
  RP_ASSERT(first + range >= offset + bytes);
  remove_free(first, range);
  if (first < offset) add_free(first, offset - first);
  if (first + range > offset + bytes) add_free(offset + bytes, first + range - offset - bytes);
  allocated_.emplace(offset, bytes);
  used_ += bytes;
}

std::uint64_t RangeAllocator::bytes_at(std::uint64_t offset) const {
  const auto place = allocated_.find(offset);
  RP_ASSERT(place != allocated_.end());
  return place->second;
}

void RangeAllocator::free(std::uint64_t offset) {
  const auto place = allocated_.find(offset);
  RP_ASSERT(place != allocated_.end());
  std::uint64_t bytes = place->second;
  allocated_.erase(place);
  used_ -= bytes;
  const auto after = free_.find(offset + bytes);
  if (after != free_.end()) {
    const std::uint64_t after_bytes = after->second;
    remove_free(offset + bytes, after_bytes);
    bytes += after_bytes;
  }
  const auto next = free_.lower_bound(offset);
  if (next != free_.begin()) {
    const auto [before, before_bytes] = *std::prev(next);
    if (before + before_bytes == offset) {
      remove_free(before, before_bytes);
      offset = before;
      bytes += before_bytes;
    }
  }
  add_free(offset, bytes);
}

std::uint64_t RangeAllocator::missing(std::uint64_t bytes) const {
  bytes = rounded_bytes(bytes);
  if (free_by_size_.lower_bound({bytes, 0}) != free_by_size_.end()) return 0;
  if (free_.empty()) return bytes;
  const auto [offset, last] = *free_.rbegin();
  return offset + last == total_ ? bytes - last : bytes;
}

}  // namespace rp
