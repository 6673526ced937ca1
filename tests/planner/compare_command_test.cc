#include "planner/compare_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iomanip>

#include "common/text.h"
#include "tests/common/expect_refusal.h"
#include "tests/planner/well_formed.h"
#include "tests/planner/workload_json.h"
#include "tests/scheduler/golden_schedules.h"

namespace rp::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json golden_json(const GoldenModel& golden) {
  json input = workload_json(golden.workload);
  input["round_microbatches"] = 8;
  input["forward_stages"] = golden.forward;
  input["backward_stages"] = golden.backward;
  input["backward_stages"].insert(input["backward_stages"].begin(), 0);
  return input;
}

TEST(CompareCommand, HasTheFiguresOfSimulate) {
  const GoldenModel golden = golden_models().front();
  const WorkloadFile file = read_json(golden_json(golden));
  const std::vector<ComparedSchedule> schedules = compare_schedules(file, Effort::kFast);
  ASSERT_EQ(schedules.size(), 6U);
  const json printed = json::parse(comparison_json(schedules));
  for (std::size_t i = 0; i < schedules.size(); ++i) {
    const SimulationResult alone = simulate_file(
        file, schedules[i].schedule, Effort::kFast, [](const std::string&) {}, [] { return true; });
    EXPECT_EQ(printed["schedules"][i], json::parse(simulation_json(alone)));
  }
  EXPECT_NEAR(printed["schedules"][5]["makespan_ms"].get<double>(), golden.roundpipe, 0.00005);
  const std::string text = comparison_text(schedules);
  for (const char* figure :
       {"gpipe", "zb-h1", "roundpipe async", "2286.0170", "19.07", "1937.2180", "rounds of 8; forward 7x4;"}) {
    EXPECT_THAT(text, HasSubstr(figure));
  }
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 8);
}

TEST(CompareCommand, HasAColumnOfMemoryWhereLayersSayWhatTheyNeed) {
  const json input = golden_json(golden_models().front());
  const WorkloadFile file =
      read_json(with_memory(input, {{"weights_mib", 1024}, {"activation_mib", 64}, {"saved_mib", 512}}));
  const std::vector<ComparedSchedule> schedules = compare_schedules(file, Effort::kFast);
  const std::string text = comparison_text(schedules);
  EXPECT_THAT(text, HasSubstr("GiB a GPU  host GiB  stages"));
  const StepMemory& gpipe = *schedules.front().result->synchronous.memory;
  EXPECT_THAT(text, HasSubstr(cat(std::fixed, std::setprecision(3), gpipe.gpu_bytes[gpipe.largest_gpu()] / 1073741824,
                                  "         -  ")));
  EXPECT_THAT(comparison_text(compare_schedules(read_json(input), Effort::kFast)), testing::Not(HasSubstr("GiB")));
  EXPECT_EQ(json::parse(comparison_json(schedules))["schedules"][0]["peak_memory_mib"].size(), 8U);
}

TEST(CompareCommand, DrawsTheMemoryOfTheGpuWithTheHighestPeak) {
  const json input = golden_json(golden_models().front());
  const WorkloadFile file = read_json(
      with_memory(input, {{"weights_mib", 1024}, {"upload_mib", 300}, {"activation_mib", 64}, {"saved_mib", 512}}));
  const std::vector<ComparedSchedule> schedules = compare_schedules(file, Effort::kFast);
  const TimelinePage page = comparison_page(file, schedules, "Schedules");
  double most = 0;
  for (std::size_t i = 0; i < 5; ++i) {
    const TimelineSection& section = page.sections[i];
    const StepMemory& memory = *schedules[i].result->synchronous.memory;
    ASSERT_EQ(section.strips.size(), 1U);
    EXPECT_EQ(section.strips[0].name, cat("GPU ", memory.largest_gpu(), " memory"));
    double peak = 0;
    for (const TimelinePoint& point : section.strips[0].points) peak = std::max(peak, point.amount);
    EXPECT_EQ(peak, memory.gpu_bytes[memory.largest_gpu()]);
    most = std::max(most, peak);
  }
  for (const TimelineSection& section : page.sections) EXPECT_EQ(section.strips[0].full, most) << "one scale";
  for (std::size_t i = 5; i < 7; ++i) {
    ASSERT_EQ(page.sections[i].strips.size(), 2U);
    EXPECT_EQ(page.sections[i].strips[1].name, "host activations");
  }
  const PageContent content = read_page(timeline_html(page));
  EXPECT_EQ(content.elements.at("path"), 7 + 2);
  EXPECT_THAT(content.text, HasSubstr("GiB a GPU"));
  EXPECT_THAT(content.text, HasSubstr("peak "));
  const WorkloadFile plain = read_json(input);
  const PageContent without =
      read_page(timeline_html(comparison_page(plain, compare_schedules(plain, Effort::kFast), "Schedules")));
  EXPECT_EQ(without.elements.count("path"), 0U);
  EXPECT_THAT(without.text, testing::Not(HasSubstr("GiB")));
}

