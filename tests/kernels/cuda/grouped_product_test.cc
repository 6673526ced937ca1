// Compares products over experts with sums in fp64. Values are small whole numbers, so every sum is
// exact in any order, and results must have the bits of the exact values, rounded once.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/device_array.h"

namespace rp::cuda {
namespace {

using Counts = std::vector<std::int64_t>;

class GroupedProducts : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(Formats, GroupedProducts, testing::Values(DType::kBFloat16, DType::kFloat16, DType::kFloat32),
                         name_of);

std::vector<float> whole_numbers(std::int64_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<float> result(count);
  for (float& value : result) value = static_cast<float>(static_cast<int>(generator() % 7) - 3);
  return result;
}

struct Sizes {
  Counts counts;
  std::int64_t inputs, outputs;
  std::int64_t rows_behind = 0;  // after those of the experts; they belong to no expert
};

// The operands of a layer of experts and the expected results of its products.
class Layer {
 public:
  Layer(DType dtype, const Sizes& sizes)
      : dtype_(dtype),
        sizes_(sizes),
        x_(whole_numbers(rows() * sizes.inputs, 1)),
        weight_(whole_numbers(experts() * sizes.inputs * sizes.outputs, 2)),
        grad_(whole_numbers(rows() * sizes.outputs, 3)),
        y_(grad_.size(), kUntouched),
        grad_x_(x_.size(), kUntouched),
        grad_weight_(weight_.size()) {
    std::int64_t row = 0;
    for (std::int64_t e = 0; e < experts(); ++e) {
      for (const std::int64_t end = row + sizes.counts[e]; row < end; ++row) take_row(e, row);
    }
    for (auto* values : {&y_, &grad_x_, &grad_weight_}) {
      for (float& value : *values)
        value = rounded(dtype_ == DType::kFloat32 || values == &grad_weight_ ? DType::kFloat32 : dtype_, value);
    }
  }

  void expect_results(std::size_t shift) const {
    const std::string what = std::to_string(rows()) + " rows, " + std::to_string(sizes_.inputs) + " to " +
                             std::to_string(sizes_.outputs) + ", shifted by " + std::to_string(shift);
    const ElementArray x(dtype_, x_, shift), weight(dtype_, weight_, shift), grad(dtype_, grad_, shift);
    const ElementArray y(dtype_, std::vector<float>(y_.size(), kUntouched), shift),
        grad_x(dtype_, std::vector<float>(grad_x_.size(), kUntouched), shift);
    const ElementArray grad_weight(dtype_, std::vector<float>(weight_.size(), kUntouched), shift);
    const DeviceArray<float> sum(std::vector<float>(weight_.size(), 5), shift);
    const DeviceArray<std::int64_t> counts(sizes_.counts), plan(models::expert_plan_size(rows(), experts()));
    kernel_table().plan_experts({counts.data(), plan.data(), rows(), experts()}, nullptr);
    models::GroupedProduct call = {.rows_in = x.data(),
                                   .weight = weight.data(),
                                   .result = y.data(),
                                   .plan = plan.data(),
                                   .rows = rows(),
                                   .experts = experts(),
                                   .inputs = sizes_.inputs,
                                   .outputs = sizes_.outputs};
    kernel_table().grouped_linear(dtype_, call, nullptr);
    EXPECT_EQ(y.values(), y_) << what;
    call.rows_in = grad.data();
    call.result = grad_x.data();
    kernel_table().grouped_linear_grad(dtype_, call, nullptr);
    EXPECT_EQ(grad_x.values(), grad_x_) << what;
    call.other_rows_in = x.data();
    call.weight = nullptr;
    call.result = grad_weight.data();
    kernel_table().grouped_weight_grad(dtype_, call, nullptr);
    std::vector<float> expected = grad_weight_;
    for (float& value : expected) value = rounded(dtype_, value);
    EXPECT_EQ(grad_weight.values(), expected) << what;
    call.result = nullptr;
    call.add_to = sum.data();
    kernel_table().grouped_weight_grad(dtype_, call, nullptr);
    expected = grad_weight_;
    for (float& value : expected) value += 5;
    EXPECT_EQ(sum.values(), expected) << what;
    (void)plan.values();  // checks its guards
  }

 private:
  static constexpr float kUntouched = 77;

