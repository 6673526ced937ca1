#include "train/output/metrics_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace rp {
namespace {

StepReport step(std::int64_t number) {
  StepReport report;
  report.step = number;
  report.loss = 1.0 / static_cast<double>(number);
  return report;
}

TEST(MetricsLine, IsTheDocumentedObject) {
  StepReport report{.step = 3,
                    .loss = 0.1,
                    .grad_norm = 2,
                    .learning_rate = 0.5,
                    .tokens = 90,
                    .trained_tokens = 77,
                    .padded_tokens = 6,
                    .epoch = 1,
                    .seconds = 0.25,
                    .tokens_per_second = 4096,
                    .busy = 0.75,
                    .host_bytes = 1024,
                    .staged_bytes = 4096,
                    .eta_seconds = 9};
  EXPECT_EQ(
      metrics_line(report),
      R"({"step": 3, "loss": 0.10000000000000001, "grad_norm": 2, "lr": 0.5, "tokens_per_second": 4096, )"
      R"("busy": 0.75, "tokens": 90, "trained_tokens": 77, "padded_tokens": 6, "seconds": 0.25, "epoch": 1, "host_bytes": 1024, "staged_bytes": 4096})");
}

TEST(MetricsLine, HasTheOtherLossesBehindTheFirst) {
  StepReport report = step(1);
  report.z_loss = 0.5;
  report.experts = {.auxiliary_loss = 0.25, .most_loaded = 1.5, .least_loaded = 0.125};
  EXPECT_THAT(metrics_line(report),
              ::testing::HasSubstr(R"("loss": 1, "z_loss": 0.5, "aux_loss": 0.25, "most_loaded_expert": 1.5, )"
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

TEST(MetricsCsv, HasAValueOrNothingUnderEachName) {
  EXPECT_THAT(metrics_csv_header(), ::testing::StartsWith("step,loss,z_loss,aux_loss,"));
  EXPECT_THAT(metrics_csv_line(step(2)), ::testing::StartsWith("2,0.5,,,,,0,"));
  StepReport all = step(2);
  all.loss = std::nan("");
  all.z_loss = 0.5;
  EXPECT_THAT(metrics_csv_line(all), ::testing::StartsWith("2,,0.5,,"));
  for (const std::string& line : {metrics_csv_line(step(2)), metrics_csv_line(all)}) {
    EXPECT_EQ(std::count(line.begin(), line.end(), ','), std::ranges::count(metrics_csv_header(), ','));
  }
}

TEST(EvaluationLine, IsTheDocumentedObject) {
  EXPECT_EQ(evaluation_line({.step = 8, .loss = 0, .trained_tokens = 5, .seconds = 0.5, .is_best = true}),
            R"({"step": 8, "loss": 0, "perplexity": 1, "trained_tokens": 5, "seconds": 0.5, "best": true})");
}

}  // namespace
}  // namespace rp
