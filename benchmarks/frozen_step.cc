// Measures steps over one long sequence with frozen matrices, and the GPU memory that they need:
//   rp-launch --gpus 0, --gpu-memory 24G frozen_step --model DIR --sequence-length T [--steps S]
// Only norms are trained, in bf16, with recompute by layer. Gradients pass through all layers, as
// with LoRA's pairs, and the host holds 2 bytes per parameter instead of 16, so that models can be
// measured whose trained store would not fit. The memory for gradients of weights on the GPU is
// missing: docs/design/cuda.md says how much that is.
#include <roundpipe/roundpipe.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

namespace {

struct Settings {
  std::string model;
  std::int64_t sequence_length = 0;
  int steps = 1;
};

Settings parse(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i], value = argv[i + 1];
    if (option == "--model") settings.model = value;
    if (option == "--sequence-length") settings.sequence_length = std::atoll(value.c_str());
    if (option == "--steps") settings.steps = std::atoi(value.c_str());
  }
  if (settings.model.empty() || settings.sequence_length < 1 || settings.steps < 1) {
    throw rp::Error(rp::ExitCode::kUsage, "usage: frozen_step --model DIR --sequence-length T [--steps S]");
  }
  return settings;
}

// Returns the model with everything except its norms frozen. Its weights are not read, since that
// takes long: norms are 1, all other weights are 0, and the loss is that of a guess. The memory
// that is needed does not depend on them.
rp::Model with_frozen_matrices(const rp::Model& whole) {
  rp::Model model;
  model.set_dtype(whole.dtype()).set_check(whole.check());
  for (rp::LayerSpec layer : whole.layers()) {
    layer.make = [make = std::move(layer.make)] {
      std::unique_ptr<rp::Layer> made = make();
      for (const rp::NamedParameter& parameter : made->parameters()) {
        at::Tensor leaf = parameter.value;
        leaf.requires_grad_(leaf.dim() == 1);
      }
      return made;
    };
    layer.initialize = [](const std::string&, const at::Tensor& value) { value.fill_(value.dim() == 1 ? 1 : 0); };
    model.add(std::move(layer));
  }
  for (const auto& [first, second] : whole.ties()) model.tie(first, second);
  return model;
}

// Prints a line of JSON; the limit is 0 without a GPU.
void print(const Settings& settings, const rp::models::ModelInfo& info, double loss, double seconds,
           const rp::Session& session) {
  rp::WorkerMemoryUse most;
  for (const rp::WorkerMemoryUse& use : session.worker_memory()) {
    if (use.peak_bytes > most.peak_bytes) most = use;
  }
  std::printf(
      "{\"tokens\": %lld, \"steps\": %d, \"layers\": %d, \"parameters\": %lld, \"loss\": %.6f, \"seconds\": %.3f, "
      "\"host_bytes_a_parameter\": %.3f, \"peak_gpu_bytes\": %llu, \"limit_bytes\": %llu}\n",
      static_cast<long long>(settings.sequence_length), settings.steps, info.num_layers,
      static_cast<long long>(info.num_parameters), loss, seconds, session.memory_plan().bytes_per_parameter,
      static_cast<unsigned long long>(most.peak_bytes), static_cast<unsigned long long>(most.limit_bytes));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  rp::Session session(argc, argv);
  const Settings settings = parse(argc, argv);
  const rp::models::ModelInfo info = rp::models::inspect(settings.model);
  rp::Pipeline pipeline(session, with_frozen_matrices(rp::models::load(settings.model)), rp::models::causal_lm_loss(),
                        {.num_microbatches = 1, .recompute_grain = rp::RecomputeGrain::kLayer, .num_moments = 0});
  session.start();
  at::Generator random = at::make_generator<at::CPUGeneratorImpl>(7);
  const at::Tensor tokens = at::randint(0, info.vocabulary, {1, settings.sequence_length}, random, at::kLong);
  const at::Tensor divisor = at::scalar_tensor(static_cast<double>(settings.sequence_length), at::kFloat);
  const auto start = std::chrono::steady_clock::now();
  double loss = 0;
  for (int step = 0; step < settings.steps; ++step) {
    const rp::RoundResult result = pipeline.forward_backward({tokens}, {tokens, divisor});
    pipeline.step(rp::Sgd{.learning_rate = 1e-3});
    loss = result.loss();
  }
  pipeline.synchronize();
  print(settings, info, loss, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), session);
  return 0;
}
