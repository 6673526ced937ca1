// A training program that forks a child in the middle of its run. The argument selects how the
// child ends: it returns from main() ("return"), throws out of main() ("throw"), crashes ("crash")
// or calls _exit() ("leave"). Prints its losses.
#include <roundpipe/roundpipe.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <stdexcept>
#include <string>

struct Block : torch::nn::Module {
  explicit Block(int size) : linear(register_module("linear", torch::nn::Linear(size, size))) {}
  at::Tensor forward(at::Tensor x) { return x + torch::tanh(linear(x)); }
  torch::nn::Linear linear;
};

at::Tensor mean_square(at::Tensor output, at::Tensor label) { return (output - label).square().mean(); }

int main(int argc, char** argv) {
  const std::string end = argc > 1 ? argv[1] : "none";
  rp::Session session(argc, argv);
  rp::Model model{rp::layer<Block>(8), rp::layer<Block>(8)};
  rp::Pipeline pipe(session, model, rp::loss("mean square", mean_square), {.num_microbatches = 2});
  session.start();
  const at::Tensor x = torch::ones({4, 8});
  for (int step = 1; step <= 10; ++step) {
    const rp::RoundResult result = pipe.forward_backward(x, x);
    pipe.step(rp::AdamW{.learning_rate = 1e-2});
    std::printf("step %d loss %.9g\n", step, result.loss());
    std::fflush(stdout);
    if (step != 5 || end == "none") continue;
    const pid_t child = fork();
    if (child == 0) {
      if (end == "return") return 0;
      if (end == "throw") throw std::runtime_error("of the child");
      if (end == "crash") raise(SIGSEGV);
      _exit(3);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child) return 90;
    std::printf("the child ended with %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  }
}
