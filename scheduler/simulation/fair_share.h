// scheduler/simulation/fair_share.h
// How flows share what they go through: max-min fair, so that no flow can be faster without a slower one becoming
// slower. (D. Bertsekas, R. Gallager, Data Networks, section 6.5.2: progressive filling.)
#pragma once

#include <array>
#include <cstddef>
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
  // A flow that may still become faster.
  struct Open {
    std::size_t number = 0;
    double limit = 0;
    std::array<int, 3> resources{};
    double reached = 0;  // the rate that its limit and its resources admit
  };

  std::vector<double> capacities_;
  std::vector<double> left_;     // by resource
  std::vector<double> used_;     // likewise: what open flows use of it, for each unit of their rate
  std::vector<double> reached_;  // likewise: the rate at which open flows use up what is left
  std::vector<Open> open_;       // in the order of flows
};

}  // namespace rp
