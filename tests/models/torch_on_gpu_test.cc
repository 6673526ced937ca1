// Tests LibTorch's own kernels on a GPU, as the models call them, against fp64 on the CPU. An
// emulation of our kernels cannot show this.
#include <ATen/Context.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <gtest/gtest.h>

#include "kernels/cuda/kernels.h"
#include "models/gpu_algorithms.h"
#include "models/layers/attention/gpu_attention.h"
#include "models/layers/documents.h"
#include "models/layers/grouped_linear.h"
#include "tests/models/golden.h"

namespace rp::models {
namespace {

constexpr at::DeviceType kDevice = at::kCUDA;

class TorchOnGpu : public testing::TestWithParam<at::ScalarType> {
 protected:
  // Sets up LibTorch and our kernels as a worker does (plugin/).
  static void SetUpTestSuite() {
    choose_gpu_algorithms(/*allows_nondeterminism=*/false);
    if (!at::globalContext().hasCUDA()) return;
    table_ = cuda::kernel_table();
    table_.current_stream = []() -> void* { return c10::cuda::getCurrentCUDAStream().stream(); };
    const int generation = at::cuda::getDeviceProperties(0)->major;
    table_.libtorch_groups_bf16 = generation == 9 || generation == 10;
    set_gpu_kernels(&table_);
  }
  static void TearDownTestSuite() { set_gpu_kernels(nullptr); }
  void SetUp() override {
    if (kDevice == at::kCUDA && !at::globalContext().hasCUDA()) GTEST_SKIP() << "no CUDA device: LibTorch finds none";
    at::manual_seed(9);
  }
  static inline GpuKernels table_;
  static double tolerance() { return GetParam() == at::kFloat ? 5e-5 : GetParam() == at::kHalf ? 3e-3 : 2e-2; }
};

using Results = std::vector<at::Tensor>;

// Returns the output and the gradients of `run` on leaves with these values on that device and in
// that dtype, copied back to the CPU.
template <typename Run>
Results results_of(const std::vector<at::Tensor>& values, at::DeviceType device, at::ScalarType dtype, const Run& run) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& value : values) leaves.push_back(value.to(device, dtype).detach().requires_grad_(true));
  const at::Tensor out = run(leaves);
  at::manual_seed(11);
  torch::autograd::backward({out}, {at::randn(out.sizes()).to(values[0].scalar_type()).to(device, dtype)});
  Results results = {out.detach().to(at::kCPU)};
  for (const at::Tensor& leaf : leaves) results.push_back(leaf.grad().to(at::kCPU));
  return results;
}

void expect_near(const Results& actual, const Results& expected, double tolerance, const char* what) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LE(relative_difference(actual[i], expected[i]), tolerance) << what << ", value " << i;
  }
}

using Attend = at::Tensor (*)(const at::Tensor&, const at::Tensor&, const at::Tensor&, const AttentionRule&);

// bf16 and fp16 use the kernel for different lengths, and fp32 computes document by document. Heads of
// 512 elements are computed in blocks of queries. attention_by_libtorch() computes all dtypes document
// by document.
TEST_P(TorchOnGpu, PackedDocumentsAreWhatEachIsAlone) {
  const at::Tensor documents =
      at::tensor({64, 1, 0, 63, 65, 5, 130, 0, 0, 0, 0, 0, 0, 200, 0, 0, 0, 0}, at::kLong).view({3, 6});
  for (const std::int64_t size : {64, 512}) {
    SCOPED_TRACE("heads of " + std::to_string(size));
    const auto random = [size](std::int64_t heads) { return at::randn({3, 200, heads, size}).to(GetParam()); };
    const std::vector<at::Tensor> values = {random(4), random(2), random(2)};
    const auto with = [&](Attend attend, at::DeviceType device, at::ScalarType dtype) {
      const at::Tensor there = documents.to(device);
      return results_of(values, device, dtype, [&](const auto& leaves) {
        return attend(leaves[0], leaves[1], leaves[2], {.documents_bk = there});
      });
    };
    const Results expected = with(attention_by_libtorch, at::kCPU, at::kDouble);
    const Results packed = with(gpu_attention, kDevice, GetParam());
    expect_near(packed, expected, tolerance(), "all at once");
    expect_near(with(attention_by_libtorch, kDevice, GetParam()), expected, tolerance(), "by each");
    const Results again = with(gpu_attention, kDevice, GetParam());
    for (std::size_t i = 0; i < packed.size(); ++i)
      EXPECT_TRUE(same_bits(again[i], packed[i])) << "another time, value " << i;
  }
}

