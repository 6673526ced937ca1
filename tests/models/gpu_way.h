// tests/models/gpu_way.h
// Runs products with weights on the code path of a GPU, here on the CPU. On this path they need
// only LibTorch's products.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>

#include "kernels/gpu_kernels.h"
#include "tests/models/expected_values.h"

namespace rp::models {

// Makes all tensors take the code path of a GPU.
class GpuWay : public testing::Test {
 protected:
  GpuWay() {
    table_.takes_cpu_memory = true;
    set_gpu_kernels(&table_);
    at::manual_seed(5);
  }
  ~GpuWay() override { set_gpu_kernels(nullptr); }

 private:
  GpuKernels table_;
};

// Returns a weight as the runtime binds it, with an fp32 gradient of ones.
inline at::Tensor bound(at::IntArrayRef shape, at::ScalarType dtype) {
  at::Tensor weight = leaf(shape, dtype);
  weight.set_grad_dtype(at::kFloat);
  weight.mutable_grad() = at::ones(shape);
  return weight;
}

// Records whether autograd received a gradient for a leaf.
class AutogradsShare {
 public:
  explicit AutogradsShare(const at::Tensor& leaf) {
    leaf.register_hook([there = is_there_](const at::Tensor& grad) { *there = *there || grad.defined(); });
  }
  [[nodiscard]] bool is_there() const { return *is_there_; }

 private:
  std::shared_ptr<bool> is_there_ = std::make_shared<bool>(false);
};

}  // namespace rp::models
