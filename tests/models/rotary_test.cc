#include "models/layers/rotary.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

namespace rp::models {
namespace {

const at::Tensor frequencies() { return rotary_frequencies({.theta = 100}, 8); }

TEST(GrowingTable, EachRowIsMultipliedByTheLogarithmOfHowOftenItsPositionHasTheContext) {
  const RotaryTable table = make_rotary_table(frequencies(), 40, at::kFloat, 1);
  const RotaryTable growing = growing_table(table, 0.3, 16, at::kFloat).value();
  for (std::int64_t position = 0; position < 40; ++position) {
    const double factor = 1 + 0.3 * std::log(1 + static_cast<double>(position / 16));
    EXPECT_TRUE(growing.cosine_tr2[position].allclose(table.cosine_tr2[position] * factor, 1e-6)) << position;
    EXPECT_TRUE(growing.sine_tr2[position].allclose(table.sine_tr2[position] * factor, 1e-6)) << position;
  }
  EXPECT_TRUE(growing.cosine_tr2[15].equal(table.cosine_tr2[15]));
  EXPECT_FALSE(growing.cosine_tr2[16].equal(table.cosine_tr2[16]));
}

TEST(GrowingTable, ItsFactorsHaveThePrecisionOfActivations) {
  const RotaryTable table = make_rotary_table(frequencies(), 20, at::kBFloat16, 1);
  const RotaryTable growing = growing_table(table, 0.1, 16, at::kBFloat16).value();
  const at::Tensor factor = at::scalar_tensor(1 + 0.1 * std::log(2), at::kFloat).to(at::kBFloat16).to(at::kFloat);
  EXPECT_TRUE(growing.cosine_tr2[17].equal(table.cosine_tr2[17] * factor));
}

TEST(GrowingTable, ThereIsNoneWithinTheContextOrWithoutGrowth) {
  const RotaryTable table = make_rotary_table(frequencies(), 16, at::kFloat, 1);
  EXPECT_FALSE(growing_table(table, 0.3, 16, at::kFloat).has_value());
  EXPECT_FALSE(growing_table(table, 0, 4, at::kFloat).has_value());
  EXPECT_TRUE(growing_table(table, 0.3, 15, at::kFloat).has_value());
}

}  // namespace
}  // namespace rp::models
