#include "pipeline/backward_node.h"

#include <torch/csrc/autograd/functions/utils.h>

#include "common/text.h"
#include "pipeline/packed_tensors.h"
#include "pipeline/tensors.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

using torch::autograd::variable_list;

class BackwardNode : public torch::autograd::Node {
 public:
  BackwardNode(std::shared_ptr<OpenGraph> graph, torch::autograd::edge_list edges, const std::vector<Tensors>& microbatches,
               Merge merge, Split split, std::size_t num_inputs)
      : Node(std::move(edges)), graph_(std::move(graph)), merge_(std::move(merge)), split_(std::move(split)), num_inputs_(num_inputs) {
    for (const Tensors& microbatch : microbatches) {
      Tensors& shapes = shapes_.emplace_back();
      for (const at::Tensor& tensor : microbatch) {
        shapes.push_back(tensor.defined() ? placeholder(tensor.sizes(), tensor.scalar_type()) : tensor);
      }
    }
  }

  [[nodiscard]] std::string name() const override { return "RoundPipeBackward"; }

  variable_list apply(variable_list&& gradients) override {
    const std::vector<Tensors> of_inputs = graph_->backward(split_gradients(gradients, shapes_, merge_));
    variable_list result(num_inputs_);
    for (std::size_t i = 0; i < num_inputs_ && !of_inputs.empty(); ++i) {
      if (task_should_compute_output(i)) result[i] = input_gradient(of_inputs, i);
    }
    return result;
  }

  void release_variables() override {}  // a second backward() is told by the graph

 private:
  // The microbatches' gradients of an input: together again as it was cut, or added where all got it whole.
  [[nodiscard]] at::Tensor input_gradient(const std::vector<Tensors>& of_inputs, std::size_t index) const {
    std::vector<at::Tensor> parts;
    for (const Tensors& microbatch : of_inputs) {
      if (microbatch.at(index).defined()) parts.push_back(microbatch[index]);
    }
    if (parts.empty()) return {};
    const bool by_default = split_.dimensions.empty();
    const int dimension = by_default ? (parts.front().dim() > 0 ? 0 : Split::kWhole) : split_.dimensions.at(index);
    return dimension == Split::kWhole ? at::stack(parts).sum(0) : at::cat(parts, dimension);
  }

  const std::shared_ptr<OpenGraph> graph_;
  std::vector<Tensors> shapes_;  // of the outputs, by microbatch; without memory
  const Merge merge_;
  const Split split_;
  const std::size_t num_inputs_;
};

}  // namespace

void check_room_for_gradients(const Coordinator& coordinator, int pipeline, int rounds_per_step) {
  if (coordinator.rounds_since_step(pipeline) < rounds_per_step) return;
  throw Error(ExitCode::kUsage, cat("rounds_per_step is ", rounds_per_step, ": call step() before round ", rounds_per_step + 1));
}

OpenGraph::~OpenGraph() {
  if (const std::shared_ptr<Runtime> runtime = runtime_.lock()) {
    if (Coordinator* coordinator = runtime->coordinator_if_started()) coordinator->drop_graph(round_);
  }
}

std::vector<Tensors> OpenGraph::backward(std::vector<Tensors> gradients) {
  const auto refuse = [](const char* what) { throw Error(ExitCode::kUsage, what); };
  const std::shared_ptr<Runtime> runtime = runtime_.lock();
  if (!runtime) refuse("backward() through a pipeline after the end of its session");
  Coordinator& coordinator = runtime->coordinator();
  if (is_done_) refuse("a second backward() through the same forward() of a pipeline: what it needs is freed by the first; call forward() again");
  if (round_->step != coordinator.num_steps(round_->traits.pipeline) + 1) {
    refuse("backward() through a forward() of a pipeline that came before its last step(): the weights are others now; call forward() again");
  }
  check_room_for_gradients(coordinator, round_->traits.pipeline, rounds_per_step_);
  is_done_ = true;
  std::vector<BlockContents> blocks;
  for (Tensors& microbatch : gradients) blocks.push_back({.tensors = views_of(microbatch)});
  coordinator.accept_backward(round_, blocks);
  if (!round_->traits.input_gradient) return {};
  return microbatches_of(PackedTensors(std::make_shared<PackedTensors::State>(runtime_, BlockOfRound{round_, {BlockKind::kGradient, 0}})));
}

Tensors join_graph(std::shared_ptr<OpenGraph> graph, const Tensors& inputs, const Split& split, Tensors outputs,
                   const std::vector<Tensors>& microbatches, const Merge& merge) {
  auto node = std::make_shared<BackwardNode>(std::move(graph), torch::autograd::collect_next_edges(inputs), microbatches, merge,
                                             split, inputs.size());
  for (at::Tensor& output : outputs) {
    if (output.defined() && at::isFloatingType(output.scalar_type())) {
      torch::autograd::set_history(output, node);
    } else {
      node->add_input_metadata(torch::autograd::Node::undefined_input());
    }
  }
  return outputs;
}

}  // namespace rp
