// scheduler/simulation/fair_share.h
// Computes max-min fair rates for flows that share resources: no flow can be faster without a
// slower flow becoming even slower. (D. Bertsekas, R. Gallager, Data Networks, section 6.5.2:
// progressive filling.)
#pragma once

#include <array>
#include <cstddef>
#include <vector>

namespace rp {

// A flow through shared resources, which runs at the same time as others.
struct Flow {
  static constexpr int kNone = -1;
  double limit = 0;                                   // its rate if it is alone
  std::array<int, 3> resources{kNone, kNone, kNone};  // the resources that it passes through
  std::array<double, 3> uses{1, 1, 1};                // the amount of each resource per unit of the flow's rate
};

class FairShare {
 public:
  // `capacities`: by resource, the total of its flows, in the unit of the rates.
  explicit FairShare(std::vector<double> capacities) : capacities_(std::move(capacities)) {}

  // Sets rates[i] to the rate of flows[i].
  void share(const std::vector<Flow>& flows, std::vector<double>& rates);

 private:
  // A flow whose rate may still grow.
  struct Open {
    std::size_t number = 0;
    double limit = 0;
    std::array<int, 3> resources{};
    double reached = 0;  // the rate that its limit and its resources allow
  };

  std::vector<double> capacities_;
  std::vector<double> left_;     // by resource: the capacity that is left
  std::vector<double> used_;     // by resource: the amount that all open flows use per unit of their rate
  std::vector<double> reached_;  // by resource: the rate at which open flows use up what is left
  std::vector<Open> open_;       // in the order of `flows`
};

}  // namespace rp