  [[nodiscard]] std::int64_t experts() const { return static_cast<std::int64_t>(sizes_.counts.size()); }
  [[nodiscard]] std::int64_t rows() const {
    std::int64_t rows = sizes_.rows_behind;
    for (const std::int64_t count : sizes_.counts) rows += count;
    return rows;
  }

  void take_row(std::int64_t expert, std::int64_t row) {
    const std::int64_t inputs = sizes_.inputs, outputs = sizes_.outputs;
    const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
    for (std::int64_t i = 0; i < inputs; ++i) grad_x_[at(row * inputs + i)] = 0;
    for (std::int64_t o = 0; o < outputs; ++o) {
      float& y = y_[at(row * outputs + o)];
      y = 0;
      const float grad = grad_[at(row * outputs + o)];
      for (std::int64_t i = 0; i < inputs; ++i) {
        const auto w = at((expert * outputs + o) * inputs + i), in = at(row * inputs + i);
        y += x_[in] * weight_[w];
        grad_x_[in] += grad * weight_[w];
        grad_weight_[w] += grad * x_[in];
      }
    }
  }

  DType dtype_;
  Sizes sizes_;
  std::vector<float> x_, weight_, grad_, y_, grad_x_, grad_weight_;
};

// Experts without rows at the beginning, in the middle and at the end; numbers of rows around a
// tile's 128; widths around a pack's 8 (4), a step's 32 (16) and a tile's 128.
TEST_P(GroupedProducts, AreExactForAnyCountsAndWidths) {
  const std::vector<Sizes> all = {{{0, 3, 0, 0, 129, 1, 0}, 40, 24},
                                  {{128, 127}, 136, 8},
                                  {{0, 257, 0}, 8, 136},
                                  {{5}, 128, 128},
                                  {{2, 1, 4}, 16, 264},
                                  {{1, 130, 0}, 33, 7},
                                  {{3, 0, 2}, 1, 130},
                                  {{9, 0}, 96, 32, 12},
                                  {{0, 0, 0}, 8, 8, 3}};
  for (const Sizes& sizes : all) Layer(GetParam(), sizes).expect_results(0);
}

TEST_P(GroupedProducts, TakeArraysThatAreNotAligned) { Layer(GetParam(), {{0, 130, 3}, 40, 24}).expect_results(3); }

// More experts than the threads that plan them.
TEST_P(GroupedProducts, AreExactForManyExpertsOfFewRows) {
  if (GetParam() != DType::kFloat32) return;  // the plan does not depend on the format
  Counts counts;
  for (std::int64_t i = 0; i < 260; ++i) counts.push_back(i % 3);
  Layer(GetParam(), {counts, 16, 8}).expect_results(0);
}

// The GPU cannot throw: some rows get the product of another expert or none, and no other memory is
// read or written.
TEST_P(GroupedProducts, OfWrongCountsStayInsideTheirArrays) {
  const std::int64_t rows = 140, experts = 3, width = 8;
  for (const Counts& wrong :
       {Counts{100, 100, 100}, Counts{-5, 200, 0}, Counts{INT64_MAX, INT64_MIN, INT64_MAX}, Counts{0, 0, 1}}) {
    const ElementArray x(GetParam(), whole_numbers(rows * width, 1)),
        weight(GetParam(), whole_numbers(experts * width * width, 2));
    const ElementArray y(GetParam(), rows * width), grad_weight(GetParam(), experts * width * width);
    const DeviceArray<std::int64_t> counts(wrong), plan(models::expert_plan_size(rows, experts));
    kernel_table().plan_experts({counts.data(), plan.data(), rows, experts}, nullptr);
    models::GroupedProduct call = {.rows_in = x.data(),
                                   .other_rows_in = x.data(),
                                   .weight = weight.data(),
                                   .result = y.data(),
                                   .plan = plan.data(),
                                   .rows = rows,
                                   .experts = experts,
                                   .inputs = width,
                                   .outputs = width};
    kernel_table().grouped_linear(GetParam(), call, nullptr);
    kernel_table().grouped_linear_grad(GetParam(), call, nullptr);
    call.result = grad_weight.data();
    kernel_table().grouped_weight_grad(GetParam(), call, nullptr);
    (void)y.values();
    (void)grad_weight.values();
    const std::vector<std::int64_t> values = plan.values();
    EXPECT_TRUE(std::is_sorted(values.begin(), values.begin() + experts + 1));
    EXPECT_LE(values[experts], rows);
  }
}

}  // namespace
}  // namespace rp::cuda
