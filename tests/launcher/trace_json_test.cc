#include "launcher/trace/trace_json.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "hoststore/control.h"
#include "launcher/trace/run_trace.h"
#include "roundpipe/error.h"
#include "tests/common/temp_directory.h"

namespace rp {
namespace {

using Json = nlohmann::json;

class TraceJsonTest : public testing::Test {
 protected:
  Json json() const {
    std::string text;
    write_trace_json(journal_, [&text](std::string_view part) { text += part; });
    return Json::parse(text);
  }
  std::vector<Json> events(const char* ph) const {
    std::vector<Json> found;
    const Json trace = json();
    for (const Json& event : trace.at("traceEvents")) {
      if (event.at("ph") == ph) found.push_back(event);
    }
    return found;
  }
  void add(std::uint32_t process, std::uint32_t track, std::vector<TraceRecord> records) {
    TraceTrack writer(&journal_, process, track);
    for (const TraceRecord& record : records) writer.add(record);
  }
  static constexpr std::uint32_t kFused = static_cast<std::uint32_t>(Phase::kFused);

  TempDirectory directory_;
  TraceJournal journal_ =
      TraceJournal::create(directory_.path(), {.program = "a \"program\"\n", .device = "cpu", .num_workers = 2});
};

TEST_F(TraceJsonTest, WithoutRecordsIsAValidTraceThatNamesTheRunAndItsProcesses) {
  const Json trace = json();
  EXPECT_EQ(trace.at("displayTimeUnit"), "ms");
  const Json& about = trace.at("otherData");
  EXPECT_EQ(about.at("program"), "a \"program\"?");
  EXPECT_EQ(about.at("workers"), 2);
  EXPECT_EQ(about.at("device"), "cpu");
  EXPECT_EQ(about.at("is_complete"), true);
  std::vector<std::string> names;
  for (const Json& event : events("M")) {
    if (event.at("name") == "process_name") names.push_back(event.at("args").at("name"));
  }
  EXPECT_EQ(names, (std::vector<std::string>{"coordinator", "worker 0", "worker 1"}));
}

TEST_F(TraceJsonTest, TimesAreMicrosecondsFromTheFirstRecordAndWhatEnclosesComesFirst) {
  add(1, 1,
      {{.kind = TraceKind::kCompute,
        .detail = kFused,
        .begin_ns = 5'000'001'000,
        .end_ns = 5'000'001'234,
        .slot = 7,
        .pipeline = 0,
        .microbatch = 2,
        .first_layer = 3,
        .end_layer = 5,
        .numbers = {11, 4}},
       {.kind = TraceKind::kTask,
        .detail = kFused,
        .begin_ns = 5'000'001'000,
        .end_ns = 5'000'009'000,
        .slot = 7,
        .pipeline = 0,
        .first_layer = 3,
        .end_layer = 5,
        .numbers = {11, 4}}});
  add(0, 2,
      {{.kind = TraceKind::kCommit, .begin_ns = 5'000'000'000, .end_ns = 5'000'000'000, .slot = 6, .numbers = {1}}});
  const std::vector<Json> found = events("X");
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].at("name"), "commit slot 6");
  EXPECT_EQ(found[0].at("pid"), 0);
  EXPECT_EQ(found[1].at("name"), "task fused 3-4");
  EXPECT_EQ(found[1].at("ts").get<double>(), 1.0);
  EXPECT_EQ(found[1].at("dur").get<double>(), 8.0);
  EXPECT_EQ(found[2].at("name"), "fused 3-4 m2");
  EXPECT_EQ(found[2].at("cat"), "compute");
  EXPECT_EQ(found[2].at("dur").get<double>(), 0.234);
  EXPECT_EQ(found[2].at("args"),
            Json::parse(R"({"pipeline":0,"slot":7,"round":11,"step":4,"phase":"fused","first_layer":3,
                                                 "end_layer":5,"microbatch":2})"));
}

TEST_F(TraceJsonTest, AFlowLeadsFromEachBlocksMakerToEveryoneWhoReadsIt) {
  const auto kind = static_cast<std::uint32_t>(BlockKind::kActivation);
  const auto output = [&](int microbatch, std::int64_t end) {
    return TraceRecord{.kind = TraceKind::kDownloadOutput,
                       .detail = kind,
                       .begin_ns = end - 10,
                       .end_ns = end,
                       .slot = 3,
                       .pipeline = 0,
                       .microbatch = microbatch,
                       .first_layer = 2,
                       .numbers = {64}};
  };
  const auto input = [&](int microbatch, std::int64_t begin, std::int64_t maker) {
    return TraceRecord{.kind = TraceKind::kUploadInput,
                       .detail = kind,
                       .begin_ns = begin,
                       .end_ns = begin + 5,
                       .slot = 4,
                       .pipeline = 0,
                       .microbatch = microbatch,
                       .first_layer = 2,
                       .numbers = {64, maker, static_cast<std::int64_t>(kind), 2}};
  };
  // Blocks read out of order, a block without readers, a block that the coordinator made, and a
  // block whose producer's record was lost.
  add(2, 2, {input(1, 500, 3), input(0, 520, 3), input(1, 700, 3), input(0, 800, -1), input(0, 900, 99)});
  add(1, 4, {output(0, 100), output(1, 200), output(2, 300)});
  const std::vector<Json> begins = events("s");
  const std::vector<Json> ends = events("f");
  ASSERT_EQ(begins.size(), 3u);
  ASSERT_EQ(ends.size(), 3u);
  const std::vector<double> made = {0.199, 0.099,
                                    0.199};  // by flow; times are relative to the first record, which begins at 90 ns
  const std::vector<double> read = {0.5, 0.52, 0.7};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(begins[i].at("id"), ends[i].at("id"));
    EXPECT_EQ(begins[i].at("pid"), 1);
    EXPECT_EQ(begins[i].at("tid"), 4);
    EXPECT_EQ(ends[i].at("pid"), 2);
    EXPECT_EQ(ends[i].at("bp"), "e");
    EXPECT_NEAR(begins[i].at("ts").get<double>(), made[i] - 0.09, 1e-9);
    EXPECT_NEAR(ends[i].at("ts").get<double>(), read[i] - 0.09, 1e-9);
  }
}

