// The smallest program: trains a custom layer and a custom loss on an artificial task. Run it
// alone, or with
//   rp-launch --workers 2 minimal
// It prints the same losses both ways: main() runs in every process, and start() never returns in a
// worker.
#include <roundpipe/roundpipe.h>

#include <cstdio>

struct Block : torch::nn::Module {
  explicit Block(int size) : linear(register_module("linear", torch::nn::Linear(size, size))) {}
  at::Tensor forward(at::Tensor x) { return x + torch::tanh(linear(x)); }
  torch::nn::Linear linear;
};

at::Tensor mean_square(at::Tensor output, at::Tensor label) {
  return (output - label).square().sum() / (64 * 32);  // of the batch of 64: the losses of microbatches are added
}

int main(int argc, char** argv) {
  rp::Session session(argc, argv);  // finds out which process this is
  rp::Model model{rp::layer<Block>(32), rp::layer<Block>(32), rp::layer<Block>(32), rp::layer<Block>(32)};
  rp::Pipeline pipe(session, model, rp::loss("mean square", mean_square), {.num_microbatches = 4});
  session.start();  // in a worker, this serves tasks and does not return

  auto random = at::make_generator<at::CPUGeneratorImpl>(7);
  for (int step = 1; step <= 20; ++step) {
    at::Tensor inputs = torch::randn({64, 32}, random);
    rp::RoundResult result = pipe.forward_backward(inputs, inputs.flip(1));
    pipe.step(rp::AdamW{.learning_rate = 1e-2});
    std::printf("step %2d  loss %.9g\n", step, result.loss());
  }
}
