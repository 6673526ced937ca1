// Makes calls that several nodes cannot share. Used by nodes_test.py. The first argument:
//   calls            catches what each call throws, and then trains a step
//   rounds, masters  options that are refused at the start
//   buffers          a layer that is refused at the start
//   ends, asks       node 1 makes a call less than node 0, or one more, and both wait for each other
#include <roundpipe/roundpipe.h>

#include <cstdio>
#include <functional>
#include <string>

namespace {

struct Block : torch::nn::Module {
  explicit Block(bool with_buffer) : linear_(register_module("linear", torch::nn::Linear(8, 8))) {
    if (with_buffer) shift_ = register_buffer("shift", torch::zeros({8}));
  }
  at::Tensor forward(at::Tensor x) {
    const at::Tensor y = x + torch::tanh(linear_(x));
    return shift_.defined() ? y + shift_ : y;
  }
  torch::nn::Linear linear_;
  at::Tensor shift_;
};

at::Tensor mean_square(at::Tensor output, at::Tensor label) { return (output - label).square().mean(); }

// Trains a step. The second round is node 1's.
void train_step(rp::Session& session, rp::Pipeline& pipe, const at::Tensor& x, bool asks) {
  (void)pipe.forward_backward(x, x);
  if (asks && session.node() == 1) (void)session.from_first_node("");
  std::printf("loss %a\n", pipe.forward_backward(x, x).loss());
  pipe.step(rp::AdamW{});
}

void expect_refusal(const char* name, const std::function<void()>& call) {
  try {
    call();
    std::printf("%s: possible\n", name);
  } catch (const rp::Error& error) {
    std::printf("%s: %s\n", name, error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "calls";
  rp::Session session(argc, argv);
  const rp::Model model{rp::layer<Block>(false), rp::layer<Block>(mode == "buffers")};
  rp::Pipeline pipe(session, model, rp::loss("mean square", mean_square),
                    {.num_microbatches = 2,
                     .rounds_per_step = mode == "rounds" ? 1 : 2,
                     .optimizer_dtype = mode == "masters" ? at::kDouble : at::kFloat});
  session.start();
  const at::Tensor x = torch::ones({4, 8});
  if (mode == "ends" || mode == "asks") {
    train_step(session, pipe, x, false);
    if (mode == "asks" || session.node() == 0) train_step(session, pipe, x, mode == "asks");
    return 0;
  }
  expect_refusal("forward", [&] { (void)pipe.forward(x); });
  expect_refusal("forward without gradients", [&] {
    const torch::NoGradGuard no_grad;
    (void)pipe.forward(x);
  });
  expect_refusal("forward_packed", [&] { (void)pipe.forward_packed(x); });
  expect_refusal("return_outputs", [&] { (void)pipe.forward_backward(x, x, {.return_outputs = true}); });
  expect_refusal("optimizer_parameters", [&] { (void)pipe.optimizer_parameters(); });
  (void)pipe.forward_backward(x, x);
  const rp::RoundResult result = pipe.forward_backward(x, x);
  expect_refusal("function", [&] { pipe.step(rp::Update([] {})); });
  pipe.step(rp::AdamW{});
  pipe.synchronize();
  std::printf("loss %a of step %d\n", result.loss(), static_cast<int>(pipe.num_steps()));
}
