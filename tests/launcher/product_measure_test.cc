// Tests matrix products with a driver and a cuBLAS that need no GPU. In them, the time between any
// two events is 1 ms.
#include "launcher/probe/product_measure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "roundpipe/error.h"
#include "tests/cuda/fake_driver/fake_driver.h"

namespace rp {
namespace {

using test::FakeDriver;
using testing::HasSubstr;

// One call: the sizes as cuBLAS sees them, and the bytes of each matrix that its leading dimension
// reaches.
struct Call {
  BlasForm a_form, b_form;
  int m, n, k, lda, ldb, ldc;
  BlasType type;
  BlasCompute compute;
  float alpha;
  const void *a, *b, *c;
};
std::vector<Call> g_calls;
int g_num_handles = 0;
std::map<std::string, int> g_statuses;  // by function; functions that are missing here return 0

Cublas fake_cublas() {
  g_calls.clear();
  g_statuses.clear();
  return {.create =
              [](void** handle) {
                *handle = &g_num_handles;
                if (g_statuses["create"] == 0) ++g_num_handles;
                return g_statuses["create"];
              },
          .destroy =
              [](void*) {
                --g_num_handles;
                return 0;
              },
          .set_stream = [](void*, CUstream) { return g_statuses["set_stream"]; },
          .gemm_ex =
              [](void*, BlasForm a_form, BlasForm b_form, int m, int n, int k, const void* alpha, const void* a,
                 BlasType type, int lda, const void* b, BlasType, int ldb, const void* beta, void* c, BlasType, int ldc,
                 BlasCompute compute, int) {
                const bool is_half = compute == BlasCompute::kFloat16;
                const auto number = [&](const void* at) {
                  return is_half ? (*static_cast<const std::uint16_t*>(at) == 0x3c00 ? 1.0F : 0.0F)
                                 : *static_cast<const float*>(at);
                };
                EXPECT_EQ(number(beta), 0);
                g_calls.push_back({a_form, b_form, m, n, k, lda, ldb, ldc, type, compute, number(alpha), a, b, c});
                return g_statuses["gemm"];
              }};
}

constexpr int kRows = 64, kIn = 32, kOut = 96;
ProductSettings small() {
  return {.shapes = {{kRows, kIn, kOut}, {kRows, kOut, kIn}}, .num_warm_up = 1, .num_runs = 3};
}

TEST(ProductMeasure, MultipliesTheThreeProductsOfEachLayerInEveryKind) {
  const FakeDriver driver;
  const CudaContext context = CudaContext::open(driver.table(), "");
  const Cublas cublas = fake_cublas();
  ProbeFigures figures;
  measure_products(context, &cublas, small(), figures);
  // Two layers, three products, four runs and four kinds.
  EXPECT_EQ(g_calls.size(), 2U * 3 * 4 * 4);
  std::map<std::tuple<BlasType, BlasCompute>, int> kinds;
  for (const Call& call : g_calls) {
    ++kinds[{call.type, call.compute}];
    EXPECT_EQ(call.alpha, 1);
    EXPECT_EQ(std::int64_t{call.m} * call.n * call.k, std::int64_t{kRows} * kIn * kOut);
    // A leading dimension is the first size of the matrix as stored.
    EXPECT_EQ(call.lda, call.a_form == BlasForm::kPlain ? call.m : call.k);
    EXPECT_EQ(call.ldb, call.b_form == BlasForm::kPlain ? call.k : call.n);
    EXPECT_EQ(call.ldc, call.m);
    EXPECT_TRUE(call.a != call.b && call.b != call.c && call.a != call.c);
  }
  EXPECT_EQ(kinds, (std::map<std::tuple<BlasType, BlasCompute>, int>{{{BlasType::kBFloat16, BlasCompute::kFloat32}, 24},
                                                                     {{BlasType::kFloat16, BlasCompute::kFloat32}, 24},
                                                                     {{BlasType::kFloat16, BlasCompute::kFloat16}, 24},
                                                                     {{BlasType::kFloat32, BlasCompute::kTf32}, 24}}));
  // Each product takes 1 ms.
  for (double ProbeFigures::*figure : {&ProbeFigures::bf16_tflops, &ProbeFigures::fp16_tflops,
                                       &ProbeFigures::fp16_accumulate_tflops, &ProbeFigures::tf32_tflops}) {
    EXPECT_DOUBLE_EQ(figures.*figure, 2.0 * kRows * kIn * kOut / 1e9);
  }
  EXPECT_DOUBLE_EQ(figures.memory_gbs, 2.0 * 4 * kRows * kOut / 1e6);
  EXPECT_EQ(g_num_handles, 0);
  EXPECT_EQ(driver.taken_bytes(), 0U);
}

TEST(ProductMeasure, WithoutCublasTheMemoryIsMeasuredAlone) {
  const FakeDriver driver;
  const CudaContext context = CudaContext::open(driver.table(), "");
  ProbeFigures figures;
  measure_products(context, nullptr, small(), figures);
  EXPECT_GT(figures.memory_gbs, 0);
  EXPECT_EQ(figures.bf16_tflops, 0);
}

TEST(ProductMeasure, WhateverFailsIsSaidAndNothingIsLeftBehind) {
  const auto failure = [](const std::string& function, bool of_driver) -> std::string {
    FakeDriver driver;
    const Cublas cublas = fake_cublas();
    if (of_driver) driver.fail(function, CUDA_ERROR_OUT_OF_MEMORY);
    else g_statuses[function] = 13;
    std::string said;
    {
      const CudaContext context = CudaContext::open(driver.table(), "");
      ProbeFigures figures;
      try {
        measure_products(context, &cublas, small(), figures);
      } catch (const Error& error) {
        said = error.what();
      }
    }
    EXPECT_EQ(driver.taken_bytes(), 0U) << function;
    EXPECT_EQ(g_num_handles, 0) << function;
    return said;
  };
  for (const char* function : {"cuMemAlloc", "cuStreamCreateWithPriority", "cuMemcpyAsync", "cuEventCreate",
                               "cuEventRecord", "cuEventSynchronize"}) {
    EXPECT_THAT(failure(function, true), HasSubstr("CUDA_ERROR_OUT_OF_MEMORY")) << function;
  }
  EXPECT_THAT(failure("create", false), HasSubstr("cublasCreate gives status 13"));
  EXPECT_THAT(failure("set_stream", false), HasSubstr("cublasSetStream gives status 13"));
  EXPECT_THAT(failure("gemm", false), HasSubstr("cublasGemmEx gives status 13"));
}

TEST(LoadCublas, SaysWhyThereIsNone) {
  EXPECT_THAT(load_cublas("", "libno-such-blas.so").problem,
              HasSubstr("libno-such-blas.so is not among this machine's libraries"));
  EXPECT_THAT(load_cublas("/no/plugin.so", "libno-such-blas.so").problem,
              HasSubstr("the plug-in for GPUs cannot be loaded: /no/plugin.so"));
  const FoundCublas other = load_cublas("", "libc.so.6");
  EXPECT_FALSE(other.table.has_value());
  EXPECT_THAT(other.problem, HasSubstr("lacks functions"));
}

}  // namespace
}  // namespace rp
