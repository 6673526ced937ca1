// Tests the corrections of routers, which a step moves by the loads of their experts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "roundpipe/roundpipe.h"
#include "tests/common/expect_refusal.h"
#include "tests/common/temp_directory.h"
#include "tests/pipeline/residual_block.h"

namespace rp::test {
namespace {

using models::same_bits;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kNumExperts = 5;
constexpr double kBalanceRate = 0.3;

// Each row chooses the expert with the largest score.
at::Tensor loads_of(const at::Tensor& scores_ne, const at::Tensor& correction_e) {
  return at::one_hot((scores_ne.to(at::kFloat) + correction_e).argmax(-1), kNumExperts).sum(0).to(at::kFloat);
}

struct PassOn : torch::autograd::Function<PassOn> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor&, const at::Tensor& loads) {
    context->save_for_backward({loads});
    return x;
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    return {grads[0], context->get_saved_variables()[0], at::Tensor()};
  }
};

// Multiplies scores [n, e] by a weight [e], and counts which expert each row would choose. What it
// returns does not depend on the correction.
class Router : public Layer {
 public:
  explicit Router(at::ScalarType dtype) : weight_(placeholder({kNumExperts}, dtype)) {}
  std::vector<NamedParameter> parameters() override {
    return {{"weight", weight_},
            {.name = "correction", .value = correction_, .keeps_dtype = true, .is_correction = true}};
  }
  Tensors forward(const Tensors& inputs) override {
    const at::Tensor loads = loads_of(inputs.at(0).detach(), correction_.detach());
    return {PassOn::apply(inputs[0] * weight_, correction_, loads)};
  }

 private:
  at::Tensor weight_;
  at::Tensor correction_ = placeholder({kNumExperts}, at::kFloat);
};

Model routers(at::ScalarType dtype) {
  LayerSpec spec;
  spec.name = "Router";
  spec.make = [dtype] { return std::make_unique<Router>(dtype); };
  spec.initialize = [](const std::string& parameter, const at::Tensor& value) {
    value.fill_(parameter == "weight" ? 0.5 : 0.0);
  };
  return std::move(Model{spec, spec}.set_dtype(dtype));
}

// Rows that prefer the first experts.
at::Tensor router_scores(int round, at::ScalarType dtype) {
  const at::Tensor noise =
      at::randn({11, kNumExperts}, at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(round)));
  return (noise + at::tensor({2.0F, 1.0F, 0.0F, 0.0F, -1.0F})).to(dtype);
}

struct StepKind {
  at::ScalarType dtype = at::kFloat;
  bool asynchronous = false;
  int rounds_per_step = 1;
};

// A started session with such a pipeline.
struct RoutersRun {
  explicit RoutersRun(const StepKind& kind, const std::optional<LossScaling>& scaling = {})
      : settings(kind),
        session(0, nullptr),
        pipeline(session, routers(settings.dtype), loss("mean square", mean_square<55>),
                 {.num_microbatches = 3,
                  .rounds_per_step = settings.rounds_per_step,
                  .asynchronous = settings.asynchronous,
                  .loss_scaling = scaling}) {
    at::set_num_threads(1);
    session.start();
  }
  StepResult train(int step, const Update& update = Sgd{.learning_rate = 0.1}, StepOptions options = {}) {
    for (int i = 0; i < settings.rounds_per_step; ++i) {
      const at::Tensor x = router_scores(step * settings.rounds_per_step + i, settings.dtype);
      (void)pipeline.forward_backward(x, at::zeros_like(x));
    }
    options.asynchronous = settings.asynchronous;
    options.router_bias_update_rate = kBalanceRate;
    return pipeline.step(update, options);
  }
  std::vector<at::Tensor> masters(const std::string& of) {
    pipeline.synchronize();
    std::vector<at::Tensor> found;
    for (const ParameterState& parameter : pipeline.parameters()) {
      if (parameter.parameter == of) found.push_back(parameter.master.clone());
    }
    return found;
  }
  StepKind settings;
  Session session;
  Pipeline pipeline;
};

// Returns the first router's correction after each step, from 0 on, counted from the rounds' inputs alone.
std::vector<at::Tensor> plain_corrections(const StepKind& c, int num_steps) {
  std::vector<at::Tensor> corrections = {at::zeros({kNumExperts})};
  for (int step = 0; step < num_steps; ++step) {
    const at::Tensor& used = corrections[std::max(0, c.asynchronous ? step - 1 : step)];
    at::Tensor loads = at::zeros({kNumExperts});
    for (int i = 0; i < c.rounds_per_step; ++i)
      loads += loads_of(router_scores(step * c.rounds_per_step + i, c.dtype), used);
    const at::Tensor mean = loads.to(at::kDouble).mean();
    corrections.push_back(corrections.back() + kBalanceRate * (mean - loads.to(at::kDouble)).sign().to(at::kFloat));
  }
  return corrections;
}

std::vector<StepKind> all_kinds() {
  std::vector<StepKind> cases;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool asynchronous : {false, true}) {
      for (const int rounds : {1, 2}) cases.push_back({dtype, asynchronous, rounds});
    }
  }
  return cases;
}

Update by_function(Pipeline& pipeline) {
  return Update([parameters = pipeline.optimizer_parameters()]() mutable {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : parameters) parameter.add_(parameter.grad() * -0.1);
  });
}

