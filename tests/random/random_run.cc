#include "tests/random/random_run.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/text.h"
#include "roundpipe/session.h"
#include "tests/random/draw.h"
#include "tests/reference/whole_batch.h"

namespace rp::test {

namespace {

using Kind = RandomCall::Kind;

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         std::memcmp(a.contiguous().const_data_ptr(), b.contiguous().const_data_ptr(), a.nbytes()) == 0;
}

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "absent";
  if (tensor.numel() == 0) return "empty";
  return cat(at::toString(tensor.scalar_type()), " of ", tensor.numel(), ", |x| ",
             tensor.to(at::kDouble).square().sum().sqrt().item<double>());
}

bool is_number(const at::Tensor& tensor) { return tensor.defined() && at::isFloatingType(tensor.scalar_type()); }

// Returns the inputs as separate leaves, so that each call on either side has gradients of its own.
Tensors leaves_of(const RandomCall& call) {
  Tensors leaves;
  for (const at::Tensor& input : call.inputs) {
    leaves.push_back(input.defined() ? input.detach() : input);
    if (call.input_gradients && is_number(input)) leaves.back().requires_grad_(true);
  }
  return leaves;
}

Tensors detached(Tensors tensors) {
  for (at::Tensor& tensor : tensors) {
    if (tensor.defined()) tensor = tensor.detach();
  }
  return tensors;
}

// For an input that affects no output, plain autograd returns no gradient, and the pipeline's node
// returns zeros.
Tensors gradients_of(const Tensors& leaves) {
  Tensors gradients;
  for (const at::Tensor& leaf : leaves) {
    if (leaf.defined() && leaf.requires_grad())
      gradients.push_back(leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf));
  }
  return gradients;
}

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kForwardBackward: return "forward_backward";
    case Kind::kOutside: return "loss outside";
    case Kind::kDropped: return "dropped forward";
    case Kind::kEvaluate: return "evaluation";
    case Kind::kStep: return "step";
  }
  return "";
}

}  // namespace

RandomRun::RandomRun(Session& session, std::uint64_t seed)
    : model_(seed), pipeline_(session, model_.model, model_.losses, model_.options), calls_(model_.draw_calls()) {
  const auto step =
      std::find_if(calls_.begin(), calls_.end(), [](const RandomCall& call) { return call.kind == Kind::kStep; });
  first_step_ = static_cast<std::size_t>(step - calls_.begin());
}

// The pipeline's side

void RandomRun::make_next_call() { records_.push_back(call_pipeline(calls_[records_.size()])); }

RandomRun::Record RandomRun::call_pipeline(const RandomCall& call) {
  switch (call.kind) {
    case Kind::kForwardBackward:
      return {.result = pipeline_.forward_backward(call.inputs, call.arguments, call.options)};
    case Kind::kOutside: return call_outside(call);
    case Kind::kDropped: return {.outputs = detached(pipeline_.forward(call.inputs, call.options))};
    case Kind::kEvaluate: {
      const c10::NoGradGuard no_grad;
      return {.outputs = pipeline_.forward(call.inputs, call.options)};
    }
    case Kind::kStep:
      return {.step = pipeline_.step(
                  call.rule, {.asynchronous = model_.options.asynchronous, .max_grad_norm = call.max_grad_norm})};
  }
  return {};
}

std::vector<double> RandomRun::loss_outside(const RandomCall& call, const Tensors& outputs) const {
  std::vector<double> losses;
  Tensors roots;
  for (const at::Tensor& number : model_.losses[call.loss].function(outputs, call.arguments)) {
    losses.push_back(number.item<double>());
    if (number.requires_grad()) roots.push_back(number);
  }
  if (!roots.empty()) torch::autograd::backward(roots);
  return losses;
}

RandomRun::Record RandomRun::call_outside(const RandomCall& call) {
  const Tensors leaves = leaves_of(call);
  const Tensors outputs = pipeline_.forward(leaves, call.options);
  Record record{.losses = loss_outside(call, outputs), .outputs = detached(outputs)};
  record.input_gradients = gradients_of(leaves);
  return record;
}

void RandomRun::keep_gradients() {
  pipeline_.synchronize();
  for (const ParameterState& parameter : pipeline_.parameters()) {
    if (parameter.moment1.defined()) gradients_.push_back(parameter.moment1.to(at::kDouble));
  }
}

// The loop's side

