// The published throughput of RoundPipe on 1 to 8 GPUs, cell by cell, beside what is predicted. docs/design/cost-model.md.

#include "tests/model_files/published_scaling.h"

#include <cmath>
#include <cstdio>

int main() {
  using rp::test::kPublishedGpus;
  std::printf("%-12s %5s %10s %10s %9s %14s | of the GPUs' time: busy inputs weights gradients updates bubble\n", "model", "GPUs", "published",
              "predicted", "deviation", "straight line");
  double predicted_sum = 0, line_sum = 0;
  int cells = 0;
  for (const rp::test::PublishedModel& model : rp::test::published_models()) {
    const double scale = model.tokens_per_s.front();
    for (std::size_t i = 0; i < model.tokens_per_s.size(); ++i) {
      const rp::test::PredictedRun prediction = rp::test::predict_published(model, kPublishedGpus[i]);
      const double published = model.tokens_per_s[i];
      const double deviation = prediction.tokens_per_s / published - 1, line = scale * kPublishedGpus[i] / published - 1;
      const rp::GpuTime& times = prediction.run.gpus;
      const double percent = 100 / times.total();
      std::printf("%-12s %5d %10.0f %10.0f %8.1f%% %13.1f%% | %22.1f%% %5.1f%% %6.1f%% %8.1f%% %6.1f%% %5.1f%%\n", model.preset.c_str(), kPublishedGpus[i],
                  published, prediction.tokens_per_s, 100 * deviation, 100 * line, percent * times.busy, percent * times.inputs,
                  percent * times.weights, percent * times.gradients, percent * times.updates, percent * times.bubble);
      if (kPublishedGpus[i] == 1 || !model.is_dense) continue;
      predicted_sum += std::abs(deviation);
      line_sum += std::abs(line);
      ++cells;
    }
  }
  std::printf("mean absolute deviation over the %d cells of the dense models on 2, 4, 8 GPUs: predicted %.1f %%, straight line %.1f %%\n",
              cells, 100 * predicted_sum / cells, 100 * line_sum / cells);
}
