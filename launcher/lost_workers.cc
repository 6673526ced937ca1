#include "launcher/lost_workers.h"

#include <algorithm>
#include <utility>

#include "common/text.h"

namespace rp {

bool LostWorkers::decide(const Replacements::Death& death, int num_alive) {
  const auto num_replaced =
      std::count_if(losses_.begin(), losses_.end(), [](const auto& loss) { return loss.second.is_replaced; });
  num_left_ = num_alive + static_cast<int>(num_replaced) + static_cast<int>(starts_.size());
  const Replacements::Decision decision = replacements_.decide(death, num_left_);
  replaces_next_ = decision == Replacements::Decision::kReplace;
  return decision != Replacements::Decision::kEndRun;
}

std::string LostWorkers::lose(int worker, Failure failure) {
  std::string note =
      cat(failure_text(failure), "rp-launch: ",
          replaces_next_ ? "another process takes its place" : cat("the run goes on with ", num_left_, " workers"),
          "; what is not final is computed again, with the same result\n");
  losses_.insert_or_assign(worker, Loss{.is_replaced = replaces_next_, .failure = std::move(failure)});
  return note;
}

void LostWorkers::on_dropped(int worker) {
  const auto loss = losses_.find(worker);
  if (loss == losses_.end()) return;
  if (loss->second.is_replaced) starts_.insert_or_assign(worker, Deadline::after_ns(replacements_.delay_ns(worker)));
  losses_.erase(loss);
}

std::optional<int> LostWorkers::take_due() {
  for (const auto& [worker, start] : starts_) {
    if (!start.passed()) continue;
    const int due = worker;
    starts_.erase(due);
    return due;
  }
  return std::nullopt;
}

Deadline LostWorkers::next_start() const {
  Deadline next = Deadline::never();
  for (const auto& [worker, start] : starts_) {
    if (start.left_ns() < next.left_ns()) next = start;
  }
  return next;
}

std::optional<Failure> LostWorkers::end() {
  std::optional<Failure> failure;
  if (!losses_.empty()) failure = std::move(losses_.begin()->second.failure);
  losses_.clear();
  starts_.clear();
  return failure;
}

}  // namespace rp
