#include "train/emulated_training.h"

#include <optional>
#include <utility>

#include "common/system/clock.h"
#include "common/text.h"
#include "models/layers/scalar_type.h"
#include "planner/prediction/emulated_machine.h"
#include "roundpipe/models.h"
#include "train/accepted_step.h"
#include "train/output/number_text.h"
#include "train/output/standard_output.h"
#include "train/output/step_clock.h"
#include "train/run/memory_check.h"
#include "train/run_header.h"

namespace rp {

void train_emulated(Session& session, const TrainSettings& settings, const PipelineOptions& options) {
  if (const EmulatedMachine machine = emulated_machine(session.device().substr(kEmulatedDevice.size())); machine.gpu)
    check_gpu_memory(settings, *machine.gpu);
  const double sequences =
      static_cast<double>(settings.sequences_of_round()) / static_cast<double>(settings.num_microbatches);
  const models::EmulatedBatch sizes{
      .sequences = sequences, .sequence_length = settings.sequence_length, .parts = settings.parts};
  Pipeline pipeline(session, models::emulated(settings.model, sizes, scalar_type_of(settings.dtype)),
                    models::causal_lm_loss(), options);
  session.start();
  print(cat(settings.model.string(), ", ", session.num_workers(), " workers; nothing is computed, read or written\n",
            memory_text(session.memory_plan()), "plan: ", pipeline.plan_text(), "\n"));
  const std::int64_t num_tokens = settings.tokens_of_step();
  TokenBatch batch;
  batch.tokens.resize(static_cast<std::size_t>(num_tokens));
  batch.labels = batch.tokens;
  batch.num_tokens = batch.num_trained = num_tokens;
  StepClock clock(now_ns());
  std::optional<AcceptedStep> accepted;
  const auto report_accepted = [&] {
    if (!accepted) return;
    (void)accepted->rounds.back().loss();
    const double seconds = clock.on_step(now_ns());
    print(formatted("step %lld/%lld  loss -  %.3f s  %.0f tokens/s\n", static_cast<long long>(accepted->step),
                    static_cast<long long>(settings.max_steps), seconds, static_cast<double>(num_tokens) / seconds));
  };
  for (std::int64_t step = 1; step <= settings.max_steps; ++step) {
    AcceptedStep next = accept_step(pipeline, settings, step, batch, AdamW{});
    report_accepted();  // while this waits for the previous step, the next one runs
    accepted = std::move(next);
  }
  report_accepted();
}

}  // namespace rp
