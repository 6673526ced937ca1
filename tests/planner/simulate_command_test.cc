#include "planner/simulate_command.h"

#include <gtest/gtest.h>

#include "tests/common/expect_refusal.h"
#include "tests/planner/workload_json.h"
#include "tests/scheduler/golden_schedules.h"

namespace rp::test {
namespace {

using nlohmann::json;

constexpr double kFourDecimals = 0.00005;

SimulationResult simulated(const json& input, std::optional<BoundSchedule> schedule, Effort effort = Effort::kFast) {
  return simulate_file(
      read_json(input), schedule, effort, [](const std::string&) {}, [] { return true; });
}

TEST(SimulateCommand, GivesThePublishedFiguresForThePublishedStages) {
  for (const GoldenModel& golden : golden_models()) {
    SCOPED_TRACE(golden.name);
    json input = workload_json(golden.workload);
    input["round_microbatches"] = 8;
    input["forward_stages"] = golden.forward;
    input["backward_stages"] = golden.backward;
    input["backward_stages"].insert(input["backward_stages"].begin(), 0);
    const SimulationResult result = simulated(input, std::nullopt);
    EXPECT_NEAR(result.synchronous.step_ms, golden.roundpipe, kFourDecimals);
    ASSERT_TRUE(result.asynchronous.has_value());
    EXPECT_NEAR(result.asynchronous->step_ms, golden.period_of_8, kFourDecimals);
    EXPECT_NEAR(result.synchronous.bubble, 1 - golden.busy_per_gpu / golden.roundpipe, 1e-5);
    const json printed = json::parse(simulation_json(result));
    EXPECT_NEAR(printed["makespan_ms"].get<double>(), golden.roundpipe, kFourDecimals);
    EXPECT_NEAR(printed["period_ms"].get<double>(), golden.period_of_8, kFourDecimals);
    EXPECT_TRUE(printed.contains("bubble") && printed.contains("async_bubble"));
    EXPECT_FALSE(printed.contains("plan")) << "it was given";

    input["stages"] = golden.bound;
    EXPECT_NEAR(simulated(input, BoundSchedule::k1F1B).synchronous.step_ms, golden.one_f_one_b, kFourDecimals);
  }
}

TEST(SimulateCommand, PlansWhatIsNotGivenAndPrintsIt) {
  const GoldenModel golden = golden_models().front();
  const SimulationResult result = simulated(workload_json(golden.workload), std::nullopt);
  EXPECT_LE(result.synchronous.step_ms, 2193.3985);
  EXPECT_LE(result.asynchronous->step_ms, 1862.5365);
  EXPECT_LT(result.asynchronous->bubble, result.synchronous.bubble);
  const json printed = json::parse(simulation_json(result));
  EXPECT_GE(printed["makespan_ms"].get<double>(), printed["lower_bound_ms"].get<double>());
  // The printed plan can be used as input.
  json input = workload_json(golden.workload);
  input.update(printed["plan"]);
  EXPECT_NEAR(simulated(input, std::nullopt).synchronous.step_ms, result.synchronous.step_ms, 1e-6);
  input.update(printed["async_plan"]);
  EXPECT_NEAR(simulated(input, std::nullopt).asynchronous->step_ms, result.asynchronous->step_ms, 1e-6);
  EXPECT_NE(simulation_text(result).find("synchronous:  rounds of "), std::string::npos);
}

TEST(SimulateCommand, StagesThatArePlannedAreNoWorseThanThePublishedOnes) {
  const GoldenModel golden = golden_models().front();
  const json input = workload_json(golden.workload);
  EXPECT_LE(simulated(input, BoundSchedule::kGPipe).synchronous.step_ms, golden.gpipe + kFourDecimals);
  EXPECT_LE(simulated(input, BoundSchedule::k1F1B).synchronous.step_ms, golden.one_f_one_b + kFourDecimals);
  EXPECT_LE(simulated(input, BoundSchedule::kInterleaved).synchronous.step_ms, golden.interleaved + kFourDecimals);
  EXPECT_LE(simulated(input, BoundSchedule::kLoopedBfs).synchronous.step_ms, golden.looped_bfs + kFourDecimals);
}

TEST(SimulateCommand, ForeverReportsWhatItFinds) {
  std::string told;
  const SimulationResult result = simulate_file(
      read_json(workload_json(golden_workload(6, {1, 2}, {1, 1}, 0.5))), std::nullopt, Effort::kForever,
      [&](const std::string& text) { told += text; }, [] { return true; });
  EXPECT_NE(told.find("synchronous"), std::string::npos);
  EXPECT_NE(told.find("asynchronous"), std::string::npos);
  EXPECT_GT(result.synchronous.step_ms, 0);
}

TEST(SimulateCommand, GivesThePeakOfMemoryWhereLayersSayWhatTheyNeed) {
  const GoldenModel golden = golden_models().front();
  json input = workload_json(golden.workload);
  input["round_microbatches"] = 8;
  input["forward_stages"] = golden.forward;
  input["backward_stages"] = golden.backward;
  input["backward_stages"].insert(input["backward_stages"].begin(), 0);
  input["stages"] = golden.bound;
  const json memory =
      with_memory(input, {{"weights_mib", 100}, {"upload_mib", 12.5}, {"activation_mib", 2}, {"saved_mib", 30}});

  // 3 layers: weights 300, their inputs for all 16 microbatches, and what the backward of one layer
  // needs.
  const json gpipe = json::parse(simulation_json(simulated(memory, BoundSchedule::kGPipe)));
  EXPECT_EQ(gpipe["peak_memory_mib"][0], 300 + 16 * 3 * 2 + 30);
  // 2 layers and the head, whose 30 are kept for each microbatch.
  EXPECT_EQ(gpipe["peak_memory_mib"][7], 300 + 16 * (3 * 2 + 30));
  EXPECT_FALSE(gpipe.contains("host_peak_mib"));
  const json one_f_one_b = json::parse(simulation_json(simulated(memory, BoundSchedule::k1F1B)));
  EXPECT_EQ(one_f_one_b["peak_memory_mib"][0], 300 + 8 * 3 * 2 + 30);
  EXPECT_EQ(one_f_one_b["peak_memory_mib"][7], 300 + 3 * 2 + 30);
  EXPECT_EQ(one_f_one_b["makespan_ms"],
            json::parse(simulation_json(simulated(input, BoundSchedule::k1F1B)))["makespan_ms"]);

  const SimulationResult result = simulated(memory, std::nullopt);
  const json round = json::parse(simulation_json(result));
  ASSERT_EQ(round["peak_memory_mib"].size(), 8U);
  for (const char* key : {"peak_memory_mib", "async_peak_memory_mib"}) {
    for (const json& gpu : round[key]) {
      EXPECT_GE(gpu.get<double>(), 3 * 12.5 + 2 + 2 + 3 * 30) << "a backward stage of three layers";
      EXPECT_LE(gpu.get<double>(), 2 * 7 * 12.5 + 4 * 2 + 4 * 2 + 3 * 30);
    }
  }
  // The boundaries of at most two rounds of microbatches at a time, or of all that is in flight
  // asynchronously.
  EXPECT_GT(round["host_peak_mib"].get<double>(), 8 * 2 * 9.0);
  EXPECT_GE(round["async_host_peak_mib"].get<double>(), round["host_peak_mib"].get<double>());
  const std::string text = simulation_text(result);
  EXPECT_NE(text.find(" GiB on GPU "), std::string::npos) << text;
  EXPECT_NE(text.find("activations on the host"), std::string::npos) << text;

  EXPECT_EQ(simulation_text(simulated(input, std::nullopt)).find("GiB"), std::string::npos)
      << "nothing is known of memory";
  EXPECT_FALSE(json::parse(simulation_json(simulated(input, std::nullopt))).contains("peak_memory_mib"));
}

TEST(SimulateCommand, ModelsThatAreTooSmallForTheGpusAreRefused) {
  const json input = workload_json(golden_workload(3, {1, 2}, {1, 1}, 0.5));
  expect_error(ExitCode::kUsage, {"3 layers and a head", "8 GPUs"},
               [&] { (void)simulated(input, BoundSchedule::kGPipe); });
  EXPECT_NO_THROW((void)simulated(input, std::nullopt)) << "RoundPipe needs no stage for each";
}

}  // namespace
}  // namespace rp::test
