#include "pipeline/backward_node.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "pipeline/batch_split.h"
#include "pipeline/description/tensors.h"
#include "pipeline/packed_tensors.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

using torch::autograd::variable_list;

// Returns tensors with the shapes and dtypes of these, which occupy no memory.
Tensors shapes_of(const Tensors& tensors) {
  const c10::NoGradGuard no_grad;
  Tensors shapes;
  for (const at::Tensor& tensor : tensors) {
    shapes.push_back(tensor.defined() ? at::zeros({1}, tensor.scalar_type()).expand(tensor.sizes()) : tensor);
  }
  return shapes;
}

class BackwardNode : public torch::autograd::Node {
 public:
  BackwardNode(std::shared_ptr<OpenGraph> graph, const Tensors& inputs, const Split& split,
               const std::vector<Tensors>& microbatches, Merge merge)
      : Node(torch::autograd::collect_next_edges(inputs)),
        graph_(std::move(graph)),
        merge_(std::move(merge)),
        inputs_(shapes_of(inputs)),
        dimensions_(split.function ? std::vector<int>() : split_dimensions(inputs, split, "input")) {
    for (const Tensors& microbatch : microbatches) shapes_.push_back(shapes_of(microbatch));
  }

  [[nodiscard]] std::string name() const override { return "RoundPipeBackward"; }

  variable_list apply(variable_list&& gradients) override {
    const std::vector<Tensors> of_inputs = graph_->backward(split_gradients(gradients, shapes_, merge_));
    variable_list result(inputs_.size());
    for (std::size_t i = 0; i < result.size() && !of_inputs.empty(); ++i) {
      if (task_should_compute_output(i)) result[i] = input_gradient(of_inputs, i);
    }
    return result;
  }

  void release_variables() override {}  // the graph reports a second backward()

 private:
  // Joins the microbatches' gradients of an input. If the input was cut, they are put together in
  // the same way, with zeros for a microbatch that has none. If every microbatch got the whole
  // input, they are added.
  [[nodiscard]] at::Tensor input_gradient(const std::vector<Tensors>& of_inputs, std::size_t index) const {
    const at::Tensor whole = at::zeros(inputs_[index].sizes(), inputs_[index].options());
    const int dimension = dimensions_[index];
    std::vector<at::Tensor> parts;
    if (dimension != Split::kWhole) parts = whole.tensor_split(static_cast<std::int64_t>(of_inputs.size()), dimension);
    for (std::size_t m = 0; m < of_inputs.size(); ++m) {
      const at::Tensor& gradient = of_inputs[m].at(index);
      if (!gradient.defined()) continue;
      if (dimension == Split::kWhole) {
        whole.add_(gradient);
      } else {
        parts[m].copy_(gradient);
      }
    }
    return whole;
  }

  const std::shared_ptr<OpenGraph> graph_;
  std::vector<Tensors> shapes_;  // of the outputs, by microbatch; without memory
  const Merge merge_;
  Tensors inputs_;                     // without memory
  const std::vector<int> dimensions_;  // dimensions along which the inputs were cut
};

}  // namespace

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
  if (is_done_)
    refuse(
        "a second backward() through the same forward() of a pipeline: what it needs is freed by the first; call "
        "forward() again");
  if (round_->next_version != coordinator.pipeline_state(round_->traits.pipeline).version() + 1) {
    refuse(
        "backward() through a forward() of a pipeline that came before its last step() or load_state(): the weights "
        "are others now; call forward() again");
  }
  runtime->check_room_for_gradients(round_->traits.pipeline);
  is_done_ = true;
  std::vector<BlockContents> blocks;
  for (Tensors& microbatch : gradients) blocks.push_back({.tensors = views_of(microbatch)});
  coordinator.accept_backward(round_, blocks);
  if (!round_->traits.input_gradient) return {};
  return microbatches_of(
      PackedTensors(std::make_shared<PackedTensors::State>(runtime_, BlockOfRound{round_, {BlockKind::kGradient, 0}})));
}

Tensors join_graph(std::shared_ptr<OpenGraph> graph, const Tensors& inputs, const Split& split, Tensors outputs,
                   const std::vector<Tensors>& microbatches, const Merge& merge) {
  auto node = std::make_shared<BackwardNode>(std::move(graph), inputs, split, microbatches, merge);
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
