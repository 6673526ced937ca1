#include "planner/timeline_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/common/expect_refusal.h"
#include "tests/common/temp_directory.h"

namespace rp::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// Times are in ms; the trace contains microseconds and begins at 5000 s.
json event(const char* category, int pid, int tid, double start, double end, const json& args = json::object()) {
  return {{"ph", "X"},
          {"name", category},
          {"cat", category},
          {"pid", pid},
          {"tid", tid},
          {"ts", 5e9 + 1000 * start},
          {"dur", 1000 * (end - start)},
          {"args", args}};
}

json compute(int worker, double start, double end, const char* phase, int step, int microbatch) {
  return event("compute", worker + 1, 1, start, end,
               {{"slot", 7},
                {"round", 3},
                {"step", step},
                {"pipeline", 0},
                {"phase", phase},
                {"first_layer", 2},
                {"end_layer", 4},
                {"microbatch", microbatch}});
}

// Two workers, 100 ms: worker 0 computes for 60 ms of them, worker 1 for 50.
json small_trace() {
  json events = json::array();
  events.push_back({{"ph", "M"}, {"pid", 1}, {"name", "process_name"}, {"args", {{"name", "worker 0"}}}});
  events.push_back({{"ph", "s"}, {"id", 4}, {"pid", 1}, {"tid", 1}, {"ts", 5e9}, {"cat", "flow"}, {"name", "flow"}});
  events.push_back(event("task", 1, 0, 0, 40));
  events.push_back(compute(0, 20, 40, "forward", 1, 1));  // not in the order of time
  events.push_back(compute(0, 0, 20, "forward", 1, 0));
  events.push_back(compute(0, 80, 100, "backward", 2, 0));
  events.push_back(event("wait", 1, 5, 30, 70));  // 10 ms of it are hidden, 30 ms exposed
  events.push_back(event("wait", 1, 6, 60, 75));  // 5 ms more are exposed
  events.push_back(event("upload", 1, 2, 0, 2, {{"slot", 7}, {"bytes", 2048}, {"microbatch", 0}}));
  events.push_back(event("upload", 1, 3, 5, 15, {{"slot", 8}, {"bytes", 4096}, {"microbatch", -1}}));
  events.push_back(event("download", 1, 4, 41, 45, {{"slot", 7}, {"bytes", 512}, {"microbatch", 1}}));
  events.push_back(compute(1, 20, 60, "fused", 1, 0));
  events.push_back(compute(1, 60, 70, "recompute", 1, 0));
  events.push_back(event("update", 0, 1, 70, 90, {{"step", 1}}));
  events.push_back(event("commit", 0, 1, 90, 91));
  return {{"displayTimeUnit", "ms"}, {"otherData", {{"list", {1, {{"deep", nullptr}}}}}}, {"traceEvents", events}};
}

Trace read(const json& trace, const TraceWindow& window = {}) {
  const TempDirectory directory;
  return read_trace(directory.write("trace.json", trace.dump()), window);
}

TEST(TimelineCommand, ReportsHowLongWorkersComputeAndWait) {
  const Trace trace = read(small_trace());
  EXPECT_NEAR(trace.length_ms, 100, 1e-6);
  const std::vector<WorkerTime> times = worker_times(trace);
  ASSERT_EQ(times.size(), 2U);
  EXPECT_NEAR(times[0].busy_ms, 60, 1e-6);
  EXPECT_NEAR(times[0].exposed_wait_ms, 35, 1e-6);
  EXPECT_NEAR(times[1].busy_ms, 50, 1e-6);
  EXPECT_EQ(times[1].exposed_wait_ms, 0);
  const std::string text = timeline_text(trace, "trace.json");
  for (const char* part :
       {"trace.json: 0.000 to 100.000 ms of 100.000 ms, 2 workers", "60.00", "40.00", "35.000", "mean", "55.000"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(TimelineCommand, ReadsTheWindowThatIsAskedFor) {
  const Trace steps = read(small_trace(), {.steps = {{2, 9}}});
  EXPECT_NEAR(steps.from_ms, 80, 1e-6);
  EXPECT_NEAR(steps.to_ms, 100, 1e-6);
  EXPECT_EQ(steps.workers.size(), 2U) << "who does nothing in it has a row too";
  EXPECT_NEAR(worker_times(steps)[0].busy_ms, 20, 1e-6);
  const Trace times = read(small_trace(), {.from_ms = 30, .to_ms = 50});
  EXPECT_NEAR(worker_times(times)[0].busy_ms, 10, 1e-6);
  EXPECT_NEAR(worker_times(times)[0].exposed_wait_ms, 10, 1e-6);
  EXPECT_NEAR(worker_times(times)[1].busy_ms, 20, 1e-6);
  expect_error(ExitCode::kUsage, {"--steps 3-4", "trace.json", "the steps 1 to 2"}, [] {
    (void)read(small_trace(), {.steps = {{3, 4}}});
  });
  expect_error(ExitCode::kUsage, {"--from 200", "has 100 ms"}, [] { (void)read(small_trace(), {.from_ms = 200}); });
}

TEST(TraceFile, WhatIsWrongIsNamed) {
  const auto refused = [](const std::string& text, std::vector<std::string> parts) {
    const TempDirectory directory;
    parts.push_back("trace.json: ");
    expect_refusal(parts, [&] { (void)read_trace(directory.write("trace.json", text), {}); });
  };
  const auto changed = [](const char* key, const json& value) {
    json trace = small_trace();
    trace["traceEvents"][3][key] = value;
    return trace.dump();
  };
  const auto without = [](const char* key) {
    json trace = small_trace();
    trace["traceEvents"][3].erase(key);
    return trace.dump();
  };
  refused("", {"ends in the middle"});
  refused("[]", {"not a JSON object with the list \"traceEvents\""});
  refused("7", {"not a JSON object"});
  refused("{}", {"lacks the list \"traceEvents\"", "rp-launch --trace"});
  refused("{\"traceEvents\":[],\"traceEvents\":[]}", {"\"traceEvents\" twice"});
  refused("{\"traceEvents\":[]}", {"no event of the category \"compute\""});
  refused("{\"traceEvents\":[7]}", {"event 0 is a number; it must be an object"});
  refused("{\"traceEvents\":[{\"ph\" \"X\"}]}", {"is not valid JSON at its byte 25"});
  refused(small_trace().dump().substr(0, 900), {"ends in the middle of its JSON", "cut off"});
  refused(std::string(40, '[').insert(0, "{\"a\":"), {"more than 32 levels"});
  refused("{\"a\":\"" + std::string(3 << 20, 'x') + "\"}", {"a text of more than 1 MiB"});
  refused(without("ts"), {"event 3 ('compute') lacks the number \"ts\""});
  refused(without("dur"), {"event 3", "\"dur\""});
  refused(without("pid"), {"event 3", "\"pid\""});
  refused(changed("dur", -5), {"event 3", "has \"dur\" -5", "microseconds"});
  refused(changed("dur", "long"), {"event 3", "lacks the number \"dur\""});
  refused(changed("ts", 1e300), {"event 3", "\"ts\" 1e+300"});
  refused(changed("pid", 1.5), {"event 3", "\"pid\" 1.5", "whole number"});
  refused(changed("pid", 5000), {"event 3", "pid 5000", "1 to 1024"});
  refused(changed("args", {{"phase", "forward"}, {"step", -7}}), {"event 3", "\"step\" -7"});
  const TempDirectory directory;
  expect_refusal({"cannot be opened"}, [&] { (void)read_trace(directory.file("none.json"), {}); });
}

}  // namespace
}  // namespace rp::test
