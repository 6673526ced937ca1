// tests/random/random_run.h
// Runs a random model in a pipeline of a session, and in the reference loop.
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
  // Must be called before Session::start(). The other methods are for the coordinator, after the
  // start.
  RandomRun(Session& session, std::uint64_t seed);
  RandomRun(const RandomRun&) = delete;
  RandomRun& operator=(const RandomRun&) = delete;

  [[nodiscard]] const RandomModel& model() const { return model_; }

  // Makes the next call. Waits for its results only if the call itself does.
  void make_next_call();
  [[nodiscard]] bool is_done() const { return records_.size() == calls_.size(); }
  [[nodiscard]] bool has_made_first_step() const { return records_.size() > first_step_; }
  // Waits for the first step and keeps its gradient. REQUIRES: the first step is the last call that
  // was made.
  void keep_gradients();

  // Blocks until all calls that were made are computed.
  void wait() { pipeline_.synchronize(); }

  // Makes the same calls in the reference loop and compares the results. Returns a text with one
  // line for each difference; empty if there is none. REQUIRES: all calls are made and computed.
  [[nodiscard]] std::string compare_with_loop();

  // Returns ||g - g64|| / ||g64|| for the first step's gradient, and the same for plain autograd
  // over whole batches in the model's dtype. Returns nothing if the comparison is meaningless: for
  // a model that is not by row or does not compute in fp64, or without a gradient.
  struct Precision {
    double ours = 0;
    double plain = 0;
  };
  [[nodiscard]] std::optional<Precision> precision() const;

  // Returns the same as precision(), as the root mean square over batches whose numbers differ from
  // those of the first step in their last digits: the effect of rounding on the model, without the
  // chance of one batch. The gradient `ours` is computed by the loop, which has the same bits.
  // REQUIRES: precision() returns a value.
  [[nodiscard]] Precision precision_near(int num_batches) const;

 private:
  struct Record {
    std::optional<RoundResult> result{};
    std::optional<StepResult> step{};
    std::vector<double> losses{};  // if the loss is computed outside
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
  // Returns the bytes with which a quantised parameter of the pipeline begins.
  [[nodiscard]] at::Tensor initial_bytes(const std::string& parameter, at::IntArrayRef sizes) const;
  void compare(const std::string& what, const Tensors& ours, const Tensors& expected, std::string& differences) const;

  RandomModel model_;
  Pipeline pipeline_;
  std::vector<RandomCall> calls_;
  std::size_t first_step_ = 0;
  std::vector<Record> records_;
  std::vector<at::Tensor> gradients_;  // of the first step, in fp64
};

}  // namespace rp::test