TEST(CompareCommand, DrawsEveryTaskOfEverySchedule) {
  const WorkloadFile file = read_json(golden_json(golden_models().front()));
  const std::vector<ComparedSchedule> schedules = compare_schedules(file, Effort::kFast);
  const TimelinePage page = comparison_page(file, schedules, "Schedules");
  ASSERT_EQ(page.sections.size(), 7U);
  const auto num_spans = [&](std::size_t section) {
    std::size_t count = 0;
    for (const TimelineRow& row : page.sections[section].rows) count += row.compute.size();
    return count;
  };
  EXPECT_EQ(num_spans(0), 2U * 8 * 16);
  EXPECT_EQ(num_spans(4), 3U * 8 * 16);
  EXPECT_EQ(num_spans(5), (4U + 1 + 10) * 16);
  for (std::size_t i = 0; i + 1 < page.sections.size(); ++i) {
    double end = 0;
    for (const TimelineRow& row : page.sections[i].rows) {
      for (const TimelineSpan& span : row.compute) end = std::max(end, span.end_ms);
    }
    EXPECT_EQ(page.sections[i].length_ms, end);
  }
  const PageContent content = read_page(timeline_html(page));
  EXPECT_EQ(content.elements.at("section"), 7);
  EXPECT_EQ(content.classes.at("W"), 8 * 16);
  EXPECT_GE(content.classes.at("U"), 16 + 2 * 16);
  EXPECT_THAT(content.text, HasSubstr("2286.0170"));
  EXPECT_THAT(content.text, HasSubstr("fused, head, microbatch 15"));
}

TEST(CompareCommand, ShowsTwoStepsOfTheSteadyState) {
  const GoldenModel golden = golden_models().front();
  const WorkloadFile file = read_json(golden_json(golden));
  const TimelineSection section =
      comparison_page(file, compare_schedules(file, Effort::kFast), "Schedules").sections.back();
  EXPECT_NEAR(section.length_ms, 2 * golden.period_of_8, 0.05 * golden.period_of_8);
  double busy = 0;
  for (const TimelineRow& row : section.rows) {
    for (const TimelineSpan& span : row.compute) {
      EXPECT_GE(span.step, 5);
      busy += std::max(
          0.0, std::min(span.end_ms, section.first_ms + section.length_ms) - std::max(span.start_ms, section.first_ms));
    }
  }
  EXPECT_NEAR(busy / 8 / section.length_ms, golden.busy_per_gpu / golden.period_of_8, 0.03);
}

TEST(CompareCommand, SaysWhyAScheduleIsNotPossible) {
  const WorkloadFile file = read_json(workload_json(golden_workload(3, {1, 2}, {1, 1}, 0.5)));
  const std::vector<ComparedSchedule> schedules = compare_schedules(file, Effort::kFast);
  EXPECT_FALSE(schedules.front().result.has_value());
  EXPECT_THAT(schedules.front().refusal, HasSubstr("8 GPUs"));
  EXPECT_TRUE(schedules.back().result.has_value());
  EXPECT_THAT(comparison_text(schedules), HasSubstr("3 layers and a head"));
  EXPECT_EQ(json::parse(comparison_json(schedules))["schedules"][0]["schedule"], "gpipe");
  EXPECT_THAT(read_page(timeline_html(comparison_page(file, schedules, "Schedules"))).text,
              HasSubstr("3 layers and a head"));
}

TEST(CompareCommand, OneGpuIsDrawnToo) {
  json input = workload_json(golden_workload(3, {1, 2}, {1, 1}, 0.5));
  input["gpus"] = 1;
  const WorkloadFile file = read_json(input);
  const TimelinePage page = comparison_page(file, compare_schedules(file, Effort::kFast), "Schedules");
  EXPECT_EQ(page.sections.size(), 7U);
  (void)read_page(timeline_html(page));
}

// Each schedule alone is below the limit, all of them together are not.
TEST(CompareCommand, APageOfTooManyTasksTogetherIsRefused) {
  json input = workload_json(golden_workload(64, {1, 2}, {1, 1}, 0.5));
  input["microbatches"] = input["round_microbatches"] = 8192;
  input["stages"] = std::vector<int>(8, 8);
  const WorkloadFile file = read_json(input);
  std::vector<ComparedSchedule> schedules;
  for (int i = 0; i < 8; ++i) {
    schedules.push_back({.schedule = BoundSchedule::kGPipe,
                         .result = SimulationResult{.schedule = BoundSchedule::kGPipe, .num_layers = 64}});
    schedules.back().result->synchronous.stages = std::vector<int>(8, 8);
  }
  expect_error(ExitCode::kUsage, {"the schedules up to gpipe have 1048576 tasks", "a page has at most 1000000"},
               [&] { (void)comparison_page(file, schedules, "Schedules"); });
}

TEST(CompareCommand, WhatIsTooLargeToDrawIsRefused) {
  json input = workload_json(golden_workload(40, {1, 2}, {1, 1}, 0.5));
  input["microbatches"] = input["round_microbatches"] = 16384;
  input["forward_stages"] = std::vector<int>(40, 1);
  input["backward_stages"] = std::vector<int>(41, 1);
  input["backward_stages"][0] = 0;
  const WorkloadFile file = read_json(input);
  const std::vector<ComparedSchedule> schedules = {
      {.schedule = std::nullopt,
       .result = simulate_file(
           file, std::nullopt, Effort::kFast, [](const std::string&) {}, [] { return true; })}};
  expect_error(ExitCode::kUsage, {"--html", "roundpipe", "1327104 tasks", "1000000", "microbatches"},
               [&] { (void)comparison_page(file, schedules, "Schedules"); });
}

}  // namespace
}  // namespace rp::test
