// bits_program GRAIN PLANS LLAMA [MODEL]: trains small models for a few steps and prints everything
// that must be equal between two runs: losses as hexadecimal numbers, and a hash of each output,
// parameter, moment and buffer. Used by bits_test.py.
//   GRAIN   stage or layer: the grain of recompute
//   PLANS   automatic, or stages or layers, which are the manual plans below
//   LLAMA   a Hugging Face directory
//   MODEL   digits, llama, two_models or routing; without it all four are pipelines of one session
#include <roundpipe/roundpipe.h>
#include <xxhash.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

// Includes the networks of the examples. Their main() gets another name and is not used; under that
// name the compiler expects a return.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wreturn-type"
#define main main_of_the_example
namespace digits {
#include "examples/digits.cpp"
}
namespace distillation {
#include "examples/two_models.cpp"
}
#undef main
#pragma GCC diagnostic pop

namespace {

// For each name of PLANS, the plan of each pipeline. The two manual plans cut forward and backward
// differently.
using Plans = std::map<std::string, std::string>;
const std::map<std::string, Plans> kPlans = {{"stages",
                                              {{"digits", "forward 0-1 2 | fused 3-4 | backward 1-2 0"},
                                               {"llama", "forward 0-2 3-5 | fused 6-7 | backward 4-5 0-3"},
                                               {"teacher", "forward 0-1 2-3"},
                                               {"student", "fused 0-1"},
                                               {"routing", "forward 0-2 | fused 3-5 | backward 1-2 0"}}},
                                             {"layers",
                                              {{"digits", "forward 0 1 2 3 | fused 4 | backward 2-3 0-1"},
                                               {"llama", "forward 0 1 2-4 5-6 | fused 7 | backward 6 4-5 1-3 0"},
                                               {"teacher", "forward 0 1 2 3"},
                                               {"student", "forward 0 | fused 1 | backward 0"},
                                               {"routing", "forward 0 1 2 3 4 | fused 5 | backward 3-4 0-2"}}}};

// The settings from the command line.
struct Settings {
  rp::RecomputeGrain grain = rp::RecomputeGrain::kStage;
  std::string plans;
  std::filesystem::path llama;

  // Returns `options`, adapted to the pipeline with this name.
  [[nodiscard]] rp::PipelineOptions with(const std::string& name, rp::PipelineOptions options) const {
    options.name = name;
    options.recompute_grain = grain;
    if (plans != "automatic") options.plan = kPlans.at(plans).at(name);
    return options;
  }
};

// The training of a model, which runs after the start of the session.
using Training = std::function<void()>;

std::string hash_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "-";
  const at::Tensor dense = tensor.contiguous();
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx",
                static_cast<unsigned long long>(XXH3_64bits(dense.const_data_ptr(), dense.nbytes())));
  return text.data();
}

void print_loss(const char* model, int round, const rp::RoundResult& result) {
  std::printf("%s: loss %d %a\n", model, round, result.loss());
}

void print_state(const char* model, rp::Pipeline& pipe) {
  pipe.synchronize();
  for (const rp::ParameterState& p : pipe.parameters()) {
    std::printf("%s: parameter %s %s %s %s %s\n", model, p.name.c_str(), hash_of(p.working).c_str(),
                hash_of(p.master).c_str(), hash_of(p.moment1).c_str(), hash_of(p.moment2).c_str());
  }
  for (const rp::BufferState& buffer : pipe.buffers()) {
    std::printf("%s: buffer %s %s\n", model, buffer.name.c_str(), hash_of(buffer.value).c_str());
  }
}

// BatchNorm and dropout, with evaluations between the steps. It has more rounds than the two and
// the ten after which an automatic plan changes.
Training train_digits(rp::Session& session, const Settings& settings) {
  using namespace digits;
  const rp::Model model{rp::layer<Stem>(8), rp::layer<Residual>(8, 8, 1), rp::layer<Residual>(8, 12, 2),
                        rp::layer<Residual>(12, 12, 1), rp::layer<Head>(12)};
  const auto cross_entropy = [](const at::Tensor& scores, const at::Tensor& labels) {
    return at::cross_entropy_loss(scores, labels, {}, at::Reduction::Sum) / 22;
  };
  const auto pipe = std::make_shared<rp::Pipeline>(session, model, rp::loss("cross entropy", cross_entropy),
                                                   settings.with("digits", {.num_microbatches = 4, .seed = 1}));
  return [pipe] {
    auto random = at::make_generator<at::CPUGeneratorImpl>(1);
    const at::Tensor images = torch::randn({30, 1, 8, 8}, random);
    const at::Tensor labels = torch::randint(10, {30}, random, at::kLong);
    for (int round = 1; round <= 13; ++round) {
      const at::Tensor batch = torch::randperm(30, random).slice(0, 0, 22);
      print_loss("digits", round, pipe->forward_backward(images.index({batch}), labels.index({batch})));
      pipe->step(rp::AdamW{.learning_rate = 1e-2});
      if (round % 5 != 0) continue;
      const at::Tensor scores = pipe->forward(images, {.requires_grad = false}).at(0);
      std::printf("digits: scores %d %s\n", round, hash_of(scores).c_str());
    }
    print_state("digits", *pipe);
  };
}

