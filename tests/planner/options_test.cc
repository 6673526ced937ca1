#include "planner/options.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "common/text.h"
#include "tests/common/expect_refusal.h"

namespace rp::test {
namespace {

TEST(PlanOptions, OfSimulateAreRead) {
  const PlanOptions options =
      parse_plan_options({"simulate", "--schedule", "looped-bfs", "--input=a.json", "--json", "--effort", "fast"});
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
  EXPECT_NE(parse_plan_options({"--help"}).help.find("rp-plan compare"), std::string::npos);
  EXPECT_NE(parse_plan_options({"timeline", "--help"}).help.find("--steps"), std::string::npos);
  EXPECT_NE(parse_plan_options({"--help"}).help.find("rp-plan simulate"), std::string::npos);
  EXPECT_NE(parse_plan_options({"simulate", "--help"}).help.find("--schedule"), std::string::npos);
  EXPECT_EQ(parse_plan_options({"--version"}).action, PlanOptions::Action::kVersion);
}

TEST(PlanOptions, OfCompareAreRead) {
  const PlanOptions options =
      parse_plan_options({"compare", "--input", "a.json", "--html", "b.html", "--effort", "fast", "--json"});
  EXPECT_EQ(options.action, PlanOptions::Action::kCompare);
  EXPECT_EQ(options.input, "a.json");
  EXPECT_EQ(options.html, "b.html");
  EXPECT_EQ(options.effort, Effort::kFast);
  EXPECT_TRUE(options.json);
  EXPECT_TRUE(parse_plan_options({"compare", "--input", "a"}).html.empty());
  EXPECT_FALSE(options.published);
  EXPECT_TRUE(parse_plan_options({"compare", "--published"}).published);
}

TEST(PlanOptions, OfTimelineAreRead) {
  const PlanOptions options = parse_plan_options({"timeline", "a.json", "--from", "10", "--to=20.5"});
  EXPECT_EQ(options.action, PlanOptions::Action::kTimeline);
  EXPECT_EQ(options.input, "a.json");
  EXPECT_EQ(options.window.from_ms, 10);
  EXPECT_EQ(options.window.to_ms, 20.5);
  EXPECT_FALSE(options.window.steps.has_value());
  EXPECT_EQ(parse_plan_options({"timeline", "a", "--steps", "6-12"}).window.steps,
            (std::pair<std::int64_t, std::int64_t>{6, 12}));
  EXPECT_EQ(parse_plan_options({"timeline", "a", "--steps", "6"}).window.steps,
            (std::pair<std::int64_t, std::int64_t>{6, 6}));
}

TEST(PlanOptions, AreAllDocumented) {
  std::ifstream file(std::filesystem::path(RP_SOURCE_DIR) / "docs/planning.md");
  const std::string docs{std::istreambuf_iterator<char>(file), {}};
  for (const char* command : {"plan", "simulate", "compare", "timeline"}) {
    const std::size_t section = docs.find(cat("## rp-plan ", command));
    ASSERT_NE(section, std::string::npos) << command;
    const std::string text = docs.substr(section, docs.find("\n## ", section) - section);
    std::istringstream help(parse_plan_options({command, "--help"}).help);
    for (std::string word; help >> word;) {
      if (!word.starts_with("--") || word == "--help") continue;
      EXPECT_NE(text.find(word), std::string::npos) << command << " " << word;
    }
  }
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
  refused({"compar"}, {"did you mean compare", "simulate, compare, timeline"});
  refused({"compare"}, {"--input is missing", "rp-plan compare --input"});
  refused({"compare", "--published", "--input", "a"}, {"--published and --input are given"});
  refused({"compare", "--published", "--html", "a"}, {"--published and --html are given"});
  refused({"compare", "--input", "a", "--effort", "forever"}, {"--effort forever", "fast, thorough"});
  refused({"compare", "--input", "a", "--htm", "b"},
          {"unknown option --htm", "did you mean --html", "rp-plan compare --help"});
  refused({"compare", "--input", "a", "--html", ""}, {"--html is empty"});
  refused({"timeline"}, {"a file is missing", "rp-plan timeline TRACE.json"});
  refused({"timeline", "a", "b"}, {"unexpected word b"});
  refused({"timeline", "a", "--html", "b"}, {"unknown option --html", "rp-plan timeline --help"});
  refused({"timeline", "a", "--from", "1s"}, {"--from 1s", "milliseconds"});
  refused({"timeline", "a", "--from=-1"}, {"--from -1"});
  refused({"timeline", "a", "--to", "nan"}, {"--to nan"});
  refused({"timeline", "a", "--from", "5", "--to", "5"}, {"--to 5 is not after --from 5"});
  refused({"timeline", "a", "--steps", "1", "--to", "5"}, {"--steps and --from or --to"});
  refused({"timeline", "a", "--steps", "3-2"}, {"--steps 3-2", "6-7"});
  refused({"timeline", "a", "--steps", "a"}, {"--steps a"});
}

}  // namespace
}  // namespace rp::test
