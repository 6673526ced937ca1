// Tests what a training loop may do in addition to forward_backward() and step(): evaluate, train
// through autograd, chain pipelines, and choose options per call.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "pipeline/pipeline_impl.h"
#include "roundpipe/roundpipe.h"
#include "tests/common/expect_refusal.h"
#include "tests/pipeline/residual_block.h"
#include "tests/pipeline/tiny_run.h"

namespace rp::test {
namespace {

using models::same_bits;

// Adds noise in training only, and counts its forwards in training.
struct Training : torch::nn::Module {
  Training() : count(register_buffer("count", at::zeros({1}))) {}
  at::Tensor forward(at::Tensor x) {
    if (!is_training()) return x;
    count += 1;
    return at::dropout(x, 0.25, true);
  }
  at::Tensor count;
};

struct Frozen : torch::nn::Module {
  explicit Frozen(int size) : linear(register_module("linear", torch::nn::Linear(size, size))) {
    for (at::Tensor& parameter : linear->parameters()) parameter.requires_grad_(false);
  }
  at::Tensor forward(at::Tensor x) { return torch::tanh(linear(x)); }
  torch::nn::Linear linear;
};

// Takes two tensors and returns three, of which one is absent and one contains integers.
struct Several : torch::nn::Module {
  explicit Several(int size) : weight(register_parameter("weight", at::full({size}, 0.5))) {}
  Tensors forward(const Tensors& x) {
    if (x.size() == 1) return {x[0] * weight, at::Tensor(), at::ones({x[0].size(0)}, at::kLong)};
    return {x[0] * weight * x[2].to(at::kFloat).unsqueeze(1), x[1], x[2] + 1};
  }
  at::Tensor weight;
};

// A table whose rows are selected by integers.
struct Rows : torch::nn::Module {
  Rows(int num, int size) : table(register_module("table", torch::nn::Embedding(num, size))) {}
  at::Tensor forward(at::Tensor ids) { return table(ids); }
  torch::nn::Embedding table;
};

at::Tensor batch_of(int seed, std::int64_t rows = 7) {
  return at::randn({rows, 4}, at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(seed)));
}

std::vector<at::Tensor> weights_of(Pipeline& pipeline) {
  pipeline.synchronize();
  std::vector<at::Tensor> weights;
  for (const ParameterState& parameter : pipeline.parameters()) weights.push_back(parameter.working.clone());
  return weights;
}

// A started session of one worker with one pipeline of three blocks.
struct OneWorkerRun {
  explicit OneWorkerRun(Model model = {layer<ResidualBlock>(4), layer<ResidualBlock>(4), layer<ResidualBlock>(4)},
                        PipelineOptions options = {})
      : pipeline(session, std::move(model), {loss("mean square", mean_square<128>), loss("sums", &OneWorkerRun::sums)},
                 with_default(options)) {
    at::set_num_threads(1);
    session.start();
  }
  static PipelineOptions with_default(PipelineOptions options) {
    options.num_microbatches = 3;
    return options;
  }
  static Tensors sums(const Tensors& outputs, const Tensors& arguments) {
    return {outputs[0].sum() / 64, (outputs[0] * arguments[0]).sum() / 64};
  }
  [[nodiscard]] std::uint64_t activation_bytes() {
    Store& store = session.impl().runtime()->store();
    return store.arena(0).segment().bytes() + store.arena(kCoordinatorArena).segment().bytes();
  }

