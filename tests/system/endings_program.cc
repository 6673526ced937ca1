// A training program whose first argument selects how it ends. Used by endings_test.py.
#include <roundpipe/roundpipe.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

std::string g_mode;
volatile int* volatile g_nowhere = nullptr;

struct Block : torch::nn::Module {
  explicit Block(int layer) : layer_(layer), linear_(register_module("linear", torch::nn::Linear(8, 8))) {}
  at::Tensor forward(at::Tensor x) {
    if (layer_ == 1) {
      if (g_mode == "throw-in-layer" || g_mode == "throw-unheard") throw std::runtime_error("the layer's own message");
      if (g_mode == "segfault-in-layer") *g_nowhere = 1;
      if (g_mode == "abort-in-layer") std::abort();
      if (g_mode == "exit-in-layer") std::exit(3);
      while (g_mode == "hang-in-layer") pause();
      if (g_mode == "worker-killed" && ++num_calls_ == 20) raise(SIGKILL);
    }
    return x + torch::tanh(linear_(x));
  }
  int layer_;
  int num_calls_ = 0;
  torch::nn::Linear linear_;
};

at::Tensor mean_square(at::Tensor output, at::Tensor label) {
  if (g_mode == "throw-in-loss") throw std::runtime_error("the loss's own message");
  return (output - label).square().mean();
}

}  // namespace

int main(int argc, char** argv) {
  g_mode = argc > 1 ? argv[1] : "success";
  if (g_mode == "throw-after-session") {
    {
      const rp::Session session(argc, argv);
    }
    throw std::runtime_error("after the session");
  }
  rp::SessionOptions options;
  if (g_mode == "wants-cuda") options.device = "cuda";
  rp::Session session(argc, argv, options);
  rp::Model model{rp::layer<Block>(0), rp::layer<Block>(1), rp::layer<Block>(2), rp::layer<Block>(3)};
  if (g_mode == "differ" && !session.is_coordinator()) model.add(rp::layer<Block>(4));
  if (g_mode == "differ-in-argument") {
    model = rp::Model{rp::layer<Block>(0), rp::layer<Block>(session.is_coordinator() ? 1 : 7)};
  }
  while (g_mode == "slow-start" && !session.is_coordinator()) pause();
  if (g_mode == "throw-before-start") throw std::runtime_error("before the start");
  rp::Pipeline pipe(session, model, rp::loss("mean square", mean_square), {.num_microbatches = 2});
  session.start();
  if (g_mode == "save-fails") {
    const rlimit limit{.rlim_cur = 1024, .rlim_max = 1024};  // maximum file size in bytes
    setrlimit(RLIMIT_FSIZE, &limit);
    signal(SIGXFSZ, SIG_IGN);
    pipe.save_state(std::string(std::getenv("TMPDIR")) + "/state", "");  // throws an exception that is not caught
  }
  if (g_mode == "throw-in-main") throw std::runtime_error("main's own message");
  if (g_mode == "exit-7") return 7;
  const bool runs_until_signal = g_mode == "until-signal" || g_mode == "until-preempted" || g_mode == "ignore-stop";
  const int num_steps = runs_until_signal ? 1'000'000'000 : 50;
  const at::Tensor x = torch::ones({4, 8});
  if (g_mode == "throw-unheard") {
    (void)pipe.forward_backward(x, x);
    return 0;
  }
  try {
    for (int step = 1; step <= num_steps; ++step) {
      const auto result = pipe.forward_backward(x, x);
      pipe.step(rp::AdamW{});
      const double loss = result.loss();
      if (step == 5) {
        std::printf("running %d %.9g\n", getpid(), loss);
        std::fflush(stdout);
      }
      if (step == 10 && g_mode == "coordinator-killed") raise(SIGKILL);
      if (step == 10 && g_mode == "coordinator-aborts") std::abort();
      if (step == 10 && g_mode == "ignore-stop") {
        while (true) pause();
      }
    }
  } catch (const rp::Interrupted&) {
    if (g_mode == "until-preempted") session.preempted();
    throw;
  }
  std::printf("done\n");
}
