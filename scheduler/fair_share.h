// scheduler/fair_share.h
// How flows share what they go through: max-min fair, so that no flow can be faster without a slower one becoming slower.
// (D. Bertsekas, R. Gallager, Data Networks, section 6.5.2: progressive filling.)
#pragma once

#include <array>
#include <vector>

namespace rp {

// One of several things at once that go through shared resources.
struct Flow {
  static constexpr int kNone = -1;
  double limit = 0;                                   // its rate alone
  std::array<int, 3> resources{kNone, kNone, kNone};  // that it goes through
  std::array<double, 3> uses{1, 1, 1};                // how much of each, for each unit of its rate
};

class FairShare {
 public:
  // `capacities`: by resource, what its flows reach together, in the rates' unit.
  explicit FairShare(std::vector<double> capacities) : capacities_(std::move(capacities)) {}

  // Sets rates[i] of flows[i].
  void share(const std::vector<Flow>& flows, std::vector<double>& rates);

 private:
  std::vector<double> capacities_;
  std::vector<double> left_;   // by resource
  std::vector<double> open_;   // likewise: what flows that may still become faster use of it
  std::vector<bool> is_open_;  // by flow
};

}  // namespace rp
