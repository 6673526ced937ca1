// pipeline/backward_node.h
// Connects a pipeline's forward to autograd's graph: the backward of the graph node runs the
// pipeline's backward stages.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <vector>

#include "pipeline/runtime.h"
#include "roundpipe/batch.h"

namespace rp {

// A round whose backward may still come. The last owner drops the round.
class OpenGraph {
 public:
  OpenGraph(std::weak_ptr<Runtime> runtime, std::shared_ptr<Round> round)
      : runtime_(std::move(runtime)), round_(std::move(round)) {}
  ~OpenGraph();
  OpenGraph(const OpenGraph&) = delete;
  OpenGraph& operator=(const OpenGraph&) = delete;

  // Runs the backward for the gradients of the outputs, by microbatch. If the round computes
  // gradients of its inputs, waits for them and returns them, by microbatch. Throws rp::Error
  // (kUsage) for a second backward, for one after a step, and for one after the end of the session.
  [[nodiscard]] std::vector<Tensors> backward(std::vector<Tensors> gradients);

 private:
  const std::weak_ptr<Runtime> runtime_;
  const std::shared_ptr<Round> round_;
  bool is_done_ = false;
};

// Makes `outputs`, which merge() made of `microbatches`, part of autograd's graph and returns them.
// In the graph they depend on `inputs`, the first of which are the tensors of the call's batch.
[[nodiscard]] Tensors join_graph(std::shared_ptr<OpenGraph> graph, const Tensors& inputs, const Split& split,
                                 Tensors outputs, const std::vector<Tensors>& microbatches, const Merge& merge);

}  // namespace rp
