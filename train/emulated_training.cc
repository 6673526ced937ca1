#include "train/emulated_training.h"

#include <ATen/ATen.h>

#include <array>
#include <cstdio>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "common/system/clock.h"
#include "common/text.h"
#include "models/layers/scalar_type.h"
#include "planner/prediction/emulated_machine.h"
#include "roundpipe/models.h"
#include "train/output/standard_output.h"
#include "train/run/memory_check.h"
#include "train/run_header.h"

namespace rp {

namespace {

constexpr std::string_view kEmulatedPrefix = "sim:";

struct Accepted {
  std::vector<RoundResult> rounds;
  std::optional<StepResult> step;
};

Accepted accept_step(Pipeline& pipeline, const TrainSettings& settings) {
  const std::int64_t size = settings.sequences_of_round(), length = settings.sequence_length;
  const at::Tensor tokens = at::zeros({size, length}, at::kLong);
  const at::Tensor divisor = at::scalar_tensor(static_cast<double>(settings.tokens_of_step()), at::kFloat);
  Accepted accepted;
  for (std::int64_t round = 0; round < settings.rounds_per_step; ++round) {
    accepted.rounds.push_back(pipeline.forward_backward({tokens}, {tokens, divisor}));
  }
  accepted.step =
      pipeline.step(AdamW{}, {.asynchronous = settings.asynchronous, .max_grad_norm = settings.max_grad_norm});
  return accepted;
}

}  // namespace

void train_emulated(Session& session, const TrainSettings& settings, const PipelineOptions& options) {
  if (const EmulatedMachine machine = emulated_machine(session.device().substr(kEmulatedPrefix.size())); machine.gpu)
    check_gpu_memory(settings, *machine.gpu);
  const double sequences =
      static_cast<double>(settings.sequences_of_round()) / static_cast<double>(settings.num_microbatches);
  const at::ScalarType dtype = scalar_type_of(settings.dtype);
  const models::EmulatedBatch batch{
      .sequences = sequences, .sequence_length = settings.sequence_length, .parts = settings.parts};
  Pipeline pipeline(session, models::emulated(settings.model, batch, dtype), models::causal_lm_loss(), options);
  session.start();
  print(cat(settings.model.string(), ", ", session.num_workers(), " workers; nothing is computed, read or written\n",
            memory_text(session.memory_plan()), "plan: ", pipeline.plan_text(), "\n"));
  std::int64_t last_ns = now_ns();
  std::optional<Accepted> before;
  for (std::int64_t step = 1; step <= settings.max_steps + 1; ++step) {
    std::optional<Accepted> next;
    if (step <= settings.max_steps) next = accept_step(pipeline, settings);
    if (before) {  // while this waits for the previous step, the next one runs
      (void)before->rounds.back().loss();
      const std::int64_t now = now_ns();
      const double seconds = static_cast<double>(now - std::exchange(last_ns, now)) * 1e-9;
      std::array<char, 120> line{};
      std::snprintf(line.data(), line.size(), "step %lld/%lld  loss -  %.3f s  %.0f tokens/s\n",
                    static_cast<long long>(step - 1), static_cast<long long>(settings.max_steps), seconds,
                    static_cast<double>(settings.tokens_of_step()) / seconds);
      print(line.data());
    }
    before = std::move(next);
  }
}

}  // namespace rp
