// several_runs OPTIONS... [-- OPTIONS...]...: what `train` does with each of these lists of options,
// one after another, as the pipelines of one session. Each run has the results of a `train` of its
// own. So tests of many small runs start their processes once.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "common/text.h"
#include "roundpipe/session.h"
#include "train/run_model.h"
#include "train/settings/defaults.h"
#include "train/settings/settings.h"
#include "train/training.h"

namespace rp {
namespace {

class Run {
 public:
  // Before Session::start(), in every process.
  Run(Session& session, const std::vector<std::string>& options, int number)
      : settings_(parse_train_command(options).settings) {
    if (session.is_coordinator()) {
      inputs_ = find_run_inputs(settings_, session.threads_per_worker(), {});
    } else if (needs_model(settings_)) {
      const models::ModelInfo info = models::inspect(settings_.model, settings_.parts);
      fill_in_by_model(settings_, info.num_parameters, info.max_sequence_length);
    }
    loss_ = loss_settings(settings_);
    PipelineOptions pipeline = pipeline_options(settings_);
    pipeline.name = cat("run ", number);
    pipeline_ =
        std::make_unique<Pipeline>(session, load_model(settings_, loss_), models::causal_lm_loss(loss_), pipeline);
  }

  // In the coordinator, after the start.
  void train(Session& session) { Training(session, *pipeline_, settings_, loss_, inputs_, "").run(); }

 private:
  TrainSettings settings_;
  RunInputs inputs_;
  models::CausalLmLossSettings loss_;
  std::unique_ptr<Pipeline> pipeline_;
};

}  // namespace
}  // namespace rp

int main(int argc, char** argv) {
  rp::Session session(argc, argv);
  std::vector<std::unique_ptr<rp::Run>> runs;
  for (char **begin = argv + 1, **const end = argv + argc; begin < end;) {
    char** const next = std::find(begin, end, std::string("--"));
    runs.push_back(
        std::make_unique<rp::Run>(session, std::vector<std::string>(begin, next), static_cast<int>(runs.size())));
    begin = next == end ? end : next + 1;
  }
  session.start();
  for (const auto& run : runs) run->train(session);
}