TEST(Corrections, FollowTheLoadsOfAllRoundsOfAStepInEveryKindOfStep) {
  for (const StepKind& c : all_kinds()) {
    const std::vector<at::Tensor> expected = plain_corrections(c, 5);
    EXPECT_FALSE(at::equal(expected[5], expected[4]));
    for (const bool is_function : {false, true}) {
      SCOPED_TRACE(testing::Message() << at::toString(c.dtype) << ", asynchronous " << c.asynchronous << ", "
                                      << c.rounds_per_step << " rounds, function " << is_function);
      RoutersRun run(c);
      for (int step = 0; step < 5; ++step)
        run.train(step, is_function ? by_function(run.pipeline) : Update(Sgd{.learning_rate = 0.1}));
      EXPECT_TRUE(same_bits(run.masters("correction").front(), expected[5])) << run.masters("correction").front();
    }
  }
}

TEST(Corrections, AreLeftOutOfNormsClippingAndRules) {
  const StepKind c{.dtype = at::kBFloat16};
  const auto train = [&](const Update& update, const StepOptions& options) {
    RoutersRun run(c);
    double norm = 0;
    for (int step = 0; step < 5; ++step) norm = run.train(step, update, options).grad_norm();
    EXPECT_TRUE(same_bits(run.masters("correction").front(), plain_corrections(c, 5)[5]));
    return std::pair(norm, run.masters("weight").front());
  };
  const auto [norm, weight] = train(Sgd{.learning_rate = 0.1}, {});
  EXPECT_LT(norm, 1) << "11 rows would make it larger";
  EXPECT_TRUE(same_bits(train(Sgd{.learning_rate = 0.1}, {.max_grad_norm = 2}).second, weight)) << "nothing to clip";
  (void)train(AdamW{.learning_rate = 0.1, .weight_decay = 0.5}, {.max_grad_value = 1e-3});
  // No group need contain them.
  const std::vector<ParameterGroup> groups = {
      {.contains = [](const ParameterInfo& info) { return info.parameter == "weight"; },
       .rule = Sgd{.learning_rate = 0.1}}};
  EXPECT_TRUE(same_bits(train(groups, {}).second, weight));
}

TEST(Corrections, AreNotMovedByAStepThatIsSkipped) {
  RoutersRun run({});
  const at::Tensor broken = router_scores(0, at::kFloat);
  broken[3].fill_(std::numeric_limits<float>::infinity());
  (void)run.pipeline.forward_backward(broken, at::zeros_like(broken));
  EXPECT_TRUE(
      run.pipeline.step(Sgd{.learning_rate = 0.1}, {.skip_nonfinite = true, .router_bias_update_rate = kBalanceRate})
          .skipped());
  EXPECT_TRUE(same_bits(run.masters("correction").front(), at::zeros({kNumExperts})));
  run.train(0);
  EXPECT_TRUE(same_bits(run.masters("correction").front(), plain_corrections({}, 1)[1]));
}

// A factor of the loss must not reach the loads.
TEST(Corrections, DoNotDependOnTheScaleOfTheLoss) {
  const StepKind c{.dtype = at::kHalf};
  RoutersRun run(c, LossScaling{.initial_scale = 1024});
  for (int step = 0; step < 3; ++step) EXPECT_FALSE(run.train(step).skipped());
  EXPECT_TRUE(same_bits(run.masters("correction").front(), plain_corrections(c, 3)[3]));
}

TEST(Corrections, AreInASavedStateWithoutMoments) {
  for (const StepKind& c : all_kinds()) {
    const TempDirectory scratch;
    {
      RoutersRun run(c);
      for (int step = 0; step < 3; ++step) run.train(step);
      run.pipeline.save_state(scratch.path() / "state", "");
    }
    RoutersRun run(c);
    (void)run.pipeline.load_state(scratch.path() / "state");
    for (int step = 3; step < 6; ++step) run.train(step);
    EXPECT_TRUE(same_bits(run.masters("correction").front(), plain_corrections(c, 6)[6]));
    for (const ParameterState& parameter : run.pipeline.parameters()) {
      EXPECT_EQ(parameter.is_correction, parameter.parameter == "correction");
      EXPECT_EQ(parameter.moment1.defined(), !parameter.is_correction);
    }
  }
}

TEST(Corrections, AreNoParametersOfAFunction) {
  RoutersRun run({});
  for (const NamedParameter& parameter : run.pipeline.named_optimizer_parameters())
    EXPECT_THAT(parameter.name, testing::EndsWith("weight"));
}

TEST(Corrections, ARateThatCannotBeIsRefused) {
  const auto refusal = [](Pipeline& pipeline, double rate) {
    return error_of([&] { pipeline.step(Sgd{.learning_rate = 0.1}, {.router_bias_update_rate = rate}); });
  };
  RoutersRun run({});
  const at::Tensor x = router_scores(0, at::kFloat);
  (void)run.pipeline.forward_backward(x, x);
  EXPECT_THAT(refusal(run.pipeline, -1), testing::HasSubstr("router_bias_update_rate is -1"));
  EXPECT_THAT(refusal(run.pipeline, NAN), testing::HasSubstr("router_bias_update_rate is nan"));
  EXPECT_EQ(refusal(run.pipeline, 0), "accepted");
  Session session(0, nullptr);
  Pipeline other(session, Model{layer<ResidualBlock>(4)}, loss("mean square", mean_square<32>));
  session.start();
  (void)other.forward_backward(at::ones({8, 4}), at::zeros({8, 4}));
  EXPECT_THAT(refusal(other, 1e-3), testing::HasSubstr("the model has no corrections of routers"));
}

}  // namespace
}  // namespace rp::test
