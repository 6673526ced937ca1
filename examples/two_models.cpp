// Distillation: a frozen teacher provides the targets for a student. Two pipelines share the
// workers and one order of stages; the teacher's outputs stay with the workers, and this program
// never waits for them.
//   rp-launch --workers 2 two_models
#include <roundpipe/roundpipe.h>

#include <cstdio>

struct Block : torch::nn::Module {
  explicit Block(int size) : linear(register_module("linear", torch::nn::Linear(size, size))) {}
  at::Tensor forward(at::Tensor x) { return x + torch::tanh(linear(x)); }
  torch::nn::Linear linear;
};

struct FrozenBlock : Block {
  explicit FrozenBlock(int size) : Block(size) {
    for (at::Tensor& parameter : parameters()) parameter.requires_grad_(false);  // 2 bytes in bf16 instead of 16
  }
};

at::Tensor distance(at::Tensor student, at::Tensor teacher) { return (student - teacher).square().sum() / (64 * 32); }

int main(int argc, char** argv) {
  rp::Session session(argc, argv);
  const rp::Model large{rp::layer<FrozenBlock>(32), rp::layer<FrozenBlock>(32), rp::layer<FrozenBlock>(32),
                        rp::layer<FrozenBlock>(32)};
  const rp::Model small{rp::layer<Block>(32), rp::layer<Block>(32)};
  rp::Pipeline teacher(session, large, std::vector<rp::Loss>{}, {.num_microbatches = 4, .seed = 1, .name = "teacher"});
  rp::Pipeline student(session, small, rp::loss("distance", distance),
                       {.num_microbatches = 4, .seed = 2, .name = "student"});
  session.start();

  auto random = at::make_generator<at::CPUGeneratorImpl>(7);
  for (int step = 1; step <= 40; ++step) {
    const at::Tensor inputs = torch::randn({64, 32}, random);
    const rp::RoundResult result = student.forward_backward(inputs, teacher.forward_packed(inputs));
    student.step(rp::AdamW{.learning_rate = 1e-2});
    std::printf("step %2d  loss %.9g\n", step, result.loss());
  }
}
