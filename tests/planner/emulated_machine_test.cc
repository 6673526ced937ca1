#include "planner/prediction/emulated_machine.h"

#include <gtest/gtest.h>

#include "tests/common/expect_refusal.h"
#include "tests/common/temp_directory.h"
#include "tests/planner/workload_json.h"

namespace rp::test {
namespace {

using nlohmann::json;

std::string written(const TempDirectory& directory, const json& workload) {
  return directory.write("w.json", workload.dump()).string();
}

json workload() {
  return {{"gpus", 2},
          {"microbatches", 4},
          {"hop_ms", 8},
          {"gpu_slowness", {1, 3}},
          {"layers", {{{"forward_ms", 1}, {"backward_ms", 2}}}},
          {"head", {{"forward_ms", 5}, {"backward_ms", 6}}},
          {"device", {{"upload_gbs", 10}, {"optimizer_gbs", 100}, {"memory_gib", 24}, {"time_scale", 0.25}}}};
}

TEST(EmulatedMachine, OfAWorkloadFileTakesItsTimesScaled) {
  const TempDirectory directory;
  const EmulatedMachine machine = emulated_machine(written(directory, workload()));
  const std::vector<LayerWork> times = machine.layer_times({nullptr, nullptr});
  ASSERT_EQ(times.size(), 2U);
  EXPECT_EQ(times[0].backward, 0.5);
  EXPECT_EQ(times[1].forward, 1.25);
  EXPECT_EQ(machine.hop_ms, 2);
  EXPECT_EQ(machine.upload_gbs, 40) << "a quarter of the time";
  EXPECT_EQ(machine.download_gbs, 0);
  EXPECT_EQ(machine.optimizer_gbs, 400);
  EXPECT_EQ(machine.memory_bytes, std::uint64_t{24} << 30);
  EXPECT_EQ(machine.host_memory_bytes, 0U);
  EXPECT_EQ(machine.slowness_of(1), 3);
  expect_error(ExitCode::kUsage, {"has 1 layers and a head", "the model has 3"}, [&] {
    (void)machine.layer_times({nullptr, nullptr, nullptr});
  });
}

TEST(EmulatedMachine, OfAProfileTakesTheTimesThatLayersCost) {
  const EmulatedMachine machine = emulated_machine("rtx4090");
  EXPECT_EQ(machine.name, "sim:rtx4090");
  const LayerCost cost{.forward = {.gemm_flops = 1e12}, .backward = {.gemm_flops = 2e12}};
  const std::vector<LayerWork> times = machine.layer_times({&cost});
  EXPECT_GT(times.at(0).forward, 1);
  EXPECT_DOUBLE_EQ(times.at(0).backward, 2 * times.at(0).forward);
  EXPECT_GT(machine.upload_gbs, 1);
  EXPECT_GT(machine.memory_bytes, std::uint64_t{20} << 30);
  EXPECT_GT(machine.host_memory_bytes, std::uint64_t{100} << 30);
  expect_error(ExitCode::kUsage, {"has no cost for layer 1", "models::emulated()", "--device sim:FILE.json"}, [&] {
    (void)machine.layer_times({&cost, nullptr});
  });
}

TEST(EmulatedMachine, OfAnotherNameIsNone) {
  expect_error(ExitCode::kUsage, {"rtx4091", "rtx4090"}, [] { (void)emulated_machine("rtx4091"); });
}

TEST(EmulatedMachine, OfAFileWithAnUnknownFigureIsRefused) {
  const TempDirectory directory;
  json bad = workload();
  bad["device"] = {{"upload_gb", 10}};
  expect_error(ExitCode::kBadInput, {"\"device\" has an unknown key 'upload_gb'", "did you mean upload_gbs"},
               [&] { (void)emulated_machine(written(directory, bad)); });
  bad["device"] = {{"time_scale", 0}};
  expect_error(ExitCode::kBadInput, {"\"device\".time_scale is 0"},
               [&] { (void)emulated_machine(written(directory, bad)); });
}

}  // namespace
}  // namespace rp::test
