// pipeline/backward_node.h
// The place of a pipeline's forward in autograd's graph: its backward runs the pipeline's backward stages.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <vector>

#include "pipeline/runtime.h"
#include "roundpipe/batch.h"

namespace rp {

// A round whose backward may still come; dropped with the last owner.
class OpenGraph {
 public:
  OpenGraph(std::weak_ptr<Runtime> runtime, std::shared_ptr<Round> round)
      : runtime_(std::move(runtime)), round_(std::move(round)) {}
  ~OpenGraph();
  OpenGraph(const OpenGraph&) = delete;
  OpenGraph& operator=(const OpenGraph&) = delete;

  // Runs the backward for the outputs' gradients, by microbatch; waits for the gradients of the inputs, by microbatch,
  // if the round gives them. Throws rp::Error (kUsage) for a second backward, one after a step, one after the session.
  [[nodiscard]] std::vector<Tensors> backward(std::vector<Tensors> gradients);

 private:
  const std::weak_ptr<Runtime> runtime_;
  const std::shared_ptr<Round> round_;
  bool is_done_ = false;
};

// `outputs`: what merge() made of `microbatches`. Makes them part of autograd's graph, behind `inputs`, of which the
// first ones are the tensors of the call's batch. Returns them.
[[nodiscard]] Tensors join_graph(std::shared_ptr<OpenGraph> graph, const Tensors& inputs, const Split& split,
                                 Tensors outputs, const std::vector<Tensors>& microbatches, const Merge& merge);

}  // namespace rp
