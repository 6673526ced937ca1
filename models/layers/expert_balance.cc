#include "models/layers/expert_balance.h"

#include <ATen/ATen.h>

namespace rp::models {

namespace {

// The numbers after those of the experts. Their places are counted from the end.
constexpr std::int64_t kNumOthers = 3;
constexpr std::int64_t kRows = -3, kMaxChosen = -2, kLeastChosen = -1;

}  // namespace

ExpertBalance balance_of(const at::Tensor& probabilities_ne, const at::Tensor& chosen_e) {
  const at::Tensor rows = at::full({1}, probabilities_ne.size(0), chosen_e.options());
  return {probabilities_ne.sum(0), at::cat({chosen_e, rows, chosen_e.max().view(1), chosen_e.min().view(1)})};
}

ExpertBalance sum_of(const ExpertBalance& below, const ExpertBalance& own) {
  if (!below.is_defined()) return own;
  if (!own.is_defined()) return below;
  TORCH_CHECK(below.counts.sizes() == own.counts.sizes(), "a router has ", own.counts.size(0) - kNumOthers,
              " experts, those below it have ", below.counts.size(0) - kNumOthers);
  return {below.probabilities_e + own.probabilities_e, below.counts + own.counts};
}

BalanceReport report_of(const ExpertBalance& balance) {
  const auto experts = static_cast<double>(balance.probabilities_e.size(0));
  // fp64 represents all integers that occur exactly.
  const at::Tensor counts = balance.counts.to(at::kDouble);
  const at::Tensor chosen_e = counts.narrow(0, 0, balance.probabilities_e.size(0));
  const at::Tensor rows = counts[kRows], mean_load = chosen_e.sum() / experts;
  const at::Tensor weights_e = (experts * chosen_e / (rows * rows)).to(at::kFloat);
  return {.auxiliary_loss = (balance.probabilities_e * weights_e).sum(),
          .most_loaded = (counts[kMaxChosen] / mean_load).to(at::kFloat),
          .least_loaded = (counts[kLeastChosen] / mean_load).to(at::kFloat)};
}

}  // namespace rp::models
