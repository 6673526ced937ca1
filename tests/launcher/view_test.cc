#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/system/fd.h"
#include "hoststore/records/fault_board.h"
#include "launcher/view/ctl.h"
#include "launcher/view/hosts_view.h"
#include "launcher/view/ps.h"
#include "launcher/view/run_report.h"
#include "launcher/view/runs.h"
#include "roundpipe/error.h"
#include "tests/common/documented_options.h"
#include "tests/hoststore/processes.h"

namespace rp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

ProcessView view(const std::string& name, pid_t pid, double cpu_seconds) {
  ProcessView view{.snapshot = {.name = name, .is_worker = name != "coordinator", .pid = pid},
                   .cpu_seconds = cpu_seconds};
  view.snapshot.kernel_state = 'R';
  view.snapshot.state = ProcessState::kBusy;
  view.memory = {.own_bytes = 3U << 20U, .shared_bytes = 5ULL << 30U};
  return view;
}

// A run of one worker at `seconds` after its start.
RunView run_at(double seconds, std::int64_t committed, double cpu_seconds) {
  RunView run{
      .launcher = 811, .start_ticks = 7, .seconds = seconds, .command = {"rp-launch", "train", "--model", "a\x1b[2J"}};
  run.processes = {view("coordinator", 812, cpu_seconds), view("worker 0", 813, cpu_seconds)};
  run.processes[0].snapshot.progress = {
      .accepted = 60, .dispatched = 59, .committed = committed, .round = 7, .step = 4};
  run.processes[1].num_lost = 2;
  run.processes[1].snapshot.task = {
      .slot = 58, .round = 7, .step = 4, .phase = Phase::kBackward, .first_layer = 2, .end_layer = 4, .layer = 3};
  return run;
}

TEST(RunsReport, IsATableOfTheProcessesOfEachRun) {
  const std::string text = runs_text({.now = {run_at(3725, 57, 61)}});
  EXPECT_EQ(text,
            "run 811, for 1:02:05: rp-launch train --model a\\x1b[2J\n"
            "  PROCESS      PID  STATE     CPU TIME  MEMORY    SHARED    LOST  TASK\n"
            "  coordinator  812  running   0:01:01   3.00 MiB  5.00 GiB  0     newest is round 7 of step 4; last slot "
            "accepted: "
            "59, "
            "sent: 58, committed: 56\n"
            "  worker 0     813  computes  0:01:01   3.00 MiB  5.00 GiB  2     slot 58, backward of layers 2-3, round "
            "7 of step 4, "
            "layer 3\n");
  EXPECT_EQ(runs_text({}), "no run of this user\n");
  EXPECT_THAT(runs_waits_text({.now = {run_at(3725, 57, 61)}}),
              AllOf(HasSubstr("run 811, for 1:02:05: rp-launch train"),
                    HasSubstr("worker 0     pid 813, computes: slot 58"), HasSubstr("  to do:")));
}

TEST(RunsReport, RatesFollowFromTwoViewsOfTheSameProcesses) {
  RunsReport report{.now = {run_at(12, 57, 6)}, .before = {run_at(10, 50, 5)}};
  EXPECT_THAT(runs_text(report),
              AllOf(HasSubstr(", 3.5 slots/s: rp-launch"), HasSubstr("50 %"), Not(HasSubstr("CPU TIME"))));
  report.before[0].processes[1].snapshot.pid = 899;  // worker 0 was replaced
  const auto json = nlohmann::json::parse(runs_json(report));
  EXPECT_EQ(json["runs"][0]["slots_per_second"], 3.5);
  EXPECT_EQ(json["runs"][0]["processes"][0]["processors"], 0.5);
  EXPECT_TRUE(json["runs"][0]["processes"][1]["processors"].is_null());
  report.before[0].processes[0].snapshot.pid = 898;  // the program was started again
  EXPECT_THAT(runs_text(report), Not(HasSubstr("slots/s")));
  report.before[0].start_ticks = 6;  // another rp-launch of the same number
  EXPECT_THAT(runs_text(report), HasSubstr("CPU TIME"));
}

TEST(RunsReport, IsCutToTheTerminal) {
  EXPECT_EQ(fitted_text("abcdef\ng\u00e4\u00f6h\nij\n", 3, 10), "abc\ng\u00e4\u00f6\nij\n");
  EXPECT_EQ(fitted_text("a\nb\nc\n", 3, 2), "a\nb") << "a newline after the last line would scroll";
}

