#include "tests/model_files/published_scaling.h"

#include <gtest/gtest.h>

#include <cmath>

namespace rp::test {
namespace {

// The single-GPU column calibrates the profile; the others are predicted.
TEST(PublishedScaling, IsPredictedBetterThanByAStraightLine) {
  double predicted = 0, line = 0;
  int cells = 0;
  for (const PublishedModel& model : published_models()) {
    if (!model.is_dense) continue;
    SCOPED_TRACE(model.preset);
    for (std::size_t i = 0; i < model.tokens_per_s.size(); ++i) {
      const double published = model.tokens_per_s[i];
      const double deviation = std::abs(predict_published(model, kPublishedGpus[i]).tokens_per_s / published - 1);
      EXPECT_LT(deviation, kPublishedGpus[i] == 1 ? 0.02 : 0.08);
      if (kPublishedGpus[i] == 1) continue;
      predicted += deviation;
      line += std::abs(model.tokens_per_s.front() * kPublishedGpus[i] / published - 1);
      ++cells;
    }
  }
  ASSERT_EQ(cells, 9);
  EXPECT_NEAR(line / cells, 0.040, 0.0005);
  EXPECT_LT(predicted / cells, 0.03);
}

}  // namespace
}  // namespace rp::test
