// Tests options of a call whose effects are seen in isolation: how outputs are merged, and whether
// the runtime handles random numbers and gradients.
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pipeline/packed_tensors.h"
#include "roundpipe/roundpipe.h"
#include "tests/common/expect_refusal.h"

namespace rp {
namespace {

// Two microbatches of 2 and 1 samples. Each has features with samples in dimension 1, labels, a
// loss, a count, and an absent tensor.
std::vector<Tensors> two_microbatches() {
  return {
      {at::arange(6).view({3, 2}), at::arange(2), at::scalar_tensor(1.0), at::scalar_tensor(5, at::kLong), {}},
      {at::arange(6, 9).view({3, 1}), at::arange(2, 3), at::scalar_tensor(4.0), at::scalar_tensor(5, at::kLong), {}}};
}

TEST(Merge, ConcatenatesAlongTheNamedDimensionsAveragesScalarsAndKeepsWhatIsEqualOrAbsent) {
  const Tensors merged = merge(two_microbatches(), {.dimensions = {1, 0, 0, 0, 0}});
  EXPECT_TRUE(at::equal(merged[0], at::tensor({0, 1, 6, 2, 3, 7, 4, 5, 8}, at::kLong).view({3, 3})));
  EXPECT_TRUE(at::equal(merged[1], at::arange(3)));
  EXPECT_EQ(merged[2].item<double>(), 2.5);
  EXPECT_EQ(merged[3].item<std::int64_t>(), 5);
  EXPECT_FALSE(merged[4].defined());
  EXPECT_EQ(merge({{at::ones({2, 3})}, {at::ones({1, 3})}}, {})[0].sizes(), (at::IntArrayRef{3, 3}));
}

TEST(Merge, GivesEachMicrobatchTheGradientOfItsPart) {
  const std::vector<Tensors> parts = two_microbatches();
  const Tensors gradients{at::arange(9).view({3, 3}), at::arange(3), at::scalar_tensor(3.0), {}, {}};
  const std::vector<Tensors> split = split_gradients(gradients, parts, {.dimensions = {1, 0, 0, 0, 0}});
  EXPECT_TRUE(at::equal(split[0][0], gradients[0].narrow(1, 0, 2)));
  EXPECT_TRUE(at::equal(split[1][0], gradients[0].narrow(1, 2, 1)));
  EXPECT_TRUE(at::equal(split[1][1], at::arange(2, 3)));
  EXPECT_EQ(split[0][2].item<double>(), 1.5) << "of a mean over two";
  EXPECT_FALSE(split[0][3].defined());
}

TEST(Merge, IsTheUsersFunctionWhereThereIsOne) {
  const auto largest = [](const std::vector<Tensors>& microbatches) -> Tensors {
    return {at::maximum(microbatches[0][2], microbatches[1][2])};
  };
  const Tensors merged = merge(two_microbatches(), {.dimensions = {}, .function = largest});
  ASSERT_EQ(merged.size(), 1U);
  EXPECT_EQ(merged[0].item<double>(), 4);
}

TEST(Merge, RefusesWhatCannotBecomeOneByItsNumber) {
  const at::Tensor one = at::ones({1}), wide = at::ones({1, 2}), number = at::scalar_tensor(1, at::kLong);
  const auto error = [](const std::vector<Tensors>& microbatches, std::vector<int> dimensions = {}) {
    return error_of([&] { (void)merge(microbatches, {.dimensions = std::move(dimensions)}); });
  };
  EXPECT_THAT(error({{one}, {one}}, {0, 0}), testing::HasSubstr("2 tensors, but there are 1"));
  EXPECT_THAT(error({{one}, {one}}, {1}), testing::HasSubstr("output 0"));
  EXPECT_THAT(error({{one, one}, {one, wide}}),
              testing::HasSubstr("output 1 of the microbatches cannot be merged: it has 1 dimensions"));
  EXPECT_THAT(error({{one, {}}, {one, one}}),
              testing::HasSubstr("output 1 of the microbatches cannot be merged: it is absent from some"));
  EXPECT_THAT(error({{number}, {number + 1}}), testing::HasSubstr("a number that differs"));
  EXPECT_THAT(error({{one}, {one, one}}), testing::HasSubstr("one microbatch gave 1 outputs, another 2"));
}

struct Noise : torch::nn::Module {
  Noise() : weight(register_parameter("weight", at::ones({4}))) {}
  at::Tensor forward(at::Tensor x) { return weight * at::dropout(x, 0.5, is_training()); }
  at::Tensor weight;
};

at::Tensor sum_of_products(at::Tensor output, at::Tensor label) { return (output * label).sum(); }

struct NoiseRun {
  NoiseRun() {
    at::set_num_threads(1);
    session.start();
  }
  // Returns the loss of a first round with these options, after the program has seeded LibTorch's
  // generator.
  double loss(std::uint64_t program_seed, const CallOptions& options) {
    torch::manual_seed(program_seed);
    return pipeline.forward_backward(at::arange(32, at::kFloat).view({8, 4}), at::ones({8, 4}), options).loss();
  }
  Session session{0, nullptr};
  Pipeline pipeline{
      session, {layer<Noise>(), layer<Noise>()}, rp::loss("sum of products", sum_of_products), {.num_microbatches = 2}};
};

TEST(CallOptions, RandomNumbersAreThoseOfTheRunUnlessTheyAreLeftAlone) {
  const auto loss = [](std::uint64_t program_seed, const CallOptions& options) {
    return NoiseRun().loss(program_seed, options);
  };
  EXPECT_EQ(loss(1, {}), loss(2, {}));
  EXPECT_NE(loss(1, {.preserve_random_state = false}), loss(2, {.preserve_random_state = false}));
  EXPECT_EQ(loss(3, {.preserve_random_state = false}), loss(3, {.preserve_random_state = false}));
}

TEST(CallOptions, ACallWithoutGradientsIsAnEvaluationAndOneWithGradientsNeedsAutograd) {
  NoiseRun run;
  const at::Tensor inputs = at::ones({8, 4});
  const at::Tensor evaluated = run.pipeline.forward(inputs, {.requires_grad = false}).at(0);
  EXPECT_TRUE(at::equal(evaluated, inputs)) << "an evaluation drops nothing out";
  EXPECT_FALSE(evaluated.requires_grad());
  const at::Tensor trained = run.pipeline.forward(inputs, {.requires_grad = true}).at(0);
  EXPECT_TRUE(trained.requires_grad());
  EXPECT_FALSE(at::equal(trained, inputs));
  const c10::NoGradGuard no_grad;
  EXPECT_THAT(error_of([&] { (void)run.pipeline.forward(inputs, {.requires_grad = true}); }),
              testing::HasSubstr("autograd is switched off"));
}

}  // namespace
}  // namespace rp
