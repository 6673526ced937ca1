// A program outside of RoundPipe's tree: a small torch::nn network learns the parity of four bits.
//   rp-launch --workers 2 ./outside
#include <roundpipe/roundpipe.h>

#include <cstdio>

struct Block : torch::nn::Module {
  Block(int inputs, int outputs) : linear(register_module("linear", torch::nn::Linear(inputs, outputs))) {}
  at::Tensor forward(at::Tensor x) { return torch::tanh(linear(x)); }
  torch::nn::Linear linear;
};

at::Tensor mean_square(at::Tensor output, at::Tensor label) { return (output - label).square().sum() / 16; }

int main(int argc, char** argv) {
  rp::Session session(argc, argv);
  const rp::Model model{rp::layer<Block>(4, 16), rp::layer<Block>(16, 16), rp::layer<torch::nn::Linear>(16, 1)};
  rp::Pipeline pipe(session, model, rp::loss("mean square", mean_square), {.num_microbatches = 4});
  session.start();

  const at::Tensor numbers = torch::arange(16).unsqueeze(1);
  const at::Tensor bits = numbers.bitwise_right_shift(torch::arange(4)).bitwise_and(1);
  const at::Tensor inputs = bits.to(at::kFloat) * 2 - 1;
  const at::Tensor labels = bits.sum(1, /*keepdim=*/true).remainder(2).to(at::kFloat);
  for (int step = 1; step <= 100; ++step) {
    const rp::RoundResult result = pipe.forward_backward(inputs, labels);
    pipe.step(rp::AdamW{.learning_rate = 1e-2});
    if (step % 10 == 0) std::printf("step %3d  loss %.9g\n", step, result.loss());
  }
}
