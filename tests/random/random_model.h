// tests/random/random_model.h
// A model, its settings and what is done with it, all drawn from one seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "roundpipe/pipeline.h"

namespace rp::test {

// What is asked of the pipeline, in order.
struct RandomCall {
  enum class Kind {
    kForwardBackward,
    kOutside,  // forward(), the loss on the merged outputs in the coordinator, backward() from there
    kDropped,  // forward() of a training round without a backward
    kEvaluate,
    kStep,
  };
  Kind kind = Kind::kForwardBackward;
  std::vector<at::Tensor> inputs{};
  std::vector<at::Tensor> arguments{};
  int loss = 0;
  int num_microbatches = 0;
  bool input_gradients = false;  // of kOutside: of all inputs of floating point
  CallOptions options{};         // which say the same, and what changes no bit
  AdamW rule{};                  // of kStep
  double max_grad_norm = 0;
};

struct RandomModel {
  // REQUIRES: the same in every process.
  explicit RandomModel(std::uint64_t seed);

  std::uint64_t seed;
  Model model;
  std::vector<Loss> losses;
  PipelineOptions options;
  bool is_by_row = true;  // no row's result depends on other rows, or on random numbers: neither BatchNorm nor dropout
  bool computes_in_fp64 = true;  // decoder layers do not
  std::string description;

  // Whole steps. The first one neither clips nor remembers (beta1 is 0), so that moment1 is its gradient then.
  [[nodiscard]] std::vector<RandomCall> draw_calls() const;

 private:
  friend class ModelBuilder;
  std::vector<std::int64_t> front_sizes_;  // of the first input, without rows
  std::int64_t num_ids_ = 0;               // the first input is integers below this; 0: floating point
  bool has_list_ = false;                  // [x, skip, ids, aux] enters, else [x]
  bool ids_enter_ = false;
  bool skip_enters_ = false;
  std::vector<std::int64_t> label_sizes_;  // of the last x, without rows
  bool is_image_ = false;                  // the last x
  int min_rows_ = 1;                       // of a microbatch
  bool is_trained_ = true;
};

}  // namespace rp::test
