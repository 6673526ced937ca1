// Tests what a step may do: rules, groups, functions of the user, clipping, loss scaling.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Parallel.h>

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <algorithm>

#include "roundpipe/roundpipe.h"
#include "tests/common/expect_refusal.h"
#include "tests/pipeline/residual_block.h"
#include "tests/pipeline/tiny_run.h"

namespace rp::test {
namespace {

using models::same_bits;

at::Tensor batch(int number) {
  return at::randn({7, 4}, at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(number)));
}

Model blocks(at::ScalarType dtype = at::kFloat) {
  Model model{layer<ResidualBlock>(4), layer<ResidualBlock>(4), layer<ResidualBlock>(4)};
  model.set_dtype(dtype);
  return model;
}

// A started session with such a pipeline.
struct Program {
  explicit Program(PipelineOptions options, at::ScalarType dtype = at::kFloat)
      : session(0, nullptr),
        pipeline(session, blocks(dtype), loss("mean square", mean_square<32>), with_defaults(options)) {
    at::set_num_threads(1);
    session.start();
  }
  static PipelineOptions with_defaults(PipelineOptions options) {
    options.num_microbatches = 3;
    options.seed = 1;
    return options;
  }
  RoundResult round(int number) {
    return pipeline.forward_backward(batch(number).to(pipeline_dtype()), batch(number + 1000));
  }
  [[nodiscard]] at::ScalarType pipeline_dtype() { return pipeline.parameters().front().working.scalar_type(); }
  std::vector<at::Tensor> masters() {
    pipeline.synchronize();
    std::vector<at::Tensor> result;
    for (const ParameterState& parameter : pipeline.parameters()) result.push_back(parameter.master.clone());
    return result;
  }
  Session session;
  Pipeline pipeline;
};

// The same training without the library: whole batches, autograd, and torch::optim.
std::vector<at::Tensor> plain_training(
    const std::vector<at::Tensor>& start, int num_steps,
    const std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>& make,
    const std::function<void(std::vector<at::Tensor>&)>& before_step = {}) {
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& value : start) parameters.push_back(value.clone().requires_grad_(true));
  const auto optimizer = make(parameters);
  for (int step = 0; step < num_steps; ++step) {
    optimizer->zero_grad();
    at::Tensor x = batch(step);
    for (std::size_t i = 0; i < parameters.size(); i += 2)
      x = x + at::tanh(at::linear(x, parameters[i], parameters[i + 1]));
    mean_square<32>(x, batch(step + 1000)).backward();
    if (before_step) before_step(parameters);
    optimizer->step();
  }
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> result;
  for (const at::Tensor& parameter : parameters) result.push_back(parameter.detach().clone());
  return result;
}

void expect_near(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected,
                 double tolerance = 2e-6) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_LT((actual[i].to(at::kDouble) - expected[i].to(at::kDouble)).abs().max().item<double>(), tolerance)
        << "parameter " << i;
  }
}

TEST(UpdateRules, TrainAsTorchOptimDoes) {
  using torch::optim::AdamOptions, torch::optim::AdamWOptions, torch::optim::SGDOptions;
  using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;
  const std::vector<std::pair<UpdateRule, Make>> rules = {
      {AdamW{.learning_rate = 1e-2, .weight_decay = 0.1},
       [](auto p) { return std::make_unique<torch::optim::AdamW>(p, AdamWOptions(1e-2).weight_decay(0.1)); }},
      {Adam{.learning_rate = 1e-2, .weight_decay = 0.1},
       [](auto p) { return std::make_unique<torch::optim::Adam>(p, AdamOptions(1e-2).weight_decay(0.1)); }},
      {Sgd{.learning_rate = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.01},
       [](auto p) {
         return std::make_unique<torch::optim::SGD>(p, SGDOptions(0.1).momentum(0.9).dampening(0.3).weight_decay(0.01));
       }},
      {Sgd{.learning_rate = 0.1, .momentum = 0.9, .nesterov = true},
       [](auto p) { return std::make_unique<torch::optim::SGD>(p, SGDOptions(0.1).momentum(0.9).nesterov(true)); }}};
  for (std::size_t i = 0; i < rules.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "rule " << i);
    Program run({});
    const auto start = run.masters();
    for (int step = 0; step < 6; ++step) {
      (void)run.round(step);
      run.pipeline.step(rules[i].first);
    }
    expect_near(run.masters(), plain_training(start, 6, rules[i].second));
  }
}

