#include "train/output/step_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <sstream>

#include "tests/common/expect_refusal.h"
#include "tests/common/temp_directory.h"

namespace rp {
namespace {

std::string content(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::string line(int step) { return "{\"step\": " + std::to_string(step) + ", \"loss\": 0.5}"; }

TEST(StepFile, ALineIsReadableAsSoonAsItIsAdded) {
  const TempDirectory directory;
  StepFile file = StepFile::open_json(directory.file("metrics.jsonl"), 0);
  file.add(line(1));
  EXPECT_EQ(content(directory.file("metrics.jsonl")), line(1) + "\n");
}

TEST(StepFile, AResumedRunGoesOnAfterTheStepsOfItsCheckpoint) {
  const TempDirectory directory;
  const auto path = directory.file("metrics.jsonl");
  {
    StepFile file = StepFile::open_json(path, 0);
    for (int i = 1; i <= 5; ++i) file.add(line(i));
  }
  std::ofstream(path, std::ios::app) << "{\"step\": 6, \"lo";  // the process was killed here
  StepFile file = StepFile::open_json(path, 3);
  file.add(line(4));
  std::string expected;
  for (int i = 1; i <= 4; ++i) expected += line(i) + "\n";
  EXPECT_EQ(content(path), expected);
}

TEST(StepFile, ValuesByCommasHaveTheirNamesOnceAndAreCutAtTheCheckpointToo) {
  const TempDirectory directory;
  const auto path = directory.file("metrics.csv");
  {
    StepFile file = StepFile::open_csv(path, 0, "step,loss");
    for (const char* each : {"1,0.5", "2,0.4", "3,0.3"}) file.add(each);
  }
  StepFile file = StepFile::open_csv(path, 2, "step,loss");
  file.add("3,0.25");
  EXPECT_EQ(content(path), "step,loss\n1,0.5\n2,0.4\n3,0.25\n");
}

TEST(StepFile, ValuesUnderOtherNamesAreRefused) {
  const TempDirectory directory;
  const auto path = directory.write("metrics.csv", "step,other\n1,0.5\n");
  expect_refusal({"metrics.csv", "line 1"}, [&] { (void)StepFile::open_csv(path, 0, "step,loss"); });
  const auto damaged = directory.write("damaged.csv", "step,loss\nx,0.5\n");
  expect_refusal({"damaged.csv", "line 2"}, [&] { (void)StepFile::open_csv(damaged, 0, "step,loss"); });
}

TEST(StepFile, AnotherRunOnTheSameFileIsRefused) {
  const TempDirectory directory;
  const StepFile file = StepFile::open_json(directory.file("metrics.jsonl"), 0);
  expect_error(ExitCode::kUsage, {"metrics.jsonl", "another run"},
               [&] { (void)StepFile::open_json(directory.file("metrics.jsonl"), 0); });
}

TEST(StepFile, SomebodyElsesFileIsRefusedAndUnchanged) {
  const TempDirectory directory;
  const auto path = directory.write("metrics.jsonl", "hello\n");
  expect_refusal({"metrics.jsonl", "line 1"}, [&] { (void)StepFile::open_json(path, 0); });
  EXPECT_EQ(content(path), "hello\n");
}

TEST(StepFile, ALinkInItsPlaceIsNotFollowed) {
  const TempDirectory directory;
  const auto target = directory.write("target", "{\"step\": 1}\n");
  std::filesystem::create_symlink(target, directory.file("metrics.jsonl"));
  expect_error(ExitCode::kOutputFailed, {"metrics.jsonl", "it is a link"},
               [&] { (void)StepFile::open_json(directory.file("metrics.jsonl"), 0); });
  EXPECT_EQ(content(target), "{\"step\": 1}\n");
}

TEST(StepFile, AFullDiskLeavesOnlyWholeLines) {
  const TempDirectory directory;
  const auto path = directory.file("metrics.jsonl");
  StepFile file = StepFile::open_json(path, 0);
  file.add(line(1));
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  // The limit lets the file grow by half a line: the system writes that half, then refuses the
  // rest.
  const rlimit limit{.rlim_cur = line(1).size() * 3 / 2, .rlim_max = before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  expect_error(ExitCode::kOutputFailed, {"metrics.jsonl", "cannot be written"}, [&] { file.add(line(2)); });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(content(path), line(1) + "\n");
}

}  // namespace
}  // namespace rp
