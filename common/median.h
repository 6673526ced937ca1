// common/median.h
// Computes the median of measurements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace rp {

// Returns the median. If the number of values is even, this is the upper one of the two in the
// middle. REQUIRES: there is a value.
template <typename T>
[[nodiscard]] T median(std::vector<T> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace rp
