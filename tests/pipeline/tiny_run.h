// tests/pipeline/tiny_run.h
// Runs short trainings of a tiny Llama (tied weights, grouped queries) in this process, with one
// worker as a thread.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "roundpipe/models.h"
#include "roundpipe/pipeline.h"
#include "roundpipe/session.h"
#include "tests/common/temp_directory.h"
#include "tests/models/golden.h"
#include "tests/reference/reference_loop.h"

namespace rp::test {

// Rounds of seven sequences, which only 1 and 7 microbatches divide evenly; some tokens are not
// trained.
inline std::vector<reference::Round> tiny_rounds(int count) {
  at::manual_seed(5);
  std::vector<reference::Round> rounds;
  for (int i = 0; i < count; ++i) {
    const at::Tensor ids = at::randint(61, {7, 6}, at::kLong);
    const at::Tensor labels = at::randint(61, {7, 6}, at::kLong);
    labels.narrow(0, i % 7, 1).narrow(1, 0, 3).fill_(-100);
    rounds.push_back({{ids}, {labels, at::scalar_tensor(39.0)}});
  }
  return rounds;
}

struct TinySettings {
  at::ScalarType dtype = at::kFloat;
  PipelineOptions options;
  double max_grad_norm = 0;
  std::string plan = {};  // "": automatic
  bool prefetch = true;
  bool warm_up = false;
};

inline AdamW tiny_rule() { return {.learning_rate = 1e-3, .weight_decay = 0.1}; }

// A started session with its pipeline.
class TinyRun {
 public:
  explicit TinyRun(const TinySettings& settings) : settings_(settings) {
    SessionOptions options;
    options.prefetch = settings.prefetch;
    options.warm_up = settings.warm_up;
    if (!settings.plan.empty()) {
      // Created only if needed, because tests that end in a forked process do not remove it.
      options.plan = directory_.emplace().write("plan", settings.plan + "\n").string();
    }
    session_ = std::make_unique<Session>(0, nullptr, options);
    pipeline_ = std::make_unique<Pipeline>(*session_, models::load(models::tiny_directory(), settings.dtype),
                                           models::causal_lm_loss(), settings.options);
    session_->start();
  }

  // Trains on rounds [first, end) and appends their losses.
  void train(const std::vector<reference::Round>& rounds, std::size_t first, std::size_t end,
             std::vector<double>& losses) {
    std::vector<RoundResult> results;
    for (std::size_t i = first; i < end; ++i) {
      results.push_back(pipeline_->forward_backward(rounds[i].inputs, rounds[i].arguments));
      if ((i + 1) % static_cast<std::size_t>(settings_.options.rounds_per_step) == 0) {
        steps.push_back(pipeline_->step(
            tiny_rule(), {.asynchronous = settings_.options.asynchronous, .max_grad_norm = settings_.max_grad_norm}));
      }
    }
    pipeline_->synchronize();
    for (const RoundResult& result : results) losses.push_back(result.loss());
  }

  [[nodiscard]] Session& session() { return *session_; }
  [[nodiscard]] Pipeline& pipeline() { return *pipeline_; }
  std::vector<StepResult> steps;

 private:
  TinySettings settings_;
  std::optional<TempDirectory> directory_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Pipeline> pipeline_;
};

}  // namespace rp::test
