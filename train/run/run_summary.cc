#include "train/run/run_summary.h"

#include <cmath>

#include "common/text.h"
#include "train/output/number_text.h"
#include "train/output/progress.h"

namespace rp {

void RunSummary::add(const StepReport& report) {
  const Point point{report.step, report.loss};
  if (!first_) first_ = point;
  last_ = point;
  if (!best_ || point.loss < best_->loss) best_ = point;
  ++num_steps_;
  tokens_ += report.tokens;
  trained_tokens_ += report.trained_tokens;
  padded_tokens_ += report.padded_tokens;
}

void RunSummary::add(const EvaluationReport& report) {
  const Point point{report.step, report.loss};
  if (!first_evaluation_) first_evaluation_ = point;
  last_evaluation_ = point;
}

std::string RunSummary::text(const EvaluationRecord& record, double seconds) const {
  if (!first_) return "";
  const auto number = [](std::int64_t value) { return static_cast<long long>(value); };
  std::string text =
      formatted("loss %.4f at step %lld, %.4f at step %lld, lowest %.4f at step %lld", first_->loss,
                number(first_->step), last_->loss, number(last_->step), best_->loss, number(best_->step));
  if (last_evaluation_) {
    text += formatted("\nevaluation: loss %.4f after step %lld, %.4f (perplexity %.4g) after step %lld",
                      first_evaluation_->loss, number(first_evaluation_->step), last_evaluation_->loss,
                      std::exp(last_evaluation_->loss), number(last_evaluation_->step));
    if (first_evaluation_->step != last_evaluation_->step) {
      text += formatted(", %.1f %% lower", 100 * (1 - last_evaluation_->loss / first_evaluation_->loss));
    }
    text += formatted("; best %.4f after step %lld", record.best_loss, number(record.best_step));
  }
  const double computed = static_cast<double>(tokens_ + padded_tokens_);
  text += cat(
      "\n", grouped(tokens_), " tokens, ", grouped(trained_tokens_), " of them trained",
      formatted(", and %.1f %% padding", computed > 0 ? 100.0 * static_cast<double>(padded_tokens_) / computed : 0.0),
      ", in ", counted(num_steps_, "step", "steps"), " and ", duration_text(seconds),
      formatted(": %.0f tokens/s", static_cast<double>(tokens_) / seconds));
  return text;
}

}  // namespace rp
