// tests/reference/reference_loop.h
// Computes what a training run must compute, in the plainest form: one process, one thread,
// LibTorch's autograd over the whole model, and an optimizer that goes element by element. It
// shares the layers, the losses and the key of random numbers with the runtime, and nothing else. A
// run of the pipeline must have the same bits.
//
// Where floating point leaves a choice, the result is defined as follows:
// - Tensors that cross a border between two layers are dense in memory, forward and backward.
// - Each parameter is one leaf for each layer that uses it. A leaf adds up its gradients in fp32,
//   microbatches 0 to M - 1; the sum of each round is rounded to the model's dtype once.
// - A step's gradient is the sum over the uses in layer order of each use's fp32 sum over its
//   rounds in order.
// - The correction of a router has the loads of its experts as its gradient, and a rule of its own. It is
//   in no norm.
// - Each call is one task of every layer: begin_task() before it, end_task() behind it.
// - Buffers change once per microbatch of a training round, in order. Evaluations change nothing.
// - Layer l of microbatch m draws its random numbers from random_seed(seed, round, l, m). Training
//   rounds are counted from 0, including those without a backward pass. Layers draw no random
//   numbers in evaluations.
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
  Tensors arguments{};  // the loss's arguments
};

struct LoopOptions {
  int num_microbatches = 1;
  bool asynchronous = false;  // true: step k uses the weights of step max(0, k - 2); false: of step k - 1
  std::uint64_t seed = 0;
};

struct Parameter {
  std::string name;   // "<layer index>.<name in the layer>" of the first use
  at::Tensor master;  // fp32; master and moments are undefined if it is frozen
  at::Tensor moment1;
  at::Tensor moment2;
  at::Tensor working;  // the master, rounded to the model's dtype; or a frozen parameter in the dtype that it keeps
};

struct Buffer {
  std::string name;  // in the form of Parameter::name
  at::Tensor value;
};

// A training round between its forward and its backward pass, with one list for each microbatch.
struct OpenRound {
  std::vector<Tensors> inputs;
  std::vector<Tensors> outputs;
};

// A model in training. The calls have the meaning of those of Pipeline. `num_microbatches` of a
// call: 0 selects the number in LoopOptions.
class Loop {
 public:
  Loop(const Model& model, std::vector<Loss> losses, const LoopOptions& options);
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  struct Outcome {
    std::vector<double> losses;    // for each number that the loss returns: the sum over the microbatches, in fp64
    std::vector<Tensors> outputs;  // of the last layer, by microbatch
  };
  Outcome forward_backward(const Round& round, int loss = 0, int num_microbatches = 0);

  // Runs an evaluation and returns the outputs by microbatch.
  std::vector<Tensors> evaluate(const Tensors& inputs, int num_microbatches = 0);

  // Run the forward pass of a training round whose loss is computed outside, and the backward pass
  // from the gradients of the outputs. backward() returns the gradients of the inputs if forward()
  // was called with `input_gradients`. A round may be dropped instead of run backward. REQUIRES: no
  // other round in between.
  OpenRound forward(const Tensors& inputs, int num_microbatches = 0, bool input_gradients = false);
  std::vector<Tensors> backward(const OpenRound& round, const std::vector<Tensors>& gradients);

  // Updates the weights with the gradients since the last step, and returns the norm of the
  // gradients. With clipping, a step whose norm is not finite changes nothing.
  double step(const AdamW& rule, double max_grad_norm = 0, double router_bias_update_rate = 0);

  // Makes evaluations until the next step compute with the newest weights, also in an asynchronous
  // run.
  void synchronize();

  // In layer order; tied parameters appear once. The results are views, which change with the next
  // step or round.
  [[nodiscard]] std::vector<Parameter> parameters() const;
  [[nodiscard]] std::vector<Buffer> buffers() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Makes one step of AdamW on one parameter, with the arithmetic of optimizer/update.h and one
// rounding per operation. `gradient` is fp32; `step` counts from 1.
void adamw(const Parameter& parameter, const at::Tensor& gradient, const AdamW& rule, std::int64_t step,
           double gradient_scale = 1);

// Returns the outputs of the microbatches as one list: concatenated along dimension 0; absent
// tensors stay absent.
[[nodiscard]] Tensors concatenated(const std::vector<Tensors>& microbatches);

// Returns part `index` of num_microbatches parts. Dimension 0 of every tensor is cut as evenly as
// possible, with the first parts larger by one. Scalars are in all parts.
[[nodiscard]] Tensors microbatch(const Tensors& batch, int index, int num_microbatches);

// The settings of a whole run of forward_backward() and step().
struct Settings {
  int num_microbatches = 1;
  int rounds_per_step = 1;
  bool asynchronous = false;
  double max_grad_norm = 0;            // 0: no clipping
  double router_bias_update_rate = 0;  // of corrections that are trained
  AdamW rule;
};

struct Result {
  std::vector<double> losses;         // by round: the sum over its microbatches, in fp64
  std::vector<double> grad_norms;     // by step, before clipping
  std::vector<Parameter> parameters;  // after the last step
};

// Trains `model` on the rounds, `rounds_per_step` of them per step. REQUIRES: the number of rounds
// is a multiple of rounds_per_step; every batch has at least num_microbatches rows.
[[nodiscard]] Result train(const Model& model, const Loss& loss, const std::vector<Round>& rounds,
                           const Settings& settings);

}  // namespace rp::reference
