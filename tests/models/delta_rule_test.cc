#include "models/layers/delta_net/delta_rule.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/common/expect_refusal.h"
#include "tests/models/delta_cases.h"

namespace rp::models {
namespace {

constexpr const char* kNames[] = {
    "o", "gradient of q", "gradient of k", "gradient of v", "gradient of decay", "gradient of beta"};

void expect_close(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected, double tolerance) {
  for (std::size_t i = 0; i < 6; ++i) EXPECT_LE(relative_difference(actual[i], expected[i]), tolerance) << kNames[i];
}

void expect_recurrence(const DeltaCase& c, const at::Tensor& documents_bk = {}, double tolerance = 1e-5) {
  expect_close(our_rule(c, documents_bk), expected_rule(c, documents_bk), tolerance);
}

void expect_same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (std::size_t i = 0; i < 6; ++i) EXPECT_TRUE(same_bits(a[i], b[i])) << kNames[i];
}

at::Tensor lengths_of(const std::vector<std::vector<std::int64_t>>& rows) {
  std::size_t longest = 1;
  for (const auto& row : rows) longest = std::max(longest, row.size());
  std::vector<std::int64_t> all_lengths;
  for (auto row : rows) {
    row.resize(longest);
    all_lengths.insert(all_lengths.end(), row.begin(), row.end());
  }
  return at::tensor(all_lengths, at::kLong).view({static_cast<std::int64_t>(rows.size()), -1});
}

// Documents of 200 tokens that begin and end before, at and after the borders of chunks.
const std::vector<std::vector<std::int64_t>> kBorders = {
    {64, 64, 72}, {63, 1, 1, 64, 71}, {65, 63, 1, 71}, {1, 1, 1, 61, 64, 72},
    {128, 1, 71}, {127, 73},          {129, 70, 1},    {200}};

class DeltaRule : public testing::Test {
 protected:
  void SetUp() override { at::manual_seed(5); }
};

TEST_F(DeltaRule, AgreesWithItsRecurrenceForEveryLength) {
  for (const std::int64_t t : {1, 2, 3, 8, 9, 15, 17, 63, 64, 65, 127, 128, 129, 200, 333, 1000}) {
    SCOPED_TRACE(t);
    expect_recurrence(make_delta_case({.b = 2, .t = t, .k = 2, .d = 20, .h = 4, .e = 24}));
  }
}

TEST_F(DeltaRule, AgreesWithItsRecurrenceForHeadsOfEverySize) {
  for (const auto& [d, e] : {std::pair<std::int64_t, std::int64_t>{128, 128}, {2, 1}, {16, 33}, {64, 16}, {5, 128}}) {
    SCOPED_TRACE(testing::Message() << d << " " << e);
    expect_recurrence(make_delta_case({.t = 150, .k = 1, .d = d, .h = 3, .e = e}));
  }
}

TEST_F(DeltaRule, StartsWithoutAStateAtEachDocument) {
  expect_recurrence(make_delta_case({.b = 8, .t = 200, .k = 1, .d = 12, .h = 2, .e = 10}), lengths_of(kBorders));
  // Documents of one token each.
  expect_recurrence(make_delta_case({.b = 1, .t = 70, .d = 12, .e = 10}),
                    lengths_of({std::vector<std::int64_t>(70, 1)}));
}

TEST_F(DeltaRule, SurvivesStrongAndMixedDecays) {
  DeltaCase c = make_delta_case({.b = 2, .t = 300, .k = 2, .d = 16, .h = 2, .e = 16});
  c.inputs[3] = at::full_like(c.inputs[3], -60.0F);
  expect_recurrence(c);
  // After thousands of strong decays in one sum, the differences of weak ones must still be exact.
  const at::Tensor choice = at::rand(c.inputs[3].sizes());
  c.inputs[3] = -at::rand(c.inputs[3].sizes()) * 0.05;
  c.inputs[3].masked_fill_(choice.lt(0.3), -60.0F);
  expect_recurrence(c);
  c.inputs[3].masked_fill_(choice.lt(0.1), -std::numeric_limits<float>::infinity());
  const std::vector<at::Tensor> infinite = our_rule(c);
  c.inputs[3].masked_fill_(choice.lt(0.1), -1e4F);
  expect_same(infinite, our_rule(c));
  expect_close(infinite, expected_rule(c), 1e-5);
  c.inputs[3].zero_();
  expect_recurrence(c, {}, 2e-5);
}

TEST_F(DeltaRule, SurvivesKeysThatAreNearlyEqual) {
  DeltaCase c = make_delta_case({.b = 2, .t = 300, .k = 2, .d = 16, .h = 2, .e = 16});
  c.inputs[1] = at::randn({1, 1, 1, 16}) + at::randn(c.inputs[1].sizes()) * 1e-3;
  expect_recurrence(c);
  // Each token replaces almost all of the state. So the gradient of a decay is the small sum of
  // large numbers: that of a recurrence in fp32 differs from fp64 by 4e-5.
  c.inputs[3] = c.inputs[3] * 1e-3;
  c.inputs[4] = at::ones_like(c.inputs[4]);
  std::vector<at::Tensor> actual = our_rule(c), expected = expected_rule(c);
  EXPECT_LE(relative_difference(actual[4], expected[4]), 3e-4);
  actual[4] = expected[4];
  expect_close(actual, expected, 1e-5);
}

TEST_F(DeltaRule, GivesKeysAndQueriesWithoutALengthFiniteGradients) {
  DeltaCase c = make_delta_case({.t = 70});
  c.inputs[0].narrow(1, 3, 4).zero_();
  c.inputs[1].narrow(1, 5, 60).mul_(1e-4);
  expect_recurrence(c);
}

TEST_F(DeltaRule, DocumentsOfAPackedRowHaveTheBitsThatTheyHaveAlone) {
  const DeltaCase c = make_delta_case({.b = 8, .t = 200, .k = 2, .d = 20, .h = 4, .e = 40}, at::kBFloat16);
  const std::vector<at::Tensor> packed = our_rule(c, lengths_of(kBorders));
  for (std::int64_t row = 0; row < 8; ++row) {
    std::int64_t first = 0;
    for (const std::int64_t length : kBorders[static_cast<std::size_t>(row)]) {
      SCOPED_TRACE(testing::Message() << "row " << row << ", document at " << first);
      const auto part = [&, row](const at::Tensor& x) { return x.narrow(0, row, 1).narrow(1, first, length); };
      DeltaCase alone{{}, part(c.grad_o)};
      for (std::size_t i = 0; i < 5; ++i) alone.inputs[i] = part(c.inputs[i]);
      std::vector<at::Tensor> of_packed;
      for (const at::Tensor& x : packed) of_packed.push_back(part(x));
      expect_same(of_packed, our_rule(alone));
      first += length;
    }
  }
}

TEST_F(DeltaRule, LeavesTheRestOfARowAsOneMoreDocument) {
  const DeltaCase c = make_delta_case({.b = 2, .t = 100});
  expect_same(our_rule(c, lengths_of({{30, 70}, {100}})), our_rule(c, lengths_of({{30}, {0}})));
  expect_error(ExitCode::kUserError, {"document 1 of sequence 0"}, [&] {
    (void)gated_delta_rule(rule_inputs(c.inputs, lengths_of({{30, 71}, {0}})));
  });
}

TEST_F(DeltaRule, GivesTheSameBitsWithAnyNumberOfThreadsAndForRowsAlone) {
  const DeltaCase c = make_delta_case({.b = 3, .t = 140, .k = 2, .d = 24, .h = 6, .e = 20}, at::kBFloat16);
  const at::Tensor documents = lengths_of({{70, 70}, {140}, {65, 1, 74}});
  const std::vector<at::Tensor> one = with_threads(1, [&] { return our_rule(c, documents); });
  for (const int threads : {2, 3, 8}) {
    SCOPED_TRACE(threads);
    expect_same(one, with_threads(threads, [&] { return our_rule(c, documents); }));
  }
  for (std::int64_t row = 0; row < 3; ++row) {
    SCOPED_TRACE(row);
    DeltaCase alone{{}, c.grad_o.narrow(0, row, 1)};
    for (std::size_t i = 0; i < 5; ++i) alone.inputs[i] = c.inputs[i].narrow(0, row, 1);
    std::vector<at::Tensor> of_all;
    for (const at::Tensor& x : one) of_all.push_back(x.narrow(0, row, 1));
    expect_same(of_all, our_rule(alone, documents.narrow(0, row, 1)));
  }
}

// Everything within the rule is fp32: 16-bit inputs give the rounded results of equal fp32 inputs.
TEST_F(DeltaRule, RoundsOnlyItsResultsAndGradients) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const DeltaCase c = make_delta_case({.t = 150, .k = 2, .d = 24, .h = 4, .e = 20}, dtype);
    DeltaCase wide{{}, c.grad_o.to(at::kFloat)};
    for (std::size_t i = 0; i < 5; ++i) wide.inputs[i] = c.inputs[i].to(at::kFloat);
    std::vector<at::Tensor> expected = our_rule(wide);
    for (std::size_t i = 0; i < 6; ++i) expected[i] = expected[i].to(i == 4 ? at::kFloat : dtype);
    expect_same(our_rule(c), expected);
  }
}

