// tests/reference/reference_loop.h
// What a training run must compute, in the plainest form: one process, one thread of control, LibTorch's autograd over
// the whole model, one element at a time in the optimizer. It shares the layers, the losses and the key of random
// numbers with the runtime, and nothing else. A run of the pipeline must equal it bit for bit.
//
// What is meant, where floating point leaves a choice:
// - What crosses a border between two layers is dense in memory, forward and backward.
// - Each parameter is one leaf for each layer that uses it. A leaf adds up its gradients in fp32, microbatches 0 to M -
// 1;
//   each round's sum is rounded to the model's dtype once.
// - A step's gradient is: for each use the fp32 sum over its rounds in order, and those added in layer order.
// - Buffers change once per microbatch of a training round, in order; an evaluation changes nothing.
// - Layer l of microbatch m draws its random numbers from random_seed(seed, round, l, m), rounds of training counted
// from
//   0, those without a backward too. Layers draw none in evaluations.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "roundpipe/loss.h"
#include "roundpipe/model.h"
#include "roundpipe/optimizer.h"

namespace rp::reference {

// The batch of one round.
struct Round {
  Tensors inputs;
  Tensors arguments{};  // of the loss
};

struct LoopOptions {
  int num_microbatches = 1;
  bool asynchronous = false;  // step k computes its gradients with the weights of step max(0, k - 2), else k - 1
  std::uint64_t seed = 0;
};

struct Parameter {
  std::string name;   // "<layer index>.<name in the layer>" of the first use
  at::Tensor master;  // fp32; undefined if frozen, as the moments
  at::Tensor moment1;
  at::Tensor moment2;
  at::Tensor working;  // the master, rounded to the model's dtype
};

struct Buffer {
  std::string name;  // as a parameter's
  at::Tensor value;
};

// A training round between its forward and its backward; one list for each microbatch.
struct OpenRound {
  std::vector<Tensors> inputs;
  std::vector<Tensors> outputs;
};

// A model in training. Calls mean what those of Pipeline mean. `num_microbatches` of a call: 0 for the loop's own.
class Loop {
 public:
  Loop(const Model& model, std::vector<Loss> losses, const LoopOptions& options);
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  struct Outcome {
    std::vector<double> losses;    // each number that the loss gives: the sum over the microbatches, in fp64
    std::vector<Tensors> outputs;  // of the last layer, by microbatch
  };
  Outcome forward_backward(const Round& round, int loss = 0, int num_microbatches = 0);

  // An evaluation: the outputs by microbatch.
  std::vector<Tensors> evaluate(const Tensors& inputs, int num_microbatches = 0);

  // The forward of a training round whose loss is computed outside, and its backward from the gradients of the outputs,
  // which gives those of the inputs (asked for with `input_gradients`). A round may be dropped instead.
  // REQUIRES: no other round in between.
  OpenRound forward(const Tensors& inputs, int num_microbatches = 0, bool input_gradients = false);
  std::vector<Tensors> backward(const OpenRound& round, const std::vector<Tensors>& gradients);

  // Updates the weights with the gradients since the last step; returns their norm. With clipping a step whose norm is
  // not finite changes nothing.
  double step(const AdamW& rule, double max_grad_norm = 0);

  // Evaluations until the next step compute with the newest weights, also in an asynchronous run.
  void synchronize();

  // In layer order, tied parameters once. Views: they change with the next step or round.
  [[nodiscard]] std::vector<Parameter> parameters() const;
  [[nodiscard]] std::vector<Buffer> buffers() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// One step of AdamW on one parameter: the arithmetic of optimizer/update.h, one rounding per operation. `gradient` is
// fp32, `step` counts from 1.
void adamw(const Parameter& parameter, const at::Tensor& gradient, const AdamW& rule, std::int64_t step,
           double gradient_scale = 1);

// The outputs of the microbatches as one list: concatenated along dimension 0, absent ones absent.
[[nodiscard]] Tensors concatenated(const std::vector<Tensors>& microbatches);

// Part `index` of M: dimension 0 of every tensor is cut as equally as possible, the first parts being larger by one;
// scalars go to all.
[[nodiscard]] Tensors microbatch(const Tensors& batch, int index, int num_microbatches);

// A whole run of forward_backward() and step().
struct Settings {
  int num_microbatches = 1;
  int rounds_per_step = 1;
  bool asynchronous = false;
  double max_grad_norm = 0;  // 0: no clipping
  AdamW rule;
};

struct Result {
  std::vector<double> losses;         // of each round: the sum over its microbatches, in fp64
  std::vector<double> grad_norms;     // of each step, before clipping
  std::vector<Parameter> parameters;  // after the last step
};

// Trains `model` on the rounds, `rounds_per_step` of them per step.
// REQUIRES: whole steps; every batch has at least num_microbatches rows.
[[nodiscard]] Result train(const Model& model, const Loss& loss, const std::vector<Round>& rounds,
                           const Settings& settings);

}  // namespace rp::reference