// Windows and sinks, with and without documents: bf16 and fp16 use the flash kernel, fp32 complete
// scores.
TEST_P(TorchOnGpu, WindowsAndSinksAreWhatTheFormulaSays) {
  const auto random = [](std::int64_t heads) { return at::randn({3, 200, heads, 64}).to(GetParam()); };
  const std::vector<at::Tensor> values = {random(4), random(2), random(2), at::randn({4}).to(GetParam())};
  const at::Tensor documents = at::tensor({64, 1, 0, 130, 0, 0, 200, 0, 0}, at::kLong).view({3, 3});
  for (const bool packed : {false, true}) {
    for (const std::int64_t window : {0, 1, 33, 500}) {
      const auto with = [&](Attend attend, at::DeviceType device, at::ScalarType dtype) {
        AttentionRule rule{
            .scale = 0.2, .window = window, .documents_bk = packed ? documents.to(device) : at::Tensor()};
        return results_of(values, device, dtype, [&](const auto& leaves) {
          rule.sinks_n = leaves[3];
          return attend(leaves[0], leaves[1], leaves[2], rule);
        });
      };
      SCOPED_TRACE("window " + std::to_string(window) + (packed ? ", documents" : ""));
      expect_near(with(gpu_attention, kDevice, GetParam()), with(attention_by_libtorch, at::kCPU, at::kDouble),
                  tolerance(), "attention");
    }
  }
}

// Experts without rows at the beginning, in the middle and at the end; and one expert with all
// rows.
TEST_P(TorchOnGpu, GroupedProductsOfExpertsWithoutRowsHaveNoGradient) {
  for (const std::vector<std::int64_t>& counts :
       {std::vector<std::int64_t>{0, 40, 0, 0, 88, 1, 0}, {129, 0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0, 129}}) {
    const at::Tensor rows = at::tensor(counts, at::kLong),
                     experts = at::repeat_interleave(at::arange(7, at::kLong), rows);
    const std::vector<at::Tensor> values = {at::randn({129, 64}).to(GetParam()), at::randn({7, 48, 64}).to(GetParam())};
    const Results expected = results_of(values, at::kCPU, at::kDouble, [&](const auto& leaves) {
      return at::einsum("nh,noh->no", {leaves[0], leaves[1].index_select(0, experts)});
    });
    const at::Tensor there = rows.to(kDevice);
    const bool libtorch_groups = table_.libtorch_groups_bf16;
    for (const bool ours : {false, true}) {
      table_.libtorch_groups_bf16 = libtorch_groups && !ours;
      const Results actual = results_of(
          values, kDevice, GetParam(), [&](const auto& leaves) { return grouped_linear(leaves[0], leaves[1], there); });
      expect_near(actual, expected, tolerance(), ours ? "by our kernel" : "by the kernel that a worker takes");
      for (std::size_t i = 0; i < counts.size(); ++i) {
        if (counts[i] == 0) {
          EXPECT_TRUE(actual[2][static_cast<std::int64_t>(i)].eq(0).all().item<bool>()) << "expert " << i;
        }
      }
    }
    table_.libtorch_groups_bf16 = libtorch_groups;
  }
}

// In this mode LibTorch reports an error for everything that waits for the GPU, such as copying
// numbers of rows to the host.
TEST_P(TorchOnGpu, GroupedProductsAndTheirGradientsWaitForNothing) {
  const at::Tensor x = at::randn({129, 64}).to(kDevice, GetParam()).requires_grad_(true),
                   grad = at::randn({129, 48}).to(kDevice, GetParam());
  const at::Tensor weight = at::randn({3, 48, 64}).to(kDevice, GetParam()).requires_grad_(true),
                   counts = at::tensor({40, 0, 89}, at::kLong).to(kDevice);
  weight.set_grad_dtype(at::kFloat);
  weight.mutable_grad() = at::zeros(weight.sizes(), weight.options().dtype(at::kFloat).requires_grad(false));
  torch::autograd::backward({grouped_linear(x, weight, counts)},
                            {grad});  // the first launches load modules, which waits
  c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR);
  EXPECT_NO_THROW(torch::autograd::backward({grouped_linear(x, weight, counts)}, {grad}));
  c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, TorchOnGpu, testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

}  // namespace
}  // namespace rp::models
