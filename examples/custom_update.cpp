// Defines its own update rule: Lion (Chen et al. 2023), which moves every weight by the sign of its
// momentum. The library's rules are faster, because they update a layer while others still compute;
// but a function of your own may do anything.
//   rp-launch --workers 2 custom_update
#include <roundpipe/roundpipe.h>

#include <cstdio>

struct Block : torch::nn::Module {
  explicit Block(int size) : linear(register_module("linear", torch::nn::Linear(size, size))) {}
  at::Tensor forward(at::Tensor x) { return x + torch::tanh(linear(x)); }
  torch::nn::Linear linear;
};

at::Tensor mean_square(at::Tensor output, at::Tensor label) { return (output - label).square().sum() / (64 * 32); }

class Lion {
 public:
  explicit Lion(std::vector<at::Tensor> parameters) : parameters_(std::move(parameters)) {
    for (const at::Tensor& parameter : parameters_) momenta_.push_back(torch::zeros_like(parameter));
  }
  void step() {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const at::Tensor gradient = parameters_[i].grad();
      parameters_[i].sub_(kRate * (0.9 * momenta_[i] + 0.1 * gradient).sign());
      momenta_[i].mul_(0.99).add_(gradient, 0.01);
    }
  }

 private:
  static constexpr double kRate = 3e-3;
  std::vector<at::Tensor> parameters_, momenta_;
};

int main(int argc, char** argv) {
  rp::Session session(argc, argv);
  rp::Model model{rp::layer<Block>(32), rp::layer<Block>(32), rp::layer<Block>(32), rp::layer<Block>(32)};
  // Lion stores the momentum itself, so the host store need not keep any moments.
  rp::Pipeline pipe(session, model, rp::loss("mean square", mean_square), {.num_microbatches = 4, .num_moments = 0});
  session.start();

  Lion lion(pipe.optimizer_parameters());
  auto random = at::make_generator<at::CPUGeneratorImpl>(7);
  for (int step = 1; step <= 40; ++step) {
    at::Tensor inputs = torch::randn({64, 32}, random);
    rp::RoundResult result = pipe.forward_backward(inputs, inputs.flip(1));
    pipe.step([&] { lion.step(); }, {.max_grad_norm = 1.0});
    std::printf("step %2d  loss %.9g\n", step, result.loss());
  }
}