TEST_F(DeltaRule, TakesPartsOfAWiderTensorWithoutACopy) {
  const DeltaCase c = make_delta_case({.b = 2, .t = 100, .k = 2, .d = 16, .h = 4, .e = 20});
  const std::vector<at::Tensor> expected = our_rule(c);
  const at::Tensor joined =
      at::cat({c.inputs[0].flatten(2), c.inputs[1].flatten(2), c.inputs[2].flatten(2)}, 2).requires_grad_(true);
  const std::vector<at::Tensor> parts = joined.split_with_sizes({32, 32, 80}, 2);
  const at::Tensor o = gated_delta_rule({parts[0].view({2, 100, 2, 16}), parts[1].view({2, 100, 2, 16}),
                                         parts[2].view({2, 100, 4, 20}), c.inputs[3], c.inputs[4]});
  torch::autograd::backward({o}, {c.grad_o});
  EXPECT_TRUE(same_bits(o.detach(), expected[0]));
  EXPECT_TRUE(
      same_bits(joined.grad(), at::cat({expected[1].flatten(2), expected[2].flatten(2), expected[3].flatten(2)}, 2)));
  // Heads that do not follow each other are copied.
  const at::Tensor q = c.inputs[0].transpose(1, 2).contiguous().transpose(1, 2);
  EXPECT_TRUE(same_bits(gated_delta_rule({q, c.inputs[1], c.inputs[2], c.inputs[3], c.inputs[4]}), expected[0]));
}

