// Compares the reference loop with whole-batch autograd and LibTorch's own optimizer.
#include "tests/reference/reference_loop.h"

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include "roundpipe/models.h"
#include "tests/models/golden.h"

namespace rp::reference {
namespace {

using models::BoundLayer;
using models::relative_difference;
using models::same_bits;

constexpr double kClip = 0.5;

Model tiny(at::ScalarType dtype = at::kFloat) { return models::load(models::tiny_directory(), dtype); }

// Each round has seven sequences: only 1 and 7 microbatches divide them evenly. Some tokens are not
// trained.
std::vector<Round> make_rounds(int count) {
  at::manual_seed(5);
  std::vector<Round> rounds;
  for (int i = 0; i < count; ++i) {
    const at::Tensor ids = at::randint(61, {7, 6}, at::kLong), labels = at::randint(61, {7, 6}, at::kLong);
    labels.narrow(0, i % 7, 1).narrow(1, 0, 3).fill_(-100);
    rounds.push_back({{ids}, {labels, at::scalar_tensor(39.0)}});
  }
  return rounds;
}

Settings settings_of(int num_microbatches) {
  Settings settings;
  settings.num_microbatches = num_microbatches;
  settings.max_grad_norm = kClip;
  settings.rule = {.learning_rate = 1e-3, .weight_decay = 0.1};
  return settings;
}

// A run with whole batches, one leaf per layer (the gradients of the tied parameter are added by
// hand), and torch::optim::AdamW.
struct LibTorchRun {
  std::vector<double> losses;
  std::vector<at::Tensor> weights;
};
LibTorchRun train_with_libtorch(const Model& model, const std::vector<Round>& rounds, bool asynchronous = false) {
  std::vector<std::unique_ptr<Layer>> layers;
  std::vector<at::Tensor> masters, leaves;
  for (const LayerSpec& spec : model.layers()) {
    layers.push_back(spec.make());
    for (NamedParameter& parameter : layers.back()->parameters()) {
      leaves.push_back(parameter.value);
      if (parameter.name == "lm_head.weight") continue;
      masters.push_back(at::empty(parameter.value.sizes(), at::kFloat));
      spec.initialize(parameter.name, masters.back());
    }
  }
  masters.push_back(masters.front());  // the LM head, the last leaf, is tied to the embedding
  const std::vector<at::Tensor> distinct(masters.begin(), masters.end() - 1);
  torch::optim::AdamW optimizer(distinct, torch::optim::AdamWOptions(1e-3).weight_decay(0.1));
  std::vector<at::Tensor> late;
  for (const at::Tensor& master : masters) late.push_back(master.clone());
  LibTorchRun run;
  for (const Round& round : rounds) {
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      leaves[i].set_data((asynchronous ? late[i] : masters[i]).clone());
      leaves[i].mutable_grad() = at::zeros_like(masters[i]);
    }
    Tensors values = round.inputs;
    for (auto& layer : layers) values = layer->forward(values);
    const at::Tensor loss = models::causal_lm_loss().function(values, round.arguments).at(0);
    torch::autograd::backward({loss});
    run.losses.push_back(loss.item<double>());
    double squares = 0;
    for (std::size_t i = 0; i < distinct.size(); ++i) {
      masters[i].mutable_grad() = i == 0 ? leaves.front().grad() + leaves.back().grad() : leaves[i].grad().clone();
      squares += masters[i].grad().to(at::kDouble).pow(2).sum().item<double>();
      late[i] = masters[i].clone();
    }
    late.back() = late.front();
    const double scale = std::min(1.0, kClip / (std::sqrt(squares) + 1e-6));
    for (const at::Tensor& master : distinct) master.mutable_grad().mul_(scale);
    optimizer.step();
  }
  for (const at::Tensor& master : distinct) run.weights.push_back(master.detach());
  return run;
}

void expect_near(const Result& ours, const LibTorchRun& theirs, const Model& model) {
  ASSERT_EQ(ours.losses.size(), theirs.losses.size());
  for (std::size_t i = 0; i < ours.losses.size(); ++i) {
    EXPECT_NEAR(ours.losses[i] / theirs.losses[i], 1.0, 1e-5) << "round " << i;
  }
  ASSERT_EQ(ours.parameters.size(), theirs.weights.size());
  double difference = 0, change = 0;
  for (std::size_t i = 0; i < theirs.weights.size(); ++i) {
    const Parameter& parameter = ours.parameters[i];
    // AdamW makes a full step with a gradient that is zero except for rounding, such as that of the
    // key's bias.
    if (parameter.name.ends_with("k_proj.bias")) continue;
    const std::size_t dot = parameter.name.find('.');
    const at::Tensor initial = at::empty_like(parameter.master);
    model.layers()[std::stoul(parameter.name)].initialize(parameter.name.substr(dot + 1), initial);
    difference += (parameter.master - theirs.weights[i]).to(at::kDouble).pow(2).sum().item<double>();
    change += (theirs.weights[i] - initial).to(at::kDouble).pow(2).sum().item<double>();
  }
  EXPECT_LE(std::sqrt(difference / change), 2e-4);
}

TEST(ReferenceLoop, EqualsWholeBatchAutogradAndLibTorchsAdamWWhateverTheMicrobatches) {
  const std::vector<Round> rounds = make_rounds(6);
  const LibTorchRun theirs = train_with_libtorch(tiny(), rounds);
  for (const int num_microbatches : {1, 3, 7}) {
    expect_near(train(tiny(), models::causal_lm_loss(), rounds, settings_of(num_microbatches)), theirs, tiny());
  }
}

TEST(ReferenceLoop, AsynchronousRunUsesWeightsOneStepLate) {
  const std::vector<Round> rounds = make_rounds(6);
  Settings settings = settings_of(3);
  settings.asynchronous = true;
  const Result late = train(tiny(), models::causal_lm_loss(), rounds, settings);
  expect_near(late, train_with_libtorch(tiny(), rounds, /*asynchronous=*/true), tiny());
  const Result prompt = train(tiny(), models::causal_lm_loss(), rounds, settings_of(3));
  EXPECT_EQ(late.losses[0], prompt.losses[0]);
  EXPECT_NE(late.losses[1], prompt.losses[1]);
}

TEST(ReferenceLoop, RoundsOfAStepAddUpToOneLargerRound) {
  const std::vector<Round> halves = make_rounds(4);
  std::vector<Round> wholes;
  for (std::size_t i = 0; i < halves.size(); i += 2) {
    wholes.push_back({{at::cat({halves[i].inputs[0], halves[i + 1].inputs[0]})},
                      {at::cat({halves[i].arguments[0], halves[i + 1].arguments[0]}), halves[i].arguments[1]}});
  }
  Settings settings = settings_of(2);
  settings.rounds_per_step = 2;
  const Result in_halves = train(tiny(), models::causal_lm_loss(), halves, settings);
  const Result in_wholes = train(tiny(), models::causal_lm_loss(), wholes, settings_of(2));
  EXPECT_EQ(in_halves.grad_norms.size(), 2U);
  EXPECT_NEAR(in_halves.grad_norms[1], in_wholes.grad_norms[1], 1e-4 * in_wholes.grad_norms[1]);
  EXPECT_NEAR(in_halves.losses[2] + in_halves.losses[3], in_wholes.losses[1], 1e-4);
}

TEST(ReferenceLoop, GivesTheSameBitsTwiceInBothDtypes) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Result a = train(tiny(dtype), models::causal_lm_loss(), make_rounds(3), settings_of(3));
    const Result b = train(tiny(dtype), models::causal_lm_loss(), make_rounds(3), settings_of(3));
    EXPECT_EQ(a.losses, b.losses);
    for (std::size_t i = 0; i < a.parameters.size(); ++i) {
      EXPECT_TRUE(same_bits(a.parameters[i].master, b.parameters[i].master)) << a.parameters[i].name;
      EXPECT_TRUE(same_bits(a.parameters[i].working, a.parameters[i].master.to(dtype)));
    }
  }
}