RandomRun::Record RandomRun::call_loop_outside(reference::Loop& loop, const RandomCall& call) const {
  const reference::OpenRound round = loop.forward(call.inputs, call.num_microbatches, call.input_gradients);
  Tensors outputs = reference::concatenated(round.outputs);
  for (const at::Tensor& output : outputs) {
    if (is_number(output)) output.requires_grad_(true);
  }
  Record record{.losses = loss_outside(call, outputs), .outputs = detached(outputs)};
  Tensors gradients;
  for (const at::Tensor& output : outputs) gradients.push_back(is_number(output) ? output.grad() : at::Tensor());
  std::vector<Tensors> parts;
  for (int m = 0; m < call.num_microbatches; ++m)
    parts.push_back(reference::microbatch(gradients, m, call.num_microbatches));
  const std::vector<Tensors> of_inputs = loop.backward(round, parts);
  for (std::size_t i = 0; call.input_gradients && i < call.inputs.size(); ++i) {
    if (!is_number(call.inputs[i])) continue;
    std::vector<at::Tensor> gradient;
    for (std::size_t m = 0; m < of_inputs.size(); ++m) {
      gradient.push_back(of_inputs[m][i].defined() ? of_inputs[m][i] : at::zeros_like(round.inputs[m][i]));
    }
    record.input_gradients.push_back(at::cat(gradient));
  }
  return record;
}

reference::LoopOptions RandomRun::loop_options() const {
  return {.num_microbatches = model_.options.num_microbatches,
          .asynchronous = model_.options.asynchronous,
          .seed = model_.options.seed};
}

RandomRun::Record RandomRun::call_loop(reference::Loop& loop, const RandomCall& call) const {
  switch (call.kind) {
    case Kind::kForwardBackward: {
      const auto outcome = loop.forward_backward({call.inputs, call.arguments}, call.loss, call.num_microbatches);
      return {.losses = outcome.losses, .outputs = reference::concatenated(outcome.outputs)};
    }
    case Kind::kOutside: return call_loop_outside(loop, call);
    case Kind::kDropped:
      return {.outputs = reference::concatenated(loop.forward(call.inputs, call.num_microbatches).outputs)};
    case Kind::kEvaluate:
      return {.outputs = reference::concatenated(loop.evaluate(call.inputs, call.num_microbatches))};
    case Kind::kStep: return {.losses = {loop.step(call.rule, call.max_grad_norm)}};
  }
  return {};
}

// Comparison

void RandomRun::compare(const std::string& what, const Tensors& ours, const Tensors& expected,
                        std::string& differences) const {
  if (ours.size() != expected.size()) {
    differences += cat("  ", what, ": ", ours.size(), " tensors, expected ", expected.size(), "\n");
    return;
  }
  for (std::size_t i = 0; i < ours.size(); ++i) {
    if (same_bits(ours[i], expected[i])) continue;
    differences += cat("  ", what, ", tensor ", i, ": ", describe(ours[i]), ", expected ", describe(expected[i]));
    if (ours[i].defined() && expected[i].defined() && ours[i].sizes() == expected[i].sizes()) {
      differences += cat(", at most ",
                         (ours[i].to(at::kDouble) - expected[i].to(at::kDouble)).abs().max().item<double>(), " apart");
    }
    differences += "\n";
  }
}

at::Tensor RandomRun::initial_bytes(const std::string& parameter, at::IntArrayRef sizes) const {
  const at::Tensor bytes = at::empty(sizes, at::kByte);
  model_.model.layers()[std::stoul(parameter)].initialize(parameter.substr(parameter.find('.') + 1), bytes);
  return bytes;
}

