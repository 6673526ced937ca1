#include "models/gpu_algorithms.h"

#include <gtest/gtest.h>

namespace rp::models {
namespace {

// Restores the settings of the process after each test.
class GpuAlgorithms : public testing::Test {
 protected:
  ~GpuAlgorithms() override {
    at::globalContext().setDeterministicAlgorithms(was_deterministic_, warned_only_);
    at::globalContext().setDeterministicFillUninitializedMemory(filled_);
    at::globalContext().setSDPUseCuDNN(used_cudnn_);
  }

 private:
  const bool was_deterministic_ = at::globalContext().deterministicAlgorithms();
  const bool warned_only_ = at::globalContext().deterministicAlgorithmsWarnOnly();
  const bool filled_ = at::globalContext().deterministicFillUninitializedMemory();
  const bool used_cudnn_ = at::globalContext().userEnabledCuDNNSDP();
};

TEST_F(GpuAlgorithms, WithAFixedOrderLeaveOutTheAttentionOfCudnn) {
  choose_gpu_algorithms(/*allows_nondeterminism=*/true);
  EXPECT_TRUE(at::globalContext().userEnabledCuDNNSDP());
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
  choose_gpu_algorithms(/*allows_nondeterminism=*/false);
  EXPECT_FALSE(at::globalContext().userEnabledCuDNNSDP());
  EXPECT_TRUE(at::globalContext().deterministicAlgorithms());
  EXPECT_TRUE(at::globalContext().deterministicAlgorithmsWarnOnly()) << "a user's layer goes on";
  EXPECT_FALSE(at::globalContext().deterministicFillUninitializedMemory());
}

}  // namespace
}  // namespace rp::models
