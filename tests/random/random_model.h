// tests/random/random_model.h
// Draws a model, its settings and the calls that are made of it from one seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "roundpipe/pipeline.h"

namespace rp::test {

// One call of the pipeline.
struct RandomCall {
  enum class Kind {
    kForwardBackward,
    kOutside,  // forward(), the loss on the merged outputs in the coordinator, and backward() from there
    kDropped,  // forward() of a training round, without a backward pass
    kEvaluate,
    kStep,
  };
  Kind kind = Kind::kForwardBackward;
  std::vector<at::Tensor> inputs{};
  std::vector<at::Tensor> arguments{};
  int loss = 0;
  int num_microbatches = 0;
  bool input_gradients = false;  // for kOutside: of all floating-point inputs
  CallOptions options{};         // the same choices as the fields above, and options that change no bit
  AdamW rule{};                  // for kStep
  double max_grad_norm = 0;
};

struct RandomModel {
  // REQUIRES: every process uses the same seed.
  explicit RandomModel(std::uint64_t seed);

  std::uint64_t seed;
  Model model;
  // The same model for the reference loop, in which no weight is quantised: frozen weights are stored
  // in the model's dtype, with the values that the model's quantised ones expand to.
  Model reference;
  std::vector<Loss> losses;
  PipelineOptions options;
  bool is_by_row = true;         // no row depends on other rows or random numbers: no BatchNorm, no dropout
  bool computes_in_fp64 = true;  // false if there are decoder layers
  bool is_quantised = false;     // true if the model has quantised weights
  std::string description;

  // Draws the calls of whole steps. The first step does not clip and has beta1 = 0, so that moment1
  // is its gradient afterwards.
  [[nodiscard]] std::vector<RandomCall> draw_calls() const;

 private:
  friend class ModelBuilder;
  std::vector<std::int64_t> front_sizes_;  // sizes of the first input, without rows
  std::int64_t num_ids_ = 0;               // the first input has integers below this number; 0: floating point
  bool has_list_ = false;                  // the model's input is [x, skip, ids, aux]; otherwise [x]
  bool ids_enter_ = false;
  bool skip_enters_ = false;
  std::vector<std::int64_t> label_sizes_;  // sizes of the last x, without rows
  bool is_image_ = false;                  // true if the last x is an image
  int min_rows_ = 1;                       // minimum for a microbatch
  bool is_trained_ = true;
};

}  // namespace rp::test
