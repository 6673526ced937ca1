// Tests the visible behaviour of healthy runs: programs found, settings passed on, output.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/text.h"
#include "tests/common/temp_directory.h"
#include "tests/launcher/launched_run.h"

namespace rp {
namespace {

namespace fs = std::filesystem;

std::string file_text(const fs::path& file) {
  std::ifstream in(file);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(Launch, TheLinesOfEightChattyWorkersAreWholeAndAllThere) {
  LaunchedRun run({"-n", "8", "TOY", "chatty"});
  EXPECT_EQ(run.wait_for_end(), 0);
  std::map<int, int> next;  // number of the next line, by worker
  for (const std::string& line : lines_of(run.out())) {
    int worker = -1;
    ASSERT_EQ(std::sscanf(line.c_str(), "worker %d line", &worker), 1) << line;
    const int number = next[worker]++;
    const std::string filling(static_cast<std::size_t>(number % 300), 'x');
    EXPECT_EQ(line, cat("worker ", worker, " line ", number, " ", filling, " end"));
  }
  ASSERT_EQ(next.size(), 8U);
  for (const auto& [worker, count] : next) EXPECT_EQ(count, 500) << worker;
}

TEST(Launch, WhatAWorkerWroteJustBeforeItWasKilledIsThere) {
  LaunchedRun run({"-n", "2", "TOY", "chatty_crash"});
  EXPECT_EQ(run.wait_for_end(), 137);
  EXPECT_NE(run.out().find("last words 199\ntorn\n"), std::string::npos);
}

TEST(Launch, TheCoordinatorIsShownForHowLongItsNodeHasWaitedForOthersUntilItsEnd) {
  LaunchedRun run({"-n", "1", "TOY", "wait_for_nodes"});
  EXPECT_EQ(run.wait_for_end(), 0) << run.err();
}

TEST(Launch, PrintsTheStatesOfTheRunAndItsProcessesIfAsked) {
  LaunchedRun run({"-n", "2", "TOY", "crash_silently"}, {{"RP_LOG_STATES", "1"}});
  EXPECT_EQ(run.wait_for_end(), 7);
  for (const char* change : {
           "process 0: starting -> attached (the coordinator has made the host store)",
           "process 1: starting -> attaching (the worker was sent the host store)",
           "process 1: attaching -> attached (the worker reported that its start succeeded)",
           "process 1: attached -> ended (reaped)",
           "run: running -> worker lost (a worker failed)",
           "process 2: killed -> ended on purpose (reaped)",
           "process 0: attached -> killed (the run ends)",
           "process 0: killed -> ended on purpose (reaped)",
           "run: killing -> done (all ended, or one cannot be killed)",
       }) {
    EXPECT_EQ(count_of(run.err(), cat("roundpipe: ", change, "\n")), 1) << change << "\n" << run.err();
  }
}

TEST(Launch, TaggedLinesNameTheirProcess) {
  LaunchedRun run({"--tag-output", "-n", "2", "TOY", "exit", "0"});
  EXPECT_EQ(run.wait_for_end(), 0);
  EXPECT_EQ(count_of(run.out(), "[worker 1] after attach 1\n"), 1) << run.out();
  EXPECT_EQ(count_of(run.out(), "before attach"), 0) << run.out();
}

TEST(Launch, LogFilesTakeAllThatAProcessWrites) {
  const TempDirectory directory;
  LaunchedRun run({"--log-dir", (directory.path() / "logs").string(), "-n", "2", "TOY", "exit", "0"});
  EXPECT_EQ(run.wait_for_end(), 0);
  EXPECT_EQ(run.out() + run.err(), "");
  EXPECT_EQ(file_text(directory.path() / "logs/worker-1.out"), "before attach 1\nafter attach 1\n");
  EXPECT_TRUE(fs::exists(directory.path() / "logs/coordinator.err"));
}

// `text` without the 24 characters of a time before each line.
std::string without_times(const std::string& text) {
  std::string rest;
  for (const std::string& line : lines_of(text)) rest += line.substr(24) + "\n";
  return rest;
}

TEST(Launch, LinesHaveTimesInLogFilesToo) {
  const TempDirectory directory;
  LaunchedRun logged(
      {"--timestamp-output", "--log-dir", (directory.path() / "logs").string(), "-n", "2", "TOY", "exit", "0"});
  EXPECT_EQ(logged.wait_for_end(), 0);
  EXPECT_EQ(without_times(file_text(directory.path() / "logs/worker-1.out")), "before attach 1\nafter attach 1\n");
  EXPECT_EQ(logged.out() + logged.err(), "");
  LaunchedRun tagged({"--timestamp-output", "--tag-output", "-n", "1", "TOY", "exit", "0"});
  EXPECT_EQ(tagged.wait_for_end(), 0);
  EXPECT_EQ(without_times(tagged.out()), "[worker 0] after attach 0\n");
  LaunchedRun crashed({"--timestamp-output", "-n", "1", "TOY", "segfault"});
  EXPECT_EQ(crashed.wait_for_end(), 139);
  EXPECT_EQ(without_times(crashed.err()).find("rp-launch: coordinator (pid "), 0U) << crashed.err();
}

TEST(Launch, AnOptionWinsOverItsVariableAndBothReachTheProgram) {
  LaunchedRun run({"-n", "3", "--store", "memfd", "TOY", "environment"},
                  {{"RP_STORE", "shm"}, {"RP_PREFETCH", "0"}, {"RP_GPU", "GPU-of-an-outer-run"}});
  EXPECT_EQ(run.wait_for_end(), 0);
  EXPECT_EQ(run.out(),
            "RP_ROLE=unset\nRP_CHANNEL_FD=unset\nRP_WORKERS=unset\nRP_STORE=memfd\nRP_PREFETCH=0\nRP_GPU=unset\n");
}

TEST(Launch, AWrongCommandLineIsExplainedAndNothingStarts) {
  LaunchedRun unknown({"--wrokers", "3", "TOY", "exit", "0"});
  EXPECT_EQ(unknown.wait_for_end(), 2);
  EXPECT_NE(unknown.err().find("did you mean --workers?"), std::string::npos) << unknown.err();
}

// A directory with a fake library of the driver and an empty plug-in. Everything else in rp-launch
// is real.
class FakeGpus {
 public:
  FakeGpus() {
    fs::create_symlink(RP_FAKE_NVML_PATH, directory_.path() / "libnvidia-ml.so.1");
    std::ofstream(directory_.path() / "libroundpipe_cuda.so") << "";
  }
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> variables(const std::string& number) const {
    return {{"LD_LIBRARY_PATH", directory_.path().string()}, {"RP_FAKE_GPUS", number}};
  }
  void remove_driver() const { fs::remove(directory_.path() / "libnvidia-ml.so.1"); }

 private:
  TempDirectory directory_;
};

TEST(Launch, EveryWorkerGetsItsCardAndKeepsItFromItsChildren) {
  const FakeGpus gpus;
  LaunchedRun run({"--gpus", "1,1,0", "--signals", "events", "TOY", "gpus"}, gpus.variables("2"));
  EXPECT_EQ(run.wait_for_end(), 0) << run.err();
  std::vector<std::string> lines = lines_of(run.out());
  std::sort(lines.begin(), lines.end());
  EXPECT_EQ(lines, (std::vector<std::string>{"worker 0 on GPU-b1-0000 GPU-b1-0000,GPU-a0-0000 32 unset",
                                             "worker 1 on GPU-b1-0000 GPU-b1-0000,GPU-a0-0000 32 unset",
                                             "worker 2 on GPU-a0-0000 GPU-a0-0000,GPU-b1-0000 32 unset"}));
}

TEST(Launch, AThreadOfTheDriversLibraryTakesNoSignal) {
  const FakeGpus gpus;
  LaunchedRun run({"--gpus", "2", "TOY", "preempted"}, gpus.variables("2"));
  ASSERT_TRUE(run.wait_for_output("ready"));
  run.send_signal(SIGTERM);
  EXPECT_EQ(run.wait_for_end(), 75) << run.err();
}

TEST(Launch, MissingGpusAreOneLineAndNothingStarts) {
  const FakeGpus gpus;
  const auto message = [&gpus](const std::string& number, const std::string& asked) {
    LaunchedRun run({"--gpus", asked, "TOY", "exit", "0"}, gpus.variables(number));
    EXPECT_EQ(run.wait_for_end(), 69) << number << " " << asked;
    EXPECT_EQ(lines_of(run.err()).size(), 1U) << run.err();
    EXPECT_EQ(run.out(), "");
    return run.err();
  };
  EXPECT_NE(message("2", "3").find("--gpus 3: only 2 can be used"), std::string::npos);
  EXPECT_NE(message("0", "all").find("sees no NVIDIA GPU"), std::string::npos);
}

TEST(Launch, AMachineWithoutADriverGetsOneLineAndNoLoadersError) {
  const FakeGpus gpus;
  gpus.remove_driver();
  LaunchedRun run({"--gpus", "8", "TOY", "exit", "0"}, gpus.variables("2"));
  EXPECT_EQ(run.wait_for_end(), 69);
  EXPECT_NE(run.err().find("--gpus 8: "), std::string::npos) << run.err();
  EXPECT_NE(run.err().find("--device cpu"), std::string::npos) << run.err();
  EXPECT_EQ(lines_of(run.err()).size(), 1U) << run.err();
}

TEST(Launch, TheDoctorPrintsWhatThereIsAndFailsOnlyForGpusThatWereAskedFor) {
  const FakeGpus gpus;
  LaunchedRun healthy({"doctor"}, gpus.variables("2"));
  EXPECT_EQ(healthy.wait_for_end(60), 0) << healthy.err();
  EXPECT_NE(healthy.out().find("NVIDIA Fake 4090"), std::string::npos) << healthy.out();
  EXPECT_NE(healthy.out().find("not measured"), std::string::npos) << "cards that are not there have no bandwidth";
  std::vector<std::pair<std::string, std::string>> one_visible = gpus.variables("2");
  one_visible.emplace_back("CUDA_VISIBLE_DEVICES", "1");
  LaunchedRun partly({"doctor"}, one_visible);
  EXPECT_EQ(partly.wait_for_end(60), 0) << partly.err();
  EXPECT_NE(partly.out().find("set to 1, it leaves runs 1 of 2 GPUs"), std::string::npos) << partly.out();
  LaunchedRun without({"doctor"}, gpus.variables("0"));
  EXPECT_EQ(without.wait_for_end(), 0) << without.err();
  EXPECT_EQ(without.out().find("no CUDA device: "), 0U) << without.out();
  EXPECT_NE(without.out().find("/dev/shm"), std::string::npos) << without.out();
  LaunchedRun asked({"doctor", "--gpus", "1", "--json"}, gpus.variables("0"));
  EXPECT_EQ(asked.wait_for_end(), 69);
  EXPECT_EQ(asked.out().find("{"), 0U) << "the rest is printed";
  EXPECT_NE(asked.err().find("--gpus 1: no CUDA device"), std::string::npos) << asked.err();
  LaunchedRun profile({"doctor", "--profile", "/nowhere/gpu.json"}, gpus.variables("0"));
  EXPECT_EQ(profile.wait_for_end(), 69);
  EXPECT_NE(profile.err().find("no GPU was measured"), std::string::npos) << profile.err();
  LaunchedRun wrong({"doctor", "--jsn"});
  EXPECT_EQ(wrong.wait_for_end(), 2);
}

TEST(Launch, FiftyRunsAtOnceDoNotDisturbEachOther) {
  constexpr int kRuns = 50;
  std::vector<std::unique_ptr<LaunchedRun>> runs;
  for (int i = 0; i < kRuns; ++i) {
    const std::string code = std::to_string(i % 3 == 0 ? 0 : 10 + i);
    runs.push_back(std::make_unique<LaunchedRun>(std::vector<std::string>{"--workers", "2", "TOY", "exit", code}));
  }
  for (int i = 0; i < kRuns; ++i) EXPECT_EQ(runs[i]->wait_for_end(60), i % 3 == 0 ? 0 : 10 + i) << runs[i]->err();
  runs.clear();
  EXPECT_THAT(files_left(), testing::IsEmpty());
}

TEST(Launch, PsShowsARunWithItsProcessesAndTopShowsItTwice) {
  LaunchedRun run({"--workers", "2", "TOY", "wait"});
  ASSERT_TRUE(run.wait_for_output("ready"));
  LaunchedRun ps({"ps"});
  EXPECT_EQ(ps.wait_for_end(), 0) << ps.err();
  const std::size_t begin = ps.out().find("run " + std::to_string(run.pid()) + ", for ");
  ASSERT_NE(begin, std::string::npos) << ps.out();
  EXPECT_NE(ps.out().find("  worker 1", begin), std::string::npos) << ps.out();
  LaunchedRun top({"top", "--json", "--count", "2", "--interval", "0.1"});
  EXPECT_EQ(top.wait_for_end(), 0) << top.err();
  EXPECT_EQ(lines_of(top.out()).size(), 2U) << top.out();
  EXPECT_EQ(count_of(top.out(), "\"pid\":" + std::to_string(run.pid()) + ","), 2) << top.out();
  LaunchedRun wrong({"ps", "all"});
  EXPECT_EQ(wrong.wait_for_end(), 2);
  run.send_signal(SIGTERM);
  (void)run.wait_for_end();
}

TEST(Launch, AProgramThatIsNotThereIs127AndOneThatCannotRunIs126) {
  LaunchedRun missing({"no-such-program"});
  EXPECT_EQ(missing.wait_for_end(), 127);
  const TempDirectory directory;
  const fs::path text = directory.path() / "text";
  std::ofstream(text) << "no program\n";
  LaunchedRun plain({text.string()});
  EXPECT_EQ(plain.wait_for_end(), 126);
  fs::permissions(text, fs::perms::owner_all);
  LaunchedRun unreadable({text.string()});
  EXPECT_EQ(unreadable.wait_for_end(), 126);
  EXPECT_EQ(lines_of(unreadable.err()).size(), 1U) << unreadable.err();
}

TEST(Launch, ADryRunPrintsEachProcessAndStartsNone) {
  LaunchedRun run({"-n", "2", "--dry-run", "--threads-per-worker", "3", "TOY", "exit", "1"});
  EXPECT_EQ(run.wait_for_end(), 0);
  const std::vector<std::string> lines = lines_of(run.out());
  ASSERT_EQ(lines.size(), 4U) << run.out();
  EXPECT_NE(lines[1].find("coordinator"), std::string::npos);
  EXPECT_NE(lines[3].find("OMP_NUM_THREADS=3"), std::string::npos) << lines[3];
}

TEST(Launch, ManyDescriptorsOfTheStoreReachEveryWorker) {
  LaunchedRun run({"-n", "8", "TOY", "many_descriptors"});
  EXPECT_EQ(run.wait_for_end(), 0) << run.err();
}

}  // namespace
}  // namespace rp
