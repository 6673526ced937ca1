#include "train/metrics_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
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

StepReport step(std::int64_t number) {
  StepReport report;
  report.step = number;
  report.loss = 1.0 / static_cast<double>(number);
  return report;
}

TEST(MetricsLine, IsTheDocumentedObject) {
  StepReport report{.step = 3, .loss = 0.1, .grad_norm = 2, .learning_rate = 0.5, .trained_tokens = 77, .epoch = 1,
                    .seconds = 0.25, .tokens_per_second = 4096, .busy = 0.75, .host_bytes = 1024, .staged_bytes = 4096, .eta_seconds = 9};
  EXPECT_EQ(metrics_line(report),
            R"({"step": 3, "loss": 0.10000000000000001, "grad_norm": 2, "lr": 0.5, "tokens_per_second": 4096, )"
            R"("busy": 0.75, "trained_tokens": 77, "seconds": 0.25, "epoch": 1, "host_bytes": 1024, "staged_bytes": 4096})");
}

TEST(MetricsLine, HasTheOtherLossesBehindTheFirst) {
  StepReport report = step(1);
  report.z_loss = 0.5;
  report.experts = {.auxiliary_loss = 0.25, .most_loaded = 1.5, .least_loaded = 0.125};
  EXPECT_THAT(metrics_line(report), ::testing::HasSubstr(R"("loss": 1, "z_loss": 0.5, "aux_loss": 0.25, "most_loaded_expert": 1.5, )"
                                                         R"("least_loaded_expert": 0.125, "grad_norm")"));
}

TEST(MetricsLine, NeighbouringLossesDiffer) {
  StepReport a = step(3);
  StepReport b = a;
  b.loss = std::nextafter(a.loss, 1);
  EXPECT_NE(metrics_line(a), metrics_line(b));
}

TEST(MetricsLine, ALossThatIsNoNumberIsNull) {
  StepReport report = step(1);
  report.loss = std::nan("");
  EXPECT_THAT(metrics_line(report), ::testing::HasSubstr("\"loss\": null"));
}

TEST(MetricsFile, ALineIsReadableAsSoonAsItIsAdded) {
  const TempDirectory directory;
  MetricsFile file = MetricsFile::open(directory.file("metrics.jsonl"), 0);
  file.add(step(1));
  EXPECT_EQ(content(directory.file("metrics.jsonl")), metrics_line(step(1)) + "\n");
}

TEST(MetricsFile, AResumedRunGoesOnAfterTheStepsOfItsCheckpoint) {
  const TempDirectory directory;
  const auto path = directory.file("metrics.jsonl");
  {
    MetricsFile file = MetricsFile::open(path, 0);
    for (int i = 1; i <= 5; ++i) file.add(step(i));
  }
  std::ofstream(path, std::ios::app) << "{\"step\": 6, \"lo";  // the process was killed here
  MetricsFile file = MetricsFile::open(path, 3);
  file.add(step(4));
  std::string expected;
  for (int i = 1; i <= 4; ++i) expected += metrics_line(step(i)) + "\n";
  EXPECT_EQ(content(path), expected);
}

TEST(MetricsFile, AnotherRunOnTheSameFileIsRefused) {
  const TempDirectory directory;
  const MetricsFile file = MetricsFile::open(directory.file("metrics.jsonl"), 0);
  expect_error(ExitCode::kUsage, {"metrics.jsonl", "another run"},
               [&] { (void)MetricsFile::open(directory.file("metrics.jsonl"), 0); });
}

TEST(MetricsFile, SomebodyElsesFileIsRefusedAndUnchanged) {
  const TempDirectory directory;
  const auto path = directory.write("metrics.jsonl", "hello\n");
  expect_refusal({"metrics.jsonl", "line 1"}, [&] { (void)MetricsFile::open(path, 0); });
  EXPECT_EQ(content(path), "hello\n");
}

TEST(MetricsFile, ALinkInItsPlaceIsNotFollowed) {
  const TempDirectory directory;
  const auto target = directory.write("target", "{\"step\": 1}\n");
  std::filesystem::create_symlink(target, directory.file("metrics.jsonl"));
  expect_error(ExitCode::kOutputFailed, {"metrics.jsonl", "it is a link"}, [&] { (void)MetricsFile::open(directory.file("metrics.jsonl"), 0); });
  EXPECT_EQ(content(target), "{\"step\": 1}\n");
}

TEST(MetricsFile, AFullDiskLeavesOnlyWholeLines) {
  const TempDirectory directory;
  const auto path = directory.file("metrics.jsonl");
  MetricsFile file = MetricsFile::open(path, 0);
  file.add(step(1));
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  // The file may grow by half a line: the system takes that half, then refuses.
  const rlimit limit{.rlim_cur = metrics_line(step(1)).size() * 3 / 2, .rlim_max = before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  expect_error(ExitCode::kOutputFailed, {"metrics.jsonl", "cannot be written"}, [&] { file.add(step(2)); });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(content(path), metrics_line(step(1)) + "\n");
}

}  // namespace
}  // namespace rp