  Session session{0, nullptr};
  Pipeline pipeline;
};

TEST(Flows, AnEvaluationGivesTheOutputsAndLeavesTheTrainingsBitsAlone) {
  std::vector<at::Tensor> weights, buffers;
  for (const bool evaluates : {false, true}) {
    OneWorkerRun run({layer<ResidualBlock>(4), layer<Training>(), layer<ResidualBlock>(4)});
    for (int step = 0; step < 4; ++step) {
      if (evaluates) {
        const c10::NoGradGuard no_grad;
        const at::Tensor x = batch_of(100);
        const Tensors outputs = run.pipeline.forward(x);
        at::Tensor expected = x;
        const std::vector<at::Tensor> now = weights_of(run.pipeline);
        for (const std::size_t i : {0U, 2U})
          expected = expected + torch::tanh(at::linear(expected, now[i], now[i + 1]));
        ASSERT_EQ(outputs.size(), 1U);
        EXPECT_TRUE(at::allclose(outputs[0], expected, 1e-6, 1e-6)) << "in step " << step;
        EXPECT_FALSE(outputs[0].requires_grad());
      }
      (void)run.pipeline.forward_backward(batch_of(step), batch_of(step + 50));
      if (evaluates) (void)run.pipeline.forward_packed(batch_of(101));  // its upload must wait for these weights
      run.pipeline.step({.learning_rate = 0.05});
    }
    std::vector<at::Tensor> these = weights_of(run.pipeline), counts;
    for (const BufferState& buffer : run.pipeline.buffers()) counts.push_back(buffer.value);
    EXPECT_EQ(counts.at(0).item<double>(), 4 * 3);
    if (evaluates) expect_same(these, weights);
    weights = these;
  }
}

TEST(Flows, AnEvaluatedLossIsThatOfTheRoundThatFollowsAndLeavesTheTrainingsBitsAlone) {
  std::vector<at::Tensor> weights;
  for (const bool evaluates : {false, true}) {
    OneWorkerRun run({layer<ResidualBlock>(4), layer<ResidualBlock>(4), layer<ResidualBlock>(4)});
    for (int step = 0; step < 4; ++step) {
      std::vector<RoundResult> evaluated;
      for (int i = 0; evaluates && i < 3; ++i)
        evaluated.push_back(run.pipeline.evaluate(batch_of(step), batch_of(step + 50)));
      const double loss = run.pipeline.forward_backward(batch_of(step), batch_of(step + 50)).loss();
      for (const RoundResult& each : evaluated) EXPECT_EQ(each.loss(), loss) << "in step " << step;
      run.pipeline.step({.learning_rate = 0.05});
    }
    std::vector<at::Tensor> these = weights_of(run.pipeline);
    if (evaluates) expect_same(these, weights);
    weights = these;
  }
}

TEST(Flows, AnEvaluationOfALossGivesNoOutputs) {
  OneWorkerRun run({layer<ResidualBlock>(4)});
  EXPECT_THROW((void)run.pipeline.evaluate(batch_of(0), batch_of(1), {.return_outputs = true}), Error);
  EXPECT_THROW((void)run.pipeline.evaluate(batch_of(0), batch_of(1)).outputs(), Error);
}

TEST(Flows, TrainingThroughAutogradHasTheBitsOfTheFusedRound) {
  std::vector<double> losses;
  std::vector<at::Tensor> weights;
  for (const bool outside : {false, true}) {
    OneWorkerRun run({layer<ResidualBlock>(4), layer<Training>(), layer<ResidualBlock>(4)});
    for (int step = 0; step < 3; ++step) {
      const at::Tensor x = batch_of(step), y = batch_of(step + 50);
      if (outside) {
        const Tensors outputs = run.pipeline.forward(x);
        const at::Tensor loss = mean_square<128>(outputs.at(0), y);
        EXPECT_NEAR(loss.item<double>(), losses.at(step), 1e-5);
        torch::autograd::backward({loss});
      } else {
        losses.push_back(run.pipeline.forward_backward(x, y).loss());
      }
      run.pipeline.step({.learning_rate = 0.05});
    }
    const std::vector<at::Tensor> these = weights_of(run.pipeline);
    if (outside) expect_same(these, weights);
    weights = these;
    EXPECT_EQ(run.pipeline.buffers().at(0).value.item<double>(), 9);
  }
}

TEST(Flows, IntegersMayEnterAndLeaveWhatIsTrainedThroughAutograd) {
  const at::Tensor ids = at::arange(7) % 5, y = batch_of(50);
  std::vector<at::Tensor> weights;
  for (const bool outside : {false, true}) {
    OneWorkerRun run({layer<Rows>(5, 4), layer<Several>(4), layer<Several>(4)});
    if (outside) {
      const Tensors outputs = run.pipeline.forward(ids);
      EXPECT_TRUE(at::equal(outputs.at(2), at::full({7}, 2, at::kLong)));
      EXPECT_FALSE(outputs.at(2).requires_grad());
      torch::autograd::backward({mean_square<128>(outputs.at(0), y)});
    } else {
      (void)run.pipeline.forward_backward(ids, y);
    }
    run.pipeline.step({.learning_rate = 0.05});
    const std::vector<at::Tensor> these = weights_of(run.pipeline);
    if (outside) expect_same(these, weights);
    weights = these;
  }
}

TEST(Flows, GradientsOfInputsReachWhatIsBeforeThePipeline) {
  OneWorkerRun run;
  const at::Tensor scale = at::ones({4}).requires_grad_(true);
  const at::Tensor x = batch_of(1), y = batch_of(2);
  const Tensors outputs = run.pipeline.forward(x * scale);
  torch::autograd::backward({mean_square<128>(outputs.at(0), y)});
  const at::Tensor expected_scale = at::ones({4}).requires_grad_(true);
  at::Tensor value = x * expected_scale;
  const std::vector<at::Tensor> weights = weights_of(run.pipeline);
  for (std::size_t i = 0; i < 6; i += 2) value = value + torch::tanh(at::linear(value, weights[i], weights[i + 1]));
  torch::autograd::backward({mean_square<128>(value, y)});
  EXPECT_TRUE(at::allclose(scale.grad(), expected_scale.grad(), 1e-5, 1e-7));
}

TEST(Flows, OutputsThatAreDroppedFreeWhatTheirBackwardWouldNeed) {
  OneWorkerRun run;
  std::uint64_t bytes = 0;
  for (int i = 0; i < 400; ++i) {
    const Tensors dropped = run.pipeline.forward(batch_of(i, 3000));
    const RoundResult result =
        run.pipeline.forward_backward(batch_of(i, 3000), batch_of(i, 3000), {.return_outputs = true});
    run.pipeline.step({.learning_rate = 1e-4});
    if (i == 20) bytes = run.activation_bytes();
  }
  run.pipeline.synchronize();
  EXPECT_EQ(run.activation_bytes(), bytes);
}

TEST(Flows, ABackwardThatComesTwiceOrTooLateIsRefused) {
  OneWorkerRun run;
  const Tensors outputs = run.pipeline.forward(batch_of(1));
  const at::Tensor sum = outputs[0].sum();
  torch::autograd::backward({sum}, {}, /*retain_graph=*/true);
  EXPECT_THAT(error_of([&] { torch::autograd::backward({sum}); }), testing::HasSubstr("a second backward()"));
  run.pipeline.step({});
  const Tensors old = run.pipeline.forward(batch_of(1));
  (void)run.pipeline.forward_backward(batch_of(2), batch_of(3));
  EXPECT_THAT(error_of([&] { torch::autograd::backward({old[0].sum()}); }), testing::HasSubstr("rounds_per_step is 1"));
  run.pipeline.step({});
  EXPECT_THAT(error_of([&] { torch::autograd::backward({old[0].sum()}); }),
              testing::HasSubstr("before its last step()"));
}

TEST(Flows, PackedOutputsOfOnePipelineAreInputsAndArgumentsOfAnother) {
  std::vector<at::Tensor> weights;
  for (const bool packed : {false, true}) {
    at::set_num_threads(1);
    Session session(0, nullptr);
    Pipeline teacher(session, {layer<Frozen>(4), layer<Frozen>(4)}, std::vector<Loss>{},
                     {.num_microbatches = 3, .name = "teacher"});
    Pipeline student(session, {layer<ResidualBlock>(4), layer<ResidualBlock>(4)}, loss("distance", mean_square<128>),
                     {.num_microbatches = 3, .seed = 5, .name = "student"});
    session.start();
    for (int step = 0; step < 4; ++step) {
      const at::Tensor x = batch_of(step);
      const c10::NoGradGuard no_grad;
      if (packed) {
        const PackedTensors hidden = teacher.forward_packed(x);
        const PackedTensors target = teacher.forward_packed(hidden);
        (void)student.forward_backward(hidden, target);
      } else {
        const Tensors hidden = teacher.forward(x);
        const Tensors target = teacher.forward(hidden);
        (void)student.forward_backward(hidden, target);
      }
      student.step({.learning_rate = 0.05});
    }
    const std::vector<at::Tensor> these = weights_of(student);
    if (packed) expect_same(these, weights);
    weights = these;
  }
}

TEST(Flows, AForwardWithNothingToTrainHasNoBackward) {
  OneWorkerRun run({layer<Frozen>(4), layer<Frozen>(4)});
  const Tensors outputs = run.pipeline.forward(batch_of(1));
  EXPECT_FALSE(outputs.at(0).requires_grad());
  const at::Tensor x = batch_of(1).requires_grad_(true);
  torch::autograd::backward({run.pipeline.forward(x).at(0).sum()});
  EXPECT_GT(x.grad().abs().sum().item<double>(), 0) << "who asks for the inputs' gradient gets it";
  run.pipeline.synchronize();
}

// Uses only inputs whose first number is positive. The other microbatches have no gradient of their
// input.
struct Choosy : torch::nn::Module {
  Choosy() : weight(register_parameter("weight", at::ones({4}))) {}
  at::Tensor forward(at::Tensor x) { return x.flatten()[0].item<double>() > 0 ? x * weight : x.detach() + weight; }
  at::Tensor weight;
};

TEST(Flows, AMicrobatchWithoutAnInputGradientGivesZeros) {
  OneWorkerRun run({layer<Choosy>(), layer<ResidualBlock>(4)});
  const at::Tensor x = batch_of(1);
  x.abs_();
  x.narrow(0, 3, 2).neg_();  // in the second of three microbatches
  x.requires_grad_(true);
  torch::autograd::backward({run.pipeline.forward(x).at(0).sum()});
  EXPECT_EQ(x.grad().narrow(0, 3, 2).abs().sum().item<double>(), 0);
  EXPECT_GT(x.grad().narrow(0, 0, 3).abs().sum().item<double>(), 0);
  EXPECT_GT(x.grad().narrow(0, 5, 2).abs().sum().item<double>(), 0);
}

TEST(Flows, ASavedStateKnowsNothingOfRoundsAfterTheLastStep) {
  const TempDirectory scratch;
  const Model model{layer<ResidualBlock>(4), layer<Training>(), layer<ResidualBlock>(4)};
  PipelineOptions options;
  options.rounds_per_step = 2;
  const auto step = [](OneWorkerRun& run, int number) {
    for (int round = 2 * number; round < 2 * number + 2; ++round)
      (void)run.pipeline.forward_backward(batch_of(round), batch_of(round + 50));
    run.pipeline.step({.learning_rate = 0.05});
  };
  std::vector<at::Tensor> weights;
  double count = 0;
  {
    OneWorkerRun run(model, options);
    step(run, 0);
    step(run, 1);
    weights = weights_of(run.pipeline);
    count = run.pipeline.buffers().at(0).value.item<double>();
  }
  {
    OneWorkerRun run(model, options);
    step(run, 0);
    (void)run.pipeline.forward_backward(batch_of(2), batch_of(52));
    run.pipeline.save_state(scratch.path() / "state", "");
  }
  OneWorkerRun run(model, options);
  (void)run.pipeline.load_state(scratch.path() / "state");
  step(run, 1);
  expect_same(weights_of(run.pipeline), weights);
  EXPECT_EQ(run.pipeline.buffers().at(0).value.item<double>(), count);
}

TEST(Flows, ABackwardOverOtherWeightsThatWereLoadedIsRefused) {
  const TempDirectory scratch;
  OneWorkerRun run;
  run.pipeline.save_state(scratch.path() / "state", "");
  const at::Tensor output = run.pipeline.forward(batch_of(1)).at(0);
  (void)run.pipeline.load_state(scratch.path() / "state");  // as many steps as there were before
  EXPECT_THAT(error_of([&] { output.sum().backward(); }), testing::HasSubstr("before its last step() or load_state()"));
  (void)run.pipeline.forward_backward(batch_of(2), batch_of(52));
  run.pipeline.step(Sgd{});
  run.pipeline.synchronize();
}

TEST(Flows, SeveralTensorsAbsentOnesAndIntegersCrossBorders) {
  const Model model{layer<Several>(4), layer<Several>(4), layer<Several>(4)};
  std::vector<at::Tensor> weights;
  for (const char* plan :
       {"fused 0-2", "forward 0 1 | fused 2 | backward 0-1", "forward 0-1 | fused 2 | backward 1 0"}) {
    PipelineOptions options;
    options.plan = plan;
    OneWorkerRun run(model, options);
    const RoundResult result = run.pipeline.forward_backward(batch_of(1), batch_of(2), {.return_outputs = true});
    const Tensors outputs = result.outputs();
    ASSERT_EQ(outputs.size(), 3U);
    EXPECT_FALSE(outputs[1].defined());
    EXPECT_TRUE(at::equal(outputs[2], at::full({7}, 3, at::kLong)));
    EXPECT_EQ(result.packed_outputs().microbatch(2)[0].size(0), 2);
    run.pipeline.step({.learning_rate = 0.05});
    const std::vector<at::Tensor> these = weights_of(run.pipeline);
    if (!weights.empty()) expect_same(these, weights);
    weights = these;
  }
}

TEST(Flows, ALossIsChosenPerCallAndMayGiveSeveralNumbers) {
  OneWorkerRun run;
  const at::Tensor x = batch_of(1), y = batch_of(2);
  const RoundResult result = run.pipeline.forward_backward(x, y, {.loss = "sums", .return_outputs = true});
  const at::Tensor output = result.outputs().at(0);
  ASSERT_EQ(result.losses().size(), 2U);
  EXPECT_NEAR(result.losses()[0], output.sum().item<double>() / 64, 1e-5);
  EXPECT_NEAR(result.losses()[1], (output * y).sum().item<double>() / 64, 1e-5);
  EXPECT_DOUBLE_EQ(result.loss(), result.losses()[0] + result.losses()[1]);
  run.pipeline.step({});
  EXPECT_THAT(error_of([&] { (void)run.pipeline.forward_backward(x, y, {.loss = "sum"}); }),
              testing::HasSubstr("no loss 'sum' (did you mean sums?)"));
  EXPECT_THAT(error_of([&] { (void)run.pipeline.forward_backward(x, y).outputs(); }),
              testing::HasSubstr("return_outputs"));
}

TEST(Flows, InputsAndOutputsAreTensorsOfTheHost) {
  OneWorkerRun run({layer<ResidualBlock>(4)});
  const at::Tensor elsewhere = batch_of(1).to(at::kMeta);
  expect_error(ExitCode::kUsage, {"input 0", "on device meta", "on the CPU"},
               [&] { (void)run.pipeline.forward_backward(elsewhere, batch_of(2)); });
  expect_error(ExitCode::kUsage, {"on device meta", "on the CPU"},
               [&] { (void)run.pipeline.forward_backward(batch_of(1), elsewhere); });
  const RoundResult round = run.pipeline.forward_backward(batch_of(1), batch_of(2), {.return_outputs = true});
  EXPECT_TRUE(round.outputs().at(0).is_cpu());
  run.pipeline.step({.learning_rate = 0.05});
  const c10::NoGradGuard no_grad;
  EXPECT_TRUE(run.pipeline.forward(batch_of(1)).at(0).is_cpu());
}

TEST(Flows, GrainAndPlanOfACallChangeNoBit) {
  const Model model{layer<ResidualBlock>(4), layer<Training>(), layer<ResidualBlock>(4), layer<ResidualBlock>(4)};
  std::vector<at::Tensor> weights;
  const std::vector<CallOptions> all = {
      {},
      {.recompute_grain = RecomputeGrain::kLayer},
      {.plan = "forward 0-2 | fused 3 | backward 1-2 0"},
      {.recompute_grain = RecomputeGrain::kLayer, .plan = "forward 0-2 | fused 3 | backward 0-2"}};
  for (const CallOptions& options : all) {
    OneWorkerRun run(model);
    for (int step = 0; step < 3; ++step) {
      (void)run.pipeline.forward_backward(batch_of(step), batch_of(step + 50), options);
      run.pipeline.step({.learning_rate = 0.05});
    }
    const std::vector<at::Tensor> these = weights_of(run.pipeline);
    if (!weights.empty()) expect_same(these, weights);
    weights = these;
  }
}

TEST(Flows, ACallMayHaveAnotherNumberOfMicrobatches) {
  OneWorkerRun run;
  const RoundResult result =
      run.pipeline.forward_backward(batch_of(1), batch_of(2), {.num_microbatches = 7, .return_outputs = true});
  EXPECT_EQ(result.packed_outputs().num_microbatches(), 7);
  run.pipeline.step({});
  for (const int wrong : {0, -3}) {
    EXPECT_THAT(
        error_of([&] { (void)run.pipeline.forward_backward(batch_of(1), batch_of(2), {.num_microbatches = wrong}); }),
        testing::HasSubstr("must be at least 1"));
  }
  EXPECT_THAT(error_of([&] { (void)run.pipeline.forward_backward(batch_of(1), batch_of(2), {.num_microbatches = 8}); }),
              testing::HasSubstr("a batch of 7 cannot be split into 8 microbatches"));
}

}  // namespace
}  // namespace rp::test
