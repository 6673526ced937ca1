#include "pipeline/backend.h"

#include <gtest/gtest.h>

#include "coordinator/coordinator.h"
#include "roundpipe/models.h"
#include "tests/common/expect_refusal.h"

namespace rp {
namespace {

constexpr std::uint64_t kGpuBytes = std::uint64_t{24} << 30;

RuntimeSettings settings_of(const std::string& device, bool check_consistency = false) {
  SessionOptions options;
  options.device = device;
  options.check_consistency = check_consistency;
  return RuntimeSettings{}.completed(options);
}

std::unique_ptr<Backend> backend_of(const RuntimeSettings& settings) {
  return make_backend(settings, {.uuid = "", .bytes = kGpuBytes}, 2);
}

Model emulated_model() { return models::emulated("preset:qwen3-1.7b", {.sequences = 1, .sequence_length = 128}); }

PlanSettings plan_on(const Backend& backend) {
  PlanSettings settings;
  backend.complete_plan(settings);
  return settings;
}

TEST(Backend, OfTheCpuPlansForTheMemoryOfTheHost) {
  const RuntimeSettings settings = settings_of("cpu");
  const auto backend = backend_of(settings);
  EXPECT_TRUE(backend->has_weights());
  EXPECT_EQ(backend->recompute_grain(), RecomputeGrain::kLayer);
  EXPECT_EQ(backend->gpu_bytes(), 0U);
  EXPECT_FALSE(plan_on(*backend).fits_device);
  EXPECT_LT(plan_on(*backend).limits.max_stage_bytes, UINT64_MAX);
}

TEST(Backend, OfGpusPlansForTheirMeasuredMemory) {
  RuntimeSettings settings = settings_of("cuda");
  const auto backend = backend_of(settings);
  EXPECT_TRUE(backend->has_weights());
  EXPECT_EQ(backend->recompute_grain(), RecomputeGrain::kStage);
  EXPECT_EQ(backend->gpu_bytes(), kGpuBytes);
  settings.gpu_memory = "10GiB";
  EXPECT_EQ(backend->gpu_bytes(), std::uint64_t{10} << 30);
  EXPECT_TRUE(plan_on(*backend).fits_device);
  EXPECT_EQ(plan_on(*backend).limits.max_stage_bytes, UINT64_MAX);
}

TEST(Backend, OfEmulatedGpusHasTheirLimitsAndNoData) {
  const RuntimeSettings settings = settings_of("sim:rtx4090");
  const auto backend = backend_of(settings);
  EXPECT_FALSE(backend->has_weights());
  EXPECT_EQ(backend->recompute_grain(), RecomputeGrain::kStage);
  EXPECT_EQ(backend->gpu_bytes(), 0U);
  const Model model = emulated_model();
  backend->set_pipelines({{.model = &model}});
  EXPECT_FALSE(plan_on(*backend).fits_device);
  EXPECT_LT(plan_on(*backend).limits.max_stage_bytes, std::uint64_t{2} << 30);
  StoreSettings store;
  backend->complete_store(store);
  EXPECT_TRUE(store.is_sparse);
  EXPECT_GT(store.emulated_memory_bytes, 0U);
  EXPECT_EQ(store.arena_limit_bytes, store.emulated_memory_bytes);
  CoordinatorOptions coordinator;
  backend->complete_coordinator(coordinator);
  EXPECT_TRUE(coordinator.make_updater);
}

TEST(Backend, KeepsTheUsersLimitOfStages) {
  for (const char* device : {"cpu", "cuda", "sim:rtx4090"}) {
    const RuntimeSettings settings = settings_of(device);
    PlanSettings plan{.limits = {.max_stage_bytes = 7}};
    backend_of(settings)->complete_plan(plan);
    EXPECT_EQ(plan.limits.max_stage_bytes, 7U) << device;
  }
}

TEST(Backend, RefusesModelsThatItsDeviceCannotRun) {
  const Model model = emulated_model();
  for (const char* device : {"cpu", "cuda"}) {
    const RuntimeSettings settings = settings_of(device);
    expect_error(ExitCode::kUsage, {"an emulated layer has shapes and no weights"},
                 [&] { backend_of(settings)->set_pipelines({{.model = &model}}); });
  }
  const RuntimeSettings unknown = settings_of("sim:rtx490");
  expect_error(ExitCode::kUsage, {"did you mean rtx4090?"},
               [&] { backend_of(unknown)->set_pipelines({{.model = &model}}); });
  const RuntimeSettings checked = settings_of("sim:rtx4090", true);
  expect_error(ExitCode::kUsage, {"--check-consistency looks at data, and --device sim:rtx4090 has none"},
               [&] { backend_of(checked)->set_pipelines({{.model = &model}}); });
}

}  // namespace
}  // namespace rp