TEST_F(DeltaRule, GivesTheSameBitsWithoutAGradient) {
  const DeltaCase c = make_delta_case({.b = 2, .t = 200});
  EXPECT_TRUE(same_bits(gated_delta_rule(rule_inputs(c.inputs)), our_rule(c)[0]));
}

TEST_F(DeltaRule, ANaNStaysInItsDocument) {
  DeltaCase c = make_delta_case({.b = 1, .t = 200});
  // The second document is shorter than a tile of rows, so the buffers behind it contain the first.
  const at::Tensor documents = lengths_of({{90, 5, 105}});
  const std::vector<at::Tensor> clean = our_rule(c, documents);
  c.inputs[1][0][6].fill_(std::numeric_limits<float>::quiet_NaN());
  const std::vector<at::Tensor> damaged = our_rule(c, documents);
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_TRUE(same_bits(damaged[i].narrow(1, 90, 110), clean[i].narrow(1, 90, 110))) << kNames[i];
  }
  EXPECT_TRUE(damaged[0].narrow(1, 6, 84).isnan().all().item<bool>());
}

TEST_F(DeltaRule, RefusesOtherDevicesAndWrongShapesByName) {
  const DeltaCase c = make_delta_case({.t = 4, .k = 2, .h = 4});
  for (std::size_t i = 0; i < 5; ++i) {
    auto inputs = c.inputs;
    inputs[i] = inputs[i].to(at::kMeta);
    EXPECT_THAT(error_of([&] { (void)gated_delta_rule(rule_inputs(inputs)); }),
                testing::HasSubstr("gated_delta_rule: computes on the CPU or a GPU, not on meta"));
    inputs[i] = c.inputs[i].narrow(1, 0, 3);
    EXPECT_THAT(error_of([&] { (void)gated_delta_rule(rule_inputs(inputs)); }), testing::HasSubstr("gated_delta_rule"));
    inputs[i] = c.inputs[i].to(at::kHalf);
    EXPECT_THAT(error_of([&] { (void)gated_delta_rule(rule_inputs(inputs)); }), testing::HasSubstr("gated_delta_rule"));
  }
  EXPECT_THAT(error_of([&] {
                (void)gated_delta_rule(rule_inputs(c.inputs, lengths_of({{1}, {1}})));
              }),
              testing::HasSubstr("gated_delta_rule: documents of 2 sequences, but there are 1"));
}

}  // namespace
}  // namespace rp::models