TEST(RunsReport, JsonHasTheProgressOfTheCoordinatorAndTheTaskOfEachWorker) {
  RunView run = run_at(12, 57, 6);
  run.command.push_back("\xff");
  const std::string line = runs_json({.now = {run}});
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const auto json = nlohmann::json::parse(line)["runs"][0];
  EXPECT_EQ(json["pid"], 811);
  EXPECT_EQ(json["command"][1], "train");
  EXPECT_EQ(json["processes"][0]["progress"]["committed"], 57);
  EXPECT_EQ(json["processes"][1]["task"]["layer"], 3);
  EXPECT_EQ(json["processes"][1]["shared_bytes"], 5ULL << 30U);
  EXPECT_TRUE(json["slots_per_second"].is_null());
}

// Runs `body` while a child looks like an rp-launch with a coordinator that has started and a worker that has not.
template <typename Body>
void beside_a_run(Body&& body) {
  int ready[2], may_end[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(may_end), 0);
  const pid_t launcher = test::start_process([&] {
    prctl(PR_SET_NAME, "rp-launch");
    const FaultBoard board = FaultBoard::create(2);
    for (int i = 0; i < 3; ++i) board.entry(0).prepare_start();
    board.entry(0).publish_start(getpid());
    board.entry(0).publish_progress({.accepted = 3, .dispatched = 2, .committed = 1, .round = 0, .step = 1});
    char byte = 1;
    close(may_end[1]);
    return write(ready[1], &byte, 1) == 1 && read(may_end[0], &byte, 1) == 0;
  });
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  body(launcher);
  for (const int fd : {ready[0], ready[1], may_end[0], may_end[1]}) close(fd);
  EXPECT_EQ(test::wait_for_process(launcher), 0);
}

std::vector<RunView> runs_with(pid_t launcher) {
  std::vector<RunView> runs = find_runs(getuid());
  std::erase_if(runs, [launcher](const RunView& run) { return run.launcher != launcher; });
  return runs;
}

TEST(Runs, AreFoundByTheirFaultBoards) {
  pid_t launcher = 0;
  beside_a_run([&launcher](pid_t pid) {
    launcher = pid;
    const std::vector<RunView> runs = runs_with(pid);
    ASSERT_EQ(runs.size(), 1U);
    EXPECT_EQ(runs[0].problem, "");
    EXPECT_FALSE(runs[0].command.empty());
    EXPECT_LT(runs[0].seconds, 600);
    ASSERT_EQ(runs[0].processes.size(), 2U);
    EXPECT_EQ(runs[0].processes[0].snapshot.pid, pid);
    EXPECT_EQ(runs[0].processes[0].snapshot.progress.committed, 1);
    EXPECT_GT(runs[0].processes[0].memory.own_bytes, 1U << 16U);
    EXPECT_EQ(runs[0].processes[0].num_lost, 2U);
    EXPECT_EQ(runs[0].processes[1].snapshot.pid, 0);
    EXPECT_EQ(runs[0].processes[1].num_lost, 0U);
    EXPECT_THAT(runs_text({.now = runs}), HasSubstr("worker 0     -  "));
  });
  EXPECT_TRUE(runs_with(launcher).empty());
}

TEST(Runs, AnotherUserSeesNothingAndMayOpenNothing) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can act as another user";
  beside_a_run([](pid_t launcher) {
    constexpr uid_t kOther = 65534;
    EXPECT_EQ(test::status_of_process([launcher] {
                if (setresgid(kOther, kOther, kOther) != 0 || setresuid(kOther, kOther, kOther) != 0) return false;
                const auto is_launcher = [launcher](const RunView& run) { return run.launcher == launcher; };
                const std::vector<RunView> own = find_runs(kOther);
                const std::vector<RunView> of_root = find_runs(0);
                const auto found = std::find_if(of_root.begin(), of_root.end(), is_launcher);
                return std::none_of(own.begin(), own.end(), is_launcher) && found != of_root.end() &&
                       found->processes.empty() && found->problem == "its processes cannot be seen: permission denied";
              }),
              0);
  });
}

