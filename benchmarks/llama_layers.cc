// Measures a Llama training step on the CPU, layer by layer as a worker runs it (forward, then
// recompute and backward for each layer), by kind of layer. The figure is the shortest time of
// several steps, since the machine may have other work. Shapes of SmolLM2-135M, random weights,
// without optimizer and transfers.
//   llama_layers [--threads N] [--batch B] [--length T] [--microbatches M] [--steps S] [--fp32] [--chunk TOKENS]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "models/decoder.h"
#include "models/layers/causal_lm_loss.h"

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Settings {
  int threads = 1;
  std::int64_t batch = 4;
  std::int64_t length = 256;
  std::int64_t microbatches = 1;
  std::int64_t chunk_tokens = rp::models::kChunkTokens;
  int steps = 6;
  at::ScalarType dtype = at::kBFloat16;
};

Settings parse(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    const auto value = [&] { return i + 1 < argc ? std::atoi(argv[++i]) : 0; };
    if (option == "--threads") settings.threads = value();
    if (option == "--batch") settings.batch = value();
    if (option == "--length") settings.length = value();
    if (option == "--microbatches") settings.microbatches = value();
    if (option == "--steps") settings.steps = value();
    if (option == "--chunk") settings.chunk_tokens = value();
    if (option == "--fp32") settings.dtype = at::kFloat;
  }
  return settings;
}

// The layers with weights and fp32 gradients, and the times of the parts of a step.
class Model {
 public:
  Model(const rp::ModelConfig& config, at::ScalarType dtype) {
    layers_.push_back(rp::models::make_embedding(config, {}, dtype));
    for (int i = 0; i < config.num_layers(); ++i)
      layers_.push_back(rp::models::make_decoder_layer(config, i, {}, dtype));
    layers_.push_back(rp::models::make_head(config, {}, dtype));
    for (auto& layer : layers_) {
      for (rp::NamedParameter& parameter : layer->parameters()) {
        at::Tensor value = at::randn(parameter.value.sizes(), at::kFloat).mul_(0.02);
        if (parameter.value.dim() == 1) value.fill_(1.0);
        parameter.value.set_data(value.to(dtype));
        parameter.value.set_grad_dtype(at::kFloat);
        parameter.value.mutable_grad() = at::zeros(parameter.value.sizes(), at::kFloat);
      }
    }
  }

  // Runs one microbatch; returns its loss.
  double run(const at::Tensor& ids, const rp::Tensors& arguments, std::int64_t chunk_tokens) {
    std::vector<rp::Tensors> inputs = {{ids}};
    {
      const c10::NoGradGuard no_grad;
      for (std::size_t i = 0; i + 1 < layers_.size(); ++i) {
        const auto start = Clock::now();
        inputs.push_back(layers_[i]->forward(inputs[i]));
        times_[i == 0 ? "embedding forward" : "decoder layer forward"] += seconds_since(start);
      }
    }
    auto start = Clock::now();
    at::Tensor x = inputs.back()[0].detach().requires_grad_(true);
    const at::Tensor loss =
        rp::models::causal_lm_loss_of(layers_.back()->forward({x}), arguments, {}, chunk_tokens).at(0);
    torch::autograd::backward({loss});
    times_["head, loss and backward"] += seconds_since(start);
    at::Tensor grad = x.grad();
    for (std::size_t i = layers_.size() - 1; i-- > 0;) {
      start = Clock::now();
      at::Tensor input = inputs[i][0].detach();
      if (i > 0) input.requires_grad_(true);
      const at::Tensor y = layers_[i]->forward({input})[0];
      times_[i == 0 ? "embedding forward" : "decoder layer recompute"] += seconds_since(start);
      start = Clock::now();
      torch::autograd::backward({y}, {grad});
      times_[i == 0 ? "embedding backward" : "decoder layer backward"] += seconds_since(start);
      grad = input.grad();
    }
    return loss.item<double>();
  }

  std::map<std::string, double> times_;

 private:
  std::vector<std::unique_ptr<rp::Layer>> layers_;
};

}  // namespace

int main(int argc, char** argv) {
  const Settings settings = parse(argc, argv);
  at::set_num_threads(settings.threads);
  const rp::ModelConfig config = rp::preset_config("smollm2-135m");
  Model model(config, settings.dtype);
  const std::int64_t tokens = settings.batch * settings.length;
  const at::Tensor ids = at::randint(config.vocabulary, {settings.batch, settings.length}, at::kLong);
  const at::Tensor divisor = at::scalar_tensor(static_cast<double>(tokens), at::kFloat);
  std::map<std::string, double> fastest;
  double fastest_step = 1e30;
  for (int step = 0; step < settings.steps; ++step) {
    model.times_.clear();
    const auto start = Clock::now();
    double loss = 0;
    for (const at::Tensor& part : ids.tensor_split(settings.microbatches)) {
      loss += model.run(part, {part, divisor}, settings.chunk_tokens);
    }
    const double seconds = seconds_since(start);
    fastest_step = std::min(fastest_step, seconds);
    for (const auto& [name, part] : model.times_) {
      double& least = fastest.try_emplace(name, part).first->second;
      least = std::min(least, part);
    }
    std::printf("step %d: loss %.4f, %.3f s\n", step, loss, seconds);
  }
  std::printf("fastest of %d steps: %.3f s, %.1f tokens/s\n", settings.steps, fastest_step,
              static_cast<double>(tokens) / fastest_step);
  for (const auto& [name, seconds] : fastest) std::printf("  %-26s %8.1f ms\n", name.c_str(), seconds * 1e3);
}
