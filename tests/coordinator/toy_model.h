// tests/coordinator/toy_model.h
// A model without LibTorch in which every number depends on all numbers before it, so it shows
// whether the protocol moved the right bytes. Layer: y = 0.75 x + 0.25 w x, element by element;
// loss: the sum of y * label. The first and the last layer can share a tied parameter u: y += 0.125
// u.
#pragma once

#include <cstring>
#include <ostream>
#include <random>
#include <stdexcept>
#include <vector>

#include "hoststore/catalogue.h"
#include "kernels/cpu/float16.h"
#include "optimizer/update.h"
#include "roundpipe/optimizer.h"
#include "scheduler/plan.h"
#include "worker/executor/stage_executor.h"

namespace rp::test {

struct ToyConfig {
  int num_layers = 5;
  int num_elements = 96;  // of an activation and of a weight
  int num_microbatches = 3;
  int num_steps = 5;
  int rounds_per_step = 1;
  int num_evaluations = 0;  // after each step
  bool tied = false;
  bool asynchronous = false;
  DType dtype = DType::kFloat32;
  double max_grad_norm = 0;
  int overflowing_step = 0;                      // a gradient of this step is infinite; needs clipping; 0: none
  bool scales_loss = false;                      // by powers of two, which must not change results
  ExitCode failure_code = ExitCode::kUserError;  // of the exception that the failing layer throws
  int failing_layer = -1;                        // this layer throws in the last microbatch of step 2; -1: none
};

// Returns a number from `low` to `high`.
[[nodiscard]] inline int draw(std::mt19937& random, int low, int high) {
  return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
}

// Describes a training, for the message of a failed test.
std::ostream& operator<<(std::ostream& out, const ToyConfig& config);

// Draws everything of a training except the loss scaling.
[[nodiscard]] ToyConfig random_toy_config(std::mt19937& random);

struct ToyResult {
  std::vector<double> losses;  // by round
  std::vector<double> norms;   // by step
  std::vector<float> masters;  // all weight groups
  bool operator==(const ToyResult&) const = default;
};

// Returns true if all numbers have the same bits, or are both NaN.
[[nodiscard]] bool same_numbers(const std::vector<double>& a, const std::vector<double>& b);

Catalogue toy_catalogue(const ToyConfig& config, NodePlace place = {}, Reduce reduce = Reduce::kMpi);
float toy_initial_weight(GroupId group, std::uint64_t element);
std::vector<float> toy_input(const ToyConfig& config, int round, int microbatch);
std::vector<float> toy_label(const ToyConfig& config, int round, int microbatch);
AdamW toy_rule();

// Returns what a run must compute, by a sequential loop in one thread.
ToyResult toy_reference(const ToyConfig& config);

class ToyExecutor : public StageExecutor {
 public:
  ToyExecutor(const ToyConfig& config, const Catalogue& catalogue) : config_(config), catalogue_(catalogue) {}
  void begin(const StageTask& task) override;
  void recompute(const StageTask& task, int microbatch, const MicrobatchInputs& inputs) override;
  void run(const StageTask& task, int microbatch, const MicrobatchInputs& inputs, MicrobatchOutputs& outputs) override;
  void end(const StageTask& task, TaskTotals& totals) override;

 private:
  struct LayerMemory {
    const std::byte* weight = nullptr;
    const std::byte* tied = nullptr;
    float* weight_sum = nullptr;
    float* tied_sum = nullptr;
  };
  ToyConfig config_;
  const Catalogue& catalogue_;
  [[nodiscard]] std::vector<float> values_of(const std::byte* weights) const;
  // Returns the input of each layer of a stage, and the output of the last one.
  [[nodiscard]] std::vector<std::vector<float>> run_forward(const StageTask& task, int microbatch,
                                                            const MicrobatchInputs& inputs) const;

  std::vector<LayerMemory> layers_;
  std::vector<std::vector<float>> recomputed_;
};

}  // namespace rp::test