TEST(UpdateRules, OfGroupsTrainAsTorchOptimWithGroups) {
  Program run({});
  const auto start = run.masters();
  const std::vector<ParameterGroup> groups = {
      {.contains = [](const ParameterInfo& info) { return info.shape.size() < 2; },
       .rule = AdamW{.learning_rate = 1e-2}},
      {.contains = [](const ParameterInfo& info) { return info.layer == 1; }, .rule = AdamW{.learning_rate = 0}},
      {.contains = {}, .rule = AdamW{.learning_rate = 1e-2, .weight_decay = 0.5}}};
  for (int step = 0; step < 4; ++step) {
    (void)run.round(step);
    run.pipeline.step(groups);
  }
  const auto make = [](std::vector<at::Tensor> p) {
    using torch::optim::AdamWOptions, torch::optim::OptimizerParamGroup;
    std::vector<OptimizerParamGroup> all = {
        OptimizerParamGroup({p[1], p[3], p[5]}, std::make_unique<AdamWOptions>(AdamWOptions(1e-2).weight_decay(0))),
        OptimizerParamGroup({p[2]}, std::make_unique<AdamWOptions>(AdamWOptions(0.0).weight_decay(0))),
        OptimizerParamGroup({p[0], p[4]}, std::make_unique<AdamWOptions>(AdamWOptions(1e-2).weight_decay(0.5)))};
    return std::make_unique<torch::optim::AdamW>(all);
  };
  const auto masters = run.masters();
  expect_near(masters, plain_training(start, 4, make));
  EXPECT_TRUE(same_bits(masters[2], start[2])) << "a learning rate of 0";
}

TEST(UpdateRules, ClipByValueAsTorchDoes) {
  Program run({.num_moments = 0});
  const auto start = run.masters();
  for (int step = 0; step < 3; ++step) {
    (void)run.round(step);
    run.pipeline.step(Sgd{.learning_rate = 0.5}, {.max_grad_value = 0.05});
  }
  const auto clip = [](std::vector<at::Tensor>& parameters) {
    for (at::Tensor& parameter : parameters) parameter.mutable_grad().clamp_(-0.05, 0.05);
  };
  const auto make = [](std::vector<at::Tensor> p) { return std::make_unique<torch::optim::SGD>(p, 0.5); };
  expect_near(run.masters(), plain_training(start, 3, make, clip));
}

// A function that computes the same as a rule of the library produces the same bits, whatever the
// kind of step.
TEST(FunctionSteps, GiveTheBitsOfTheSameRuleOfTheLibrary) {
  constexpr double kRate = 0.125;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool asynchronous : {false, true}) {
      for (const int rounds_per_step : {1, 2}) {
        for (const double max_grad_norm : {0.0, 0.1}) {
          SCOPED_TRACE(testing::Message() << at::toString(dtype) << ", asynchronous " << asynchronous << ", "
                                          << rounds_per_step << " rounds, clipping " << max_grad_norm);
          const PipelineOptions options{
              .rounds_per_step = rounds_per_step, .asynchronous = asynchronous, .num_moments = 0};
          const StepOptions step_options{.asynchronous = asynchronous, .max_grad_norm = max_grad_norm};
          const auto train = [&](bool by_function) {
            Program run(options, dtype);
            auto parameters = run.pipeline.optimizer_parameters();
            const auto function = [parameters]() mutable {
              const at::NoGradGuard no_grad;
              for (at::Tensor& parameter : parameters) parameter.add_(parameter.grad() * -kRate);
            };
            for (int round = 0; round < 8; ++round) {
              (void)run.round(round);
              if ((round + 1) % rounds_per_step != 0) continue;
              run.pipeline.step(by_function ? Update(function) : Update(Sgd{.learning_rate = kRate}), step_options);
            }
            return run.masters();
          };
          expect_same(train(true), train(false));
        }
      }
    }
  }
}

TEST(FunctionSteps, RunAnOptimizerOfTorchOverTheMasters) {
  Program run({.num_moments = 0});
  const auto start = run.masters();
  torch::optim::Adam optimizer(run.pipeline.optimizer_parameters(), torch::optim::AdamOptions(1e-2));
  for (int step = 0; step < 5; ++step) {
    (void)run.round(step);
    run.pipeline.step([&] { optimizer.step(); });
    EXPECT_TRUE(same_bits(run.pipeline.optimizer_parameters().front(), run.pipeline.parameters().front().master));
  }
  const auto make = [](std::vector<at::Tensor> p) {
    return std::make_unique<torch::optim::Adam>(p, torch::optim::AdamOptions(1e-2));
  };
  expect_near(run.masters(), plain_training(start, 5, make));
}

