// tests/pipeline/residual_block.h
// The layer and the loss of most tests of pipelines, and the comparison of what they train.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "roundpipe/roundpipe.h"
#include "tests/models/golden.h"

namespace rp::test {

struct ResidualBlock : torch::nn::Module {
  explicit ResidualBlock(int size) : linear(register_module("linear", torch::nn::Linear(size, size))) {}
  at::Tensor forward(at::Tensor x) { return x + torch::tanh(linear(x)); }
  torch::nn::Linear linear;
};

// The sum of the squared errors of one microbatch, as its part of a mean over `kCount` elements.
template <int kCount>
at::Tensor mean_square(at::Tensor output, at::Tensor label) {
  return (output - label).to(at::kFloat).square().sum() / kCount;
}

inline void expect_same(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(models::same_bits(actual[i], expected[i])) << "tensor " << i;
  }
}

}  // namespace rp::test