TEST_F(TraceJsonTest, AnUpdatedGroupFlowsToTheUploadOfThatVersion) {
  add(0, 3,
      {{.kind = TraceKind::kUpdate,
        .begin_ns = 10,
        .end_ns = 20,
        .pipeline = 0,
        .first_layer = 1,
        .end_layer = 2,
        .numbers = {1, 1, 5}}});
  const auto upload = [](std::int64_t begin, std::int64_t version) {
    return TraceRecord{.kind = TraceKind::kUploadWeights,
                       .begin_ns = begin,
                       .end_ns = begin + 1,
                       .slot = 9,
                       .pipeline = 0,
                       .first_layer = 1,
                       .end_layer = 2,
                       .numbers = {64, version, 5}};
  };
  add(1, 3, {upload(5, 0), upload(30, 1)});
  ASSERT_EQ(events("s").size(), 1u);
  EXPECT_EQ(events("f")[0].at("ts").get<double>(), 0.025);
}

TEST_F(TraceJsonTest, WhatALaterVersionRecordedOrWhatEndsBeforeItBeginsIsLeftOut) {
  add(1, 1,
      {{.kind = static_cast<TraceKind>(77), .begin_ns = 1, .end_ns = 2},
       {.kind = TraceKind::kCommit, .begin_ns = 9, .end_ns = 3}});
  EXPECT_TRUE(events("X").empty());
}

class RunTraceTest : public testing::Test {
 protected:
  static Json read(const std::filesystem::path& file) { return Json::parse(std::ifstream(file)); }
  ExitCode code_of(const std::filesystem::path& file) {
    try {
      (void)RunTrace::open(file, {});
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("--trace"), std::string::npos) << error.what();
      return error.code();
    }
    return ExitCode::kOk;
  }
  TempDirectory directory_;
};

TEST_F(RunTraceTest, ItsFileIsAValidTraceFromTheStartOnAndReplacesALongerOne) {
  const std::filesystem::path file = directory_.write("trace.json", std::string(100'000, 'x'));
  const RunTrace trace = RunTrace::open(file, {.program = "p"});
  EXPECT_EQ(read(file).at("otherData").at("program"), "p");
}

TEST_F(RunTraceTest, TravelsInAMessageAndIsWrittenByItsReceiver) {
  const std::filesystem::path file = directory_.file("trace.json");
  Message message;
  message.descriptors.emplace_back(dup(0));
  {
    RunTrace opened = RunTrace::open(file, {});
    opened.append_to(message);
    TraceTrack(&opened.journal(), 0, 2).add({.kind = TraceKind::kCommit, .begin_ns = 1, .end_ns = 2, .slot = 6});
  }
  const std::optional<RunTrace> copy = RunTrace::copy_of(message);
  ASSERT_TRUE(copy);
  ASSERT_TRUE(RunTrace::take_from(message));
  EXPECT_EQ(message.descriptors.size(), 1u);
  EXPECT_EQ(copy->write_or_warn("rp-launch"), "");
  EXPECT_EQ(read(file).at("traceEvents").back().at("name"), "commit slot 6");
  EXPECT_FALSE(RunTrace::take_from(message = {}));
}

TEST_F(RunTraceTest, AFileThatCannotBeWrittenIsAnErrorAtOnce) {
  EXPECT_EQ(code_of(directory_.path()), ExitCode::kOutputFailed);
  EXPECT_EQ(code_of(directory_.file("missing") / "trace.json"), ExitCode::kOutputFailed);
  EXPECT_EQ(code_of("/dev/full"), ExitCode::kOutputFailed);
  ASSERT_EQ(mkfifo(directory_.file("pipe").c_str(), 0600), 0);
  EXPECT_EQ(code_of(directory_.file("pipe")), ExitCode::kOutputFailed) << "and does not wait for a reader";
  EXPECT_EQ(code_of(directory_.file("trace.json")), ExitCode::kOk);
}

}  // namespace
}  // namespace rp