// The runtime relies on this: cutting the graph at the borders of layers, and computing the forward
// pass of a layer again before its backward pass, changes no bit.
TEST(ReferenceLoop, OneGraphAndOneGraphPerLayerGiveTheSameGradients) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Model model = tiny(dtype);
    std::vector<BoundLayer> whole, single;
    for (const LayerSpec& spec : model.layers()) {
      whole.emplace_back(spec, dtype);
      single.emplace_back(spec, dtype);
    }
    for (const Round& round : make_rounds(2)) {
      Tensors values = round.inputs;
      for (BoundLayer& layer : whole) values = layer(values);
      torch::autograd::backward({models::causal_lm_loss().function(values, round.arguments)});

      std::vector<at::Tensor> inputs = round.inputs;
      for (std::size_t i = 0; i + 1 < single.size(); ++i) inputs.push_back(single[i]({inputs[i]})[0].detach());
      const at::Tensor x = inputs.back().requires_grad_(true);
      torch::autograd::backward({models::causal_lm_loss().function(single.back()({x}), round.arguments)});
      at::Tensor grad = x.grad();
      for (std::size_t i = single.size() - 1; i-- > 0;) {
        const at::Tensor input = inputs[i].detach();
        if (i > 0) input.requires_grad_(true);
        torch::autograd::backward({single[i]({input})[0]}, {grad});
        grad = input.grad();
      }
    }
    for (std::size_t i = 0; i < whole.size(); ++i) {
      EXPECT_TRUE(same_bits(whole[i].gradients(), single[i].gradients())) << "layer " << i;
    }
  }
}

TEST(Microbatch, FirstOnesAreLargerByOneAndScalarsGoToAll) {
  const Tensors batch = {at::arange(8), at::scalar_tensor(3.0), at::Tensor()};
  std::vector<std::int64_t> sizes;
  for (int i = 0; i < 3; ++i) {
    const Tensors part = microbatch(batch, i, 3);
    sizes.push_back(part[0].size(0));
    EXPECT_EQ(part[1].item<double>(), 3.0);
    EXPECT_FALSE(part[2].defined());
  }
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{3, 3, 2}));
}

}  // namespace
}  // namespace rp::reference
