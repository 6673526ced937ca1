// common/median.h
// The middle of what was measured.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace rp {

// The upper one of two in the middle. REQUIRES: there is a value.
template <typename T>
[[nodiscard]] T median(std::vector<T> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace rp