std::string RandomRun::compare_with_loop() {
  std::string differences;
  reference::Loop loop(model_.reference, model_.losses, loop_options());
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    const RandomCall& call = calls_[i];
    const Record expected = call_loop(loop, call);
    Record& ours = records_[i];
    const std::string what = cat("call ", i, ", ", name_of(call.kind));
    if (call.kind == Kind::kStep) {
      const double norm = ours.step->grad_norm();
      if (!(std::abs(norm - expected.losses[0]) <= 1e-12 * norm)) {
        differences += cat("  ", what, ": norm ", norm, ", expected ", expected.losses[0], "\n");
      }
      if (i == first_step_) loop.synchronize();
      continue;
    }
    if (ours.result) ours.losses = ours.result->losses();
    if (ours.losses != expected.losses) differences += cat("  ", what, ": other losses\n");
    if (ours.result && call.options.return_outputs) ours.outputs = ours.result->outputs();
    if (!ours.result || call.options.return_outputs)
      compare(what + ", outputs", ours.outputs, expected.outputs, differences);
    compare(what + ", gradients of inputs", ours.input_gradients, expected.input_gradients, differences);
  }
  const std::vector<BufferState> buffers = pipeline_.buffers();  // synchronizes
  const std::vector<ParameterState> parameters = pipeline_.parameters();
  const std::vector<reference::Buffer> loop_buffers = loop.buffers();
  const std::vector<reference::Parameter> loop_parameters = loop.parameters();
  if (buffers.size() != loop_buffers.size() || parameters.size() != loop_parameters.size()) {
    return differences + "  another number of parameters or buffers\n";
  }
  for (std::size_t i = 0; i < buffers.size(); ++i)
    compare("buffer " + buffers[i].name, {buffers[i].value}, {loop_buffers[i].value}, differences);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const ParameterState& p = parameters[i];
    const reference::Parameter& e = loop_parameters[i];
    if (p.name != e.name) differences += cat("  parameter ", p.name, ", expected ", e.name, "\n");
    const bool is_quantised = p.working.scalar_type() == at::kByte && e.working.scalar_type() != at::kByte;
    compare(cat("parameter ", p.name, " (master, moments, working)"), {p.master, p.moment1, p.moment2, p.working},
            {e.master, e.moment1, e.moment2, is_quantised ? initial_bytes(p.name, p.working.sizes()) : e.working},
            differences);
  }
  return differences;
}

// The gradient

std::vector<at::Tensor> RandomRun::whole_gradients(const std::vector<RandomCall>& first_step,
                                                   at::ScalarType dtype) const {
  std::vector<reference::WholeRound> rounds;
  for (const RandomCall& call : first_step) {
    const bool trains = call.kind == Kind::kForwardBackward || call.kind == Kind::kOutside;
    if (trains) rounds.push_back({{call.inputs, call.arguments}, call.loss});
  }
  return reference::whole_batch_gradients(model_.reference, model_.losses, rounds, dtype);
}

std::vector<at::Tensor> RandomRun::loop_gradients(const std::vector<RandomCall>& first_step) const {
  reference::Loop loop(model_.reference, model_.losses, loop_options());
  for (const RandomCall& call : first_step) (void)call_loop(loop, call);
  std::vector<at::Tensor> gradients;
  for (const reference::Parameter& parameter : loop.parameters()) {
    if (parameter.moment1.defined()) gradients.push_back(parameter.moment1.to(at::kDouble));
  }
  return gradients;
}

std::optional<RandomRun::Precision> RandomRun::precision() const {
  if (!model_.is_by_row || !model_.computes_in_fp64) return std::nullopt;
  const std::vector<RandomCall> first_step(calls_.begin(),
                                           calls_.begin() + static_cast<std::ptrdiff_t>(first_step_) + 1);
  const std::vector<at::Tensor> exact = whole_gradients(first_step, at::kDouble);
  if (std::all_of(exact.begin(), exact.end(),
                  [](const at::Tensor& g) { return g.count_nonzero().item<std::int64_t>() == 0; })) {
    return std::nullopt;
  }
  const std::vector<at::Tensor> plain = whole_gradients(first_step, model_.model.dtype());
  return Precision{reference::relative_error(gradients_, exact), reference::relative_error(plain, exact)};
}

RandomRun::Precision RandomRun::precision_near(int num_batches) const {
  Draw draw(model_.seed + 2'000'003);
  const double epsilon = model_.model.dtype() == at::kFloat ? 0x1p-23 : 0x1p-7;
  const auto nudge = [&](at::Tensor& x) {
    if (is_number(x))
      x = (x.to(at::kDouble) * (1 + 4 * epsilon * draw.normal(x.sizes()).to(at::kDouble))).to(x.scalar_type());
  };
  Precision squares;
  for (int batch = 0; batch < num_batches; ++batch) {
    std::vector<RandomCall> near(calls_.begin(), calls_.begin() + static_cast<std::ptrdiff_t>(first_step_) + 1);
    for (RandomCall& call : near) {
      for (at::Tensor& input : call.inputs) nudge(input);
      if (!call.arguments.empty()) nudge(call.arguments[0]);  // the label; the divisor stays the same
    }
    const std::vector<at::Tensor> exact = whole_gradients(near, at::kDouble);
    squares.ours += std::pow(reference::relative_error(loop_gradients(near), exact), 2);
    squares.plain += std::pow(reference::relative_error(whole_gradients(near, model_.model.dtype()), exact), 2);
  }
  return {std::sqrt(squares.ours / num_batches), std::sqrt(squares.plain / num_batches)};
}

}  // namespace rp::test
