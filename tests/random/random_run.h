// tests/random/random_run.h
// A random model in a session's pipeline, beside the reference loop.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "roundpipe/pipeline.h"
#include "tests/random/random_model.h"
#include "tests/reference/reference_loop.h"

namespace rp::test {

class RandomRun {
 public:
  // Before Session::start().
  RandomRun(Session& session, std::uint64_t seed);
  RandomRun(const RandomRun&) = delete;
  RandomRun& operator=(const RandomRun&) = delete;

  [[nodiscard]] const RandomModel& model() const { return model_; }

  // In the coordinator, after the start:
  // Makes the next call. What it gives is waited for only where the call itself does.
  void make_next_call();
  [[nodiscard]] bool is_done() const { return records_.size() == calls_.size(); }
  [[nodiscard]] bool has_made_first_step() const { return records_.size() > first_step_; }
  // Waits, and keeps the first step's gradient. REQUIRES: the first step is the last call.
  void keep_gradients();

  // Waits until all calls that were made are computed.
  void wait() { pipeline_.synchronize(); }

  // When all calls are made and computed: does the same in the reference loop. Returns what differs, in lines; empty if
  // nothing.
  [[nodiscard]] std::string compare_with_loop();

  // ||g - g64|| / ||g64|| of the first step's gradient, and the same of plain autograd over whole batches in the
  // model's dtype. Nothing where that says nothing: a model that is not by row, that does not compute in fp64, or
  // without a gradient.
  struct Precision {
    double ours = 0;
    double plain = 0;
  };
  [[nodiscard]] std::optional<Precision> precision() const;

  // The same, as the root mean square over batches whose numbers differ from the first step's in their last digits:
  // what rounding does to a model, without the chance of one batch. Our side is the loop's, whose bits are ours.
  // REQUIRES: precision() gives something.
  [[nodiscard]] Precision precision_near(int num_batches) const;

 private:
  struct Record {
    std::optional<RoundResult> result{};
    std::optional<StepResult> step{};
    std::vector<double> losses{};  // of a loss outside
    Tensors outputs{};
    Tensors input_gradients{};
  };

  [[nodiscard]] Record call_pipeline(const RandomCall& call);
  [[nodiscard]] Record call_outside(const RandomCall& call);
  [[nodiscard]] reference::LoopOptions loop_options() const;
  [[nodiscard]] Record call_loop(reference::Loop& loop, const RandomCall& call) const;
  [[nodiscard]] Record call_loop_outside(reference::Loop& loop, const RandomCall& call) const;
  [[nodiscard]] std::vector<double> loss_outside(const RandomCall& call, const Tensors& outputs) const;
  [[nodiscard]] std::vector<at::Tensor> whole_gradients(const std::vector<RandomCall>& first_step,
                                                        at::ScalarType dtype) const;
  [[nodiscard]] std::vector<at::Tensor> loop_gradients(const std::vector<RandomCall>& first_step) const;
  void compare(const std::string& what, const Tensors& ours, const Tensors& expected, std::string& differences) const;

  RandomModel model_;
  Pipeline pipeline_;
  std::vector<RandomCall> calls_;
  std::size_t first_step_ = 0;
  std::vector<Record> records_;
  std::vector<at::Tensor> gradients_;  // of the first step, fp64
};

}  // namespace rp::test
