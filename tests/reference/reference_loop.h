// tests/reference/reference_loop.h
// What a training run must compute, in the plainest form: one process, one thread of control, LibTorch's autograd over
// the whole model, one element at a time in the optimizer. It shares the layers and the loss with the runtime, and
// nothing else. A run of the pipeline must equal it bit for bit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "roundpipe/loss.h"
#include "roundpipe/model.h"
#include "roundpipe/optimizer.h"

namespace rp::reference {

// The batch of one round.
struct Round {
  Tensors inputs;
  Tensors arguments;
};

struct Settings {
  int num_microbatches = 1;
  int rounds_per_step = 1;
  bool asynchronous = false;  // step k computes its gradients with the weights of step max(0, k - 2)
  double max_grad_norm = 0;   // 0: no clipping
  AdamW rule;
};

struct Parameter {
  std::string name;     // "<layer index>.<name in the layer>" of the first use
  at::Tensor master;    // fp32
  at::Tensor moment1;
  at::Tensor moment2;
  at::Tensor working;   // the master, rounded to the model's dtype
};

struct Result {
  std::vector<double> losses;      // of each round: the sum over its microbatches, in fp64
  std::vector<double> grad_norms;  // of each step, before clipping
  std::vector<Parameter> parameters;  // after the last step, in layer order, tied ones once
};

// Trains `model` on the rounds, `rounds_per_step` of them per step.
// REQUIRES: whole steps; every batch has at least num_microbatches rows.
[[nodiscard]] Result train(const Model& model, const Loss& loss, const std::vector<Round>& rounds,
                           const Settings& settings);

// Part `index` of M: dimension 0 of every tensor is cut as equally as possible, the first parts being larger by one;
// scalars go to all.
[[nodiscard]] Tensors microbatch(const Tensors& batch, int index, int num_microbatches);

}  // namespace rp::reference
