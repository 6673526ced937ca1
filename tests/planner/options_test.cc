#include "planner/options.h"

#include <gtest/gtest.h>

#include "tests/common/expect_refusal.h"

namespace rp::test {
namespace {

TEST(PlanOptions, OfSimulateAreRead) {
  const PlanOptions options = parse_plan_options({"simulate", "--schedule", "looped-bfs", "--input=a.json", "--json", "--effort", "fast"});
  EXPECT_EQ(options.action, PlanOptions::Action::kSimulate);
  EXPECT_EQ(options.schedule, BoundSchedule::kLoopedBfs);
  EXPECT_EQ(options.input, "a.json");
  EXPECT_EQ(options.effort, Effort::kFast);
  EXPECT_TRUE(options.json);
  EXPECT_EQ(parse_plan_options({"simulate", "--schedule", "roundpipe", "--input", "a"}).schedule, std::nullopt);
  EXPECT_EQ(schedule_name(std::nullopt), "roundpipe");
  EXPECT_EQ(schedule_name(BoundSchedule::kZbH1), "zb-h1");
}

TEST(PlanOptions, HelpAndVersionAreOnes) {
  EXPECT_NE(parse_plan_options({"--help"}).help.find("rp-plan simulate"), std::string::npos);
  EXPECT_NE(parse_plan_options({"simulate", "--help"}).help.find("--schedule"), std::string::npos);
  EXPECT_EQ(parse_plan_options({"--version"}).action, PlanOptions::Action::kVersion);
}

TEST(PlanOptions, MistakesAreNamed) {
  const auto refused = [](const std::vector<std::string>& arguments, std::vector<std::string> parts) {
    expect_error(ExitCode::kUsage, parts, [&] { (void)parse_plan_options(arguments); });
  };
  refused({}, {"a command is missing"});
  refused({"simulat"}, {"no command simulat", "did you mean simulate"});
  refused({"simulate"}, {"--schedule is missing", "usage:"});
  refused({"simulate", "--schedule", "gpipe"}, {"--input is missing"});
  refused({"simulate", "--schedule", "gpip", "--input", "a"}, {"--schedule gpip", "did you mean gpipe", "zb-h1"});
  refused({"simulate", "--schedule", "gpipe", "--input", "a", "--effort", "some"}, {"--effort some", "thorough"});
  refused({"simulate", "--schedul", "gpipe"}, {"unknown option --schedul", "did you mean --schedule"});
  refused({"simulate", "--schedule", "gpipe", "--schedule", "1f1b", "--input", "a"}, {"--schedule is given twice"});
  refused({"simulate", "--schedule", "gpipe", "--input"}, {"input"});
  refused({"simulate", "--schedule", "gpipe", "--input", "a", "b"}, {"unexpected word b"});
}

}  // namespace
}  // namespace rp::test
