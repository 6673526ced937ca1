#include "launcher/lost_workers.h"

#include <algorithm>
#include <utility>

#include "common/text.h"

namespace rp {

int LostWorkers::num_left(int num_alive) const {
  const auto num_replaced =
      std::count_if(losses_.begin(), losses_.end(), [](const auto& loss) { return loss.second.is_replaced; });
  return num_alive + static_cast<int>(num_replaced) + static_cast<int>(starts_.size());
}

std::string LostWorkers::lose(int worker, Replacements::Decision decision, Failure failure, int num_alive) {
  const bool is_replaced = decision != Replacements::Decision::kShrink;
  std::string note = cat(failure_text(failure), "rp-launch: ");
  if (decision == Replacements::Decision::kSetAside) {
    note += cat("this task has ended ", Replacements::kMaxDeathsPerTask,
                " workers and is not computed again; the run ends when everything before it is final\n");
  } else {
    const bool could_not_start = !is_replaced && has_reported_error(failure.status);
    const int left = num_left(num_alive);
    note += cat(could_not_start ? cat("worker ", worker, " cannot be replaced; ") : "",
                is_replaced ? "another process takes its place"
                            : cat("the run goes on with ", left, left == 1 ? " worker" : " workers"),
                "; what is not final is computed again, with the same result\n");
  }
  losses_.insert_or_assign(worker, Loss{.is_replaced = is_replaced, .failure = std::move(failure)});
  return note;
}

void LostWorkers::bring_back(int worker) {
  if (const auto loss = losses_.find(worker); loss != losses_.end()) {
    loss->second.is_replaced = true;
  } else {
    starts_.insert_or_assign(worker, Deadline::after_ns(0));
  }
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
  replacements_.forget_deaths();
  return failure;
}

}  // namespace rp