TEST(FunctionSteps, MayHaveMastersOfAnotherDtype) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Program run({.num_moments = 0, .optimizer_dtype = at::kDouble}, dtype);
    torch::optim::SGD optimizer(run.pipeline.optimizer_parameters(), 1e-4);
    for (int step = 0; step < 3; ++step) {
      (void)run.round(step);
      run.pipeline.step([&] { optimizer.step(); });
    }
    for (const ParameterState& parameter : run.pipeline.parameters()) {
      EXPECT_EQ(parameter.master.scalar_type(), at::kDouble);
      EXPECT_TRUE(same_bits(parameter.working, parameter.master.to(dtype))) << parameter.name;
      EXPECT_FALSE(at::equal(parameter.master, parameter.master.to(at::kFloat).to(at::kDouble)))
          << "more than fp32 holds";
    }
  }
  // The same for masters that are the working weights themselves.
  for (const bool asynchronous : {false, true}) {
    Program run({.asynchronous = asynchronous, .num_moments = 0, .optimizer_dtype = at::kBFloat16}, at::kBFloat16);
    const auto before = run.masters();
    torch::optim::SGD optimizer(run.pipeline.optimizer_parameters(), 0.5);
    for (int step = 0; step < 3; ++step) {
      (void)run.round(step);
      run.pipeline.step([&] { optimizer.step(); }, {.asynchronous = asynchronous});
    }
    run.pipeline.synchronize();
    const auto parameters = run.pipeline.parameters();
    EXPECT_EQ(parameters[0].master.data_ptr(), parameters[0].working.data_ptr());
    EXPECT_FALSE(at::equal(parameters[0].master, before[0]));
  }
}

TEST(FunctionSteps, ThatThrowReachTheCaller) {
  for (const bool asynchronous : {false, true}) {
    Program run({.asynchronous = asynchronous});
    (void)run.round(0);
    EXPECT_THAT(error_of([&] {
                  run.pipeline.step([] { throw Error(ExitCode::kUserError, "no idea what to do"); },
                                    {.asynchronous = asynchronous});
                  run.pipeline.synchronize();
                }),
                testing::HasSubstr("no idea what to do"));
  }
  Program run({});
  (void)run.round(0);
  auto parameters = run.pipeline.optimizer_parameters();
  EXPECT_THAT(error_of([&] { run.pipeline.step([&] {
                               parameters[2].set_data(at::zeros({4, 4}));
                             }); }),
              testing::HasSubstr("gave parameter 1.linear.weight other memory"));
}

// The scales are powers of two and nothing overflows, so the scale must cancel exactly wherever it
// is applied and removed.
TEST(LossScales, CancelInFp32) {
  struct Trained {
    std::vector<at::Tensor> masters, input_gradients;
    std::vector<double> losses, norms, scales;
  };
  const auto train = [](bool scales, bool asynchronous) {
    PipelineOptions options{.asynchronous = asynchronous};
    if (scales) options.loss_scaling = LossScaling{.initial_scale = 1024, .growth_interval = 2};
    Program run(options);
    Trained trained;
    for (int step = 0; step < 6; ++step) {
      if (step % 2 == 0) {
        trained.losses.push_back(run.round(step).loss());
      } else {
        const at::Tensor input = batch(step).requires_grad_(true);
        mean_square<32>(run.pipeline.forward(input).at(0), batch(step + 1000)).backward();
        trained.input_gradients.push_back(input.grad());
      }
      const StepResult result = run.pipeline.step(AdamW{.learning_rate = 1e-2}, {.asynchronous = asynchronous});
      trained.norms.push_back(result.grad_norm());
      trained.scales.push_back(result.loss_scale());
    }
    trained.masters = run.masters();
    return trained;
  };
  for (const bool asynchronous : {false, true}) {
    const Trained plain = train(false, asynchronous);
    const Trained scaled = train(true, asynchronous);
    EXPECT_EQ(scaled.losses, plain.losses);
    EXPECT_EQ(scaled.norms, plain.norms);
    expect_same(scaled.input_gradients, plain.input_gradients);
    expect_same(scaled.masters, plain.masters);
    EXPECT_EQ(plain.scales, std::vector<double>(6, 1));
    // With asynchronous steps, scales change one step later, as weights do.
    EXPECT_EQ(scaled.scales, asynchronous ? (std::vector<double>{1024, 1024, 1024, 2048, 2048, 4096})
                                          : (std::vector<double>{1024, 1024, 2048, 2048, 4096, 4096}));
  }
}