TEST(ViewOptions, AreChecked) {
  const ViewOptions top = parse_view_options(true, {"--interval", "0.5", "--count", "3", "--json"});
  EXPECT_TRUE(top.repeats && top.json);
  EXPECT_EQ(top.interval_seconds, 0.5);
  EXPECT_EQ(top.count, 3);
  EXPECT_FALSE(parse_view_options(false, {}).json);
  const std::vector<std::pair<bool, std::vector<std::string>>> wrongs = {{false, {"--interval", "1"}},
                                                                         {false, {"811"}},
                                                                         {true, {"--jsn"}},
                                                                         {true, {"--interval", "0"}},
                                                                         {true, {"--interval", "1s"}},
                                                                         {true, {"--interval", "nan"}},
                                                                         {true, {"--count", "0"}},
                                                                         {true, {"--count", "-1"}}};
  for (const auto& [repeats, words] : wrongs) EXPECT_THROW((void)parse_view_options(repeats, words), Error) << words[0];
}

TEST(ControlOptions, AskForAWorkerOfARun) {
  EXPECT_EQ(parse_control_options({"add-worker"}).worker, std::nullopt);
  const ControlOptions options = parse_control_options({"add-worker", "3", "--run", "4711"});
  EXPECT_EQ(options.worker, 3);
  EXPECT_EQ(options.run, 4711);
  using Words = std::vector<std::string>;
  for (const Words& wrong :
       {Words{}, Words{"3"}, Words{"add-worker", "x"}, Words{"add-worker", "-1"}, Words{"add-worker", "3", "4"},
        Words{"add-worker", "--run", "0"}, Words{"add-worker", "--all"}}) {
    EXPECT_THROW((void)parse_control_options(wrong), Error);
  }
}

TEST(ViewOptions, TheManualHasTheirTable) { expect_documented("ps.md", option_rows(view_option_specs(true))); }

TEST(HostsView, GroupsTheRunsByHostAndKeepsTheLastViewOfALostOne) {
  const std::string run = runs_text({.now = {run_at(3725, 57, 61)}});
  const std::vector<HostView> views = {
      {.host = "a", .text = run, .problem = {}},
      {.host = "b", .text = run, .problem = "does not answer; this was seen 9 s ago\n"},
      {.host = "c", .text = {}, .problem = "no route to c\nrp-launch: host c cannot be reached\x1b[2J\n"}};
  EXPECT_EQ(host_views_text(views), "host a\n" + run + "\nhost b\n  does not answer; this was seen 9 s ago\n" + run +
                                        "\nhost c\n  no route to c\n  rp-launch: host c cannot be reached\\x1b[2J\n");
  std::vector<HostView> json_views = views;
  for (HostView& view : json_views) view.text = view.text.empty() ? "" : runs_json({.now = {run_at(3725, 57, 61)}});
  const auto json = nlohmann::json::parse(host_views_json(json_views));
  EXPECT_EQ(json["hosts"][0]["host"], "a");
  EXPECT_EQ(json["hosts"][0]["runs"][0]["pid"], 811);
  EXPECT_EQ(json["hosts"][1]["problem"], views[1].problem);
  EXPECT_EQ(json["hosts"][2]["runs"].size(), 0U);
}

TEST(HostsView, AViewPassesThroughItsLine) {
  const std::string text = "run 1\n  \"worker 0\"\x1b\n";
  const std::string line = host_view_line(text);
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  EXPECT_EQ(text_of_host_view(line), text);
  EXPECT_EQ(text_of_host_view(line.substr(0, line.size() - 1) + "\r"), text);  // a terminal is in between
  EXPECT_EQ(text_of_host_view("a shell's greeting"), "");
  EXPECT_EQ(text_of_host_view("{\"view\":3}"), "");
}

TEST(ViewOptions, NameTheHostsOnce) {
  EXPECT_EQ(parse_view_options(true, {"--hosts", "a:8,b"}).hosts,
            (std::vector<Host>{{.name = "a", .num_workers = 8}, {.name = "b"}}));
  EXPECT_TRUE(parse_view_options(false, {"--all-nodes"}).shows_all_nodes);
  EXPECT_TRUE(parse_view_options(true, {kHostViewWord, "--interval", "3", "--"}).is_for_other_host);
  EXPECT_THROW((void)parse_view_options(true, {"--hosts", "a", "--all-nodes"}), Error);
}

}  // namespace
}  // namespace rp