// Tied embeddings, bf16, asynchronous steps of two rounds, clipped.
Training train_llama(rp::Session& session, const Settings& settings) {
  const auto pipe = std::make_shared<rp::Pipeline>(
      session, rp::models::load(settings.llama), rp::models::causal_lm_loss(),
      settings.with("llama", {.num_microbatches = 3, .rounds_per_step = 2, .asynchronous = true, .seed = 2}));
  const std::int64_t vocabulary = rp::models::inspect(settings.llama).vocabulary;
  return [pipe, vocabulary] {
    auto random = at::make_generator<at::CPUGeneratorImpl>(2);
    for (int round = 1; round <= 8; ++round) {
      const at::Tensor tokens = torch::randint(vocabulary, {7, 17}, random, at::kLong);
      const at::Tensor divisor = at::scalar_tensor(2 * 7 * 16, at::kFloat);
      print_loss("llama", round,
                 pipe->forward_backward(tokens.slice(1, 0, 16), {tokens.slice(1, 1).contiguous(), divisor}));
      if (round % 2 == 0) pipe->step(rp::AdamW{.learning_rate = 1e-3}, {.asynchronous = true, .max_grad_norm = 1});
    }
    print_state("llama", *pipe);
  };
}

// A frozen teacher and a student, whose outputs and labels are packed.
Training train_two_models(rp::Session& session, const Settings& settings) {
  using namespace distillation;
  const rp::Model large{rp::layer<FrozenBlock>(32), rp::layer<FrozenBlock>(32), rp::layer<FrozenBlock>(32),
                        rp::layer<FrozenBlock>(32)};
  const rp::Model small{rp::layer<Block>(32), rp::layer<Block>(32)};
  const auto teacher = std::make_shared<rp::Pipeline>(session, large, std::vector<rp::Loss>{},
                                                      settings.with("teacher", {.num_microbatches = 4, .seed = 3}));
  const auto student = std::make_shared<rp::Pipeline>(session, small, rp::loss("distance", distance),
                                                      settings.with("student", {.num_microbatches = 4, .seed = 4}));
  return [teacher, student] {
    auto random = at::make_generator<at::CPUGeneratorImpl>(3);
    for (int round = 1; round <= 12; ++round) {
      const at::Tensor inputs = torch::randn({30, 32}, random);
      print_loss("two_models", round, student->forward_backward(inputs, teacher->forward_packed(inputs)));
      student->step(rp::AdamW{.learning_rate = 1e-2});
    }
    print_state("two_models", *student);
    print_state("two_models: teacher", *teacher);
  };
}

// A mixture of two experts that draws its routing randomly in the forward pass. The recompute can
// reproduce it only from the saved routing.
struct Experts : torch::nn::Module {
  explicit Experts(int size)
      : gate(register_module("gate", torch::nn::Linear(size, 2))),
        first(register_module("first", torch::nn::Linear(size, size))),
        second(register_module("second", torch::nn::Linear(size, size))) {}

  at::Tensor forward(at::Tensor x) {
    const at::Tensor weights = torch::softmax(gate(x), -1);
    at::Tensor route;
    if (rp::is_recomputing()) {
      route = rp::recompute_data().at(0);
    } else {
      route = (torch::rand({x.size(0), 1}) < weights.detach().slice(1, 0, 1)).to(at::kLong);
      rp::save_for_recompute({route});
    }
    return x + weights.gather(1, route) * torch::tanh(torch::where(route == 0, first(x), second(x)));
  }

  torch::nn::Linear gate, first, second;
};

Training train_routing(rp::Session& session, const Settings& settings) {
  const rp::Model model{rp::layer<Experts>(12), rp::layer<Experts>(12), rp::layer<Experts>(12),
                        rp::layer<Experts>(12), rp::layer<Experts>(12), rp::layer<Experts>(12)};
  const auto distance = [](const at::Tensor& x, const at::Tensor& target) { return (x - target).square().sum() / 20; };
  const auto pipe = std::make_shared<rp::Pipeline>(
      session, model, rp::loss("distance", distance),
      settings.with("routing", {.num_microbatches = 3, .asynchronous = true, .seed = 5}));
  return [pipe] {
    auto random = at::make_generator<at::CPUGeneratorImpl>(4);
    for (int round = 1; round <= 12; ++round) {
      const at::Tensor x = torch::randn({20, 12}, random);
      print_loss("routing", round, pipe->forward_backward(x, x.flip(1)));
      pipe->step(rp::AdamW{.learning_rate = 1e-2}, {.asynchronous = true});
    }
    print_state("routing", *pipe);
  };
}

using Describe = Training (*)(rp::Session&, const Settings&);
const std::vector<std::pair<std::string, Describe>> kModels = {
    {"digits", train_digits}, {"llama", train_llama}, {"two_models", train_two_models}, {"routing", train_routing}};

}  // namespace

int main(int argc, char** argv) {
  rp::Session session(argc, argv);
  const std::vector<std::string> words(argv + 1, argv + argc);
  const bool is_understood = (words.size() == 3 || words.size() == 4) && (words[0] == "stage" || words[0] == "layer") &&
                             (words[1] == "automatic" || kPlans.contains(words[1]));
  if (!is_understood)
    throw rp::Error(rp::ExitCode::kUsage, "usage: bits_program stage|layer automatic|stages|layers LLAMA [MODEL]");
  const Settings settings{words[0] == "stage" ? rp::RecomputeGrain::kStage : rp::RecomputeGrain::kLayer, words[1],
                          words[2]};
  std::vector<Training> trainings;
  for (const auto& [name, describe] : kModels) {
    if (words.size() == 3 || words[3] == name) trainings.push_back(describe(session, settings));
  }
  if (trainings.empty()) throw rp::Error(rp::ExitCode::kUsage, "there is no model " + words[3]);
  session.start();
  for (const Training& train : trainings) train();
}