TEST(LossScales, SkipOverflowsOfFp16AndGoOnFromASavedState) {
  const PipelineOptions options{.loss_scaling = LossScaling{.initial_scale = 0x1p20, .growth_interval = 3}};
  const auto train = [](Program& run, int first, int end, std::vector<double>& scales, std::vector<bool>& skipped) {
    for (int step = first; step < end; ++step) {
      (void)run.round(step);
      const StepResult result = run.pipeline.step(AdamW{.learning_rate = 1e-2});
      scales.push_back(result.loss_scale());
      skipped.push_back(result.skipped());
      EXPECT_EQ(result.skipped(), !result.nonfinite_layers().empty());
    }
  };
  std::vector<double> whole_scales, scales;
  std::vector<bool> whole_skipped, skipped;
  Program whole(options, at::kHalf);
  const auto start = whole.masters();
  train(whole, 0, 12, whole_scales, whole_skipped);
  EXPECT_TRUE(whole_skipped.front());
  EXPECT_EQ(whole_scales[1], 0x1p19);
  const auto num_skipped = std::count(whole_skipped.begin(), whole_skipped.end(), true);
  EXPECT_LE(num_skipped, 8) << "it finds a scale that fits";
  EXPECT_NE(std::adjacent_find(whole_scales.begin(), whole_scales.end(), std::less<>()), whole_scales.end())
      << "and grows again";
  EXPECT_FALSE(same_bits(whole.masters()[0], start[0]));

  const TempDirectory scratch;
  {
    Program run(options, at::kHalf);
    train(run, 0, 8, scales, skipped);
    run.pipeline.save_state(scratch.path() / "state", "");
  }
  Program run(options, at::kHalf);
  (void)run.pipeline.load_state(scratch.path() / "state");
  train(run, 8, 12, scales, skipped);
  EXPECT_EQ(scales, whole_scales);
  EXPECT_EQ(skipped, whole_skipped);
  expect_same(run.masters(), whole.masters());
}

TEST(Parameters, AreFoundByName) {
  Program run({});
  EXPECT_EQ(run.pipeline.parameter("1.linear.bias").layer, 1);
  EXPECT_THAT(error_of([&] { (void)run.pipeline.parameter("1.linear.bis"); }), testing::HasSubstr("did you mean"));
  EXPECT_EQ(run.pipeline.named_optimizer_parameters().at(3).name, "1.linear.bias");
}

TEST(UpdateRules, ThatCannotBeAreRefusedWithTheFieldAndItsValue) {
  Program run({.num_moments = 1});
  (void)run.round(0);
  const auto refusal = [&](const Update& update, const StepOptions& options = {}) {
    return error_of([&] { run.pipeline.step(update, options); });
  };
  EXPECT_THAT(refusal(AdamW{}), testing::HasSubstr("keeps 2 values per parameter, but the store has 1"));
  EXPECT_THAT(refusal(Sgd{.momentum = -1}), testing::HasSubstr("momentum is -1"));
  EXPECT_THAT(refusal(Sgd{.nesterov = true}), testing::HasSubstr("nesterov needs a momentum"));
  EXPECT_THAT(refusal(Sgd{.learning_rate = NAN}), testing::HasSubstr("learning_rate is nan"));
  EXPECT_THAT(refusal(std::vector<ParameterGroup>{}), testing::HasSubstr("no rule, no group"));
  EXPECT_THAT(refusal(std::vector<ParameterGroup>{
                  {.contains = [](const ParameterInfo& info) { return info.layer == 0; }, .rule = Sgd{}}}),
              testing::HasSubstr("no group contains the parameter 1.linear.weight"));
  EXPECT_THAT(refusal(Sgd{}, {.max_grad_norm = 1, .max_grad_value = 1}), testing::HasSubstr("clip in one way"));
  EXPECT_THAT(refusal(Sgd{}, {.max_grad_value = -1}), testing::HasSubstr("max_grad_value is -1"));
  EXPECT_EQ(refusal(Sgd{.momentum = 0.5}), "accepted");

  const auto declaration = [](PipelineOptions options) {
    return error_of([&] {
      Session session(0, nullptr);
      const Pipeline pipeline(session, blocks(), loss("mean square", mean_square<32>), options);
    });
  };
  EXPECT_THAT(declaration({.num_moments = 3}), testing::HasSubstr("num_moments is 3"));
  EXPECT_THAT(declaration({.optimizer_dtype = at::kHalf}), testing::HasSubstr("optimizer_dtype is Half"));
  EXPECT_THAT(declaration({.loss_scaling = LossScaling{.backoff_factor = 2}}),
              testing::HasSubstr("backoff_factor is 2"));
}

}  // namespace
}  // namespace rp::test
