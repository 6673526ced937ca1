// Classifies handwritten digits: a residual convolutional network with BatchNorm and dropout, from
// real images to a test accuracy.
//   .venv/bin/python tools/export_digits.py --output run/digits.bin
//   rp-launch --workers 2 digits run/digits.bin
#include <roundpipe/roundpipe.h>

#include <cstdio>
#include <filesystem>

namespace nn = torch::nn;

nn::Conv2d convolution(int inputs, int outputs, int stride) {
  return nn::Conv2d(nn::Conv2dOptions(inputs, outputs, 3).stride(stride).padding(1).bias(false));
}

struct Stem : nn::Module {
  explicit Stem(int channels) {
    body = register_module("body", nn::Sequential(convolution(1, channels, 1), nn::BatchNorm2d(channels), nn::ReLU()));
  }
  at::Tensor forward(at::Tensor x) { return body->forward(x); }
  nn::Sequential body{nullptr};
};

struct Residual : nn::Module {
  Residual(int inputs, int outputs, int stride) {
    body =
        register_module("body", nn::Sequential(convolution(inputs, outputs, stride), nn::BatchNorm2d(outputs),
                                               nn::ReLU(), convolution(outputs, outputs, 1), nn::BatchNorm2d(outputs)));
    skip = register_module("skip", nn::Conv2d(nn::Conv2dOptions(inputs, outputs, 1).stride(stride)));
  }
  at::Tensor forward(at::Tensor x) { return torch::relu(skip(x) + body->forward(x)); }
  nn::Sequential body{nullptr};
  nn::Conv2d skip{nullptr};
};

struct Head : nn::Module {
  explicit Head(int channels) : linear(register_module("linear", nn::Linear(channels, 10))) {}
  at::Tensor forward(at::Tensor x) { return linear(torch::dropout(x.mean({2, 3}), 0.2, is_training())); }
  nn::Linear linear;
};

constexpr int kEpochs = 8, kBatch = 64, kRow = 65;  // bytes of an image: 64 pixels and the digit

int main(int argc, char** argv) {
  rp::Session session(argc, argv);
  if (argc != 2) throw rp::Error(rp::ExitCode::kUsage, "usage: digits FILE, as tools/export_digits.py writes it");
  const rp::Model model{rp::layer<Stem>(16), rp::layer<Residual>(16, 16, 1), rp::layer<Residual>(16, 32, 2),
                        rp::layer<Residual>(32, 32, 1), rp::layer<Head>(32)};
  const auto cross_entropy = [](const at::Tensor& scores, const at::Tensor& digits) {
    return at::cross_entropy_loss(scores, digits, {}, at::Reduction::Sum) / kBatch;
  };
  rp::Pipeline pipe(session, model, rp::loss("cross entropy", cross_entropy), {.num_microbatches = 4, .seed = 1});
  session.start();

  const auto num_bytes = static_cast<std::int64_t>(std::filesystem::file_size(argv[1]));
  auto random = at::make_generator<at::CPUGeneratorImpl>(1);
  at::Tensor rows = torch::from_file(argv[1], /*shared=*/false, num_bytes, at::kByte).view({-1, kRow});
  rows = rows.index({torch::randperm(rows.size(0), random)});  // the split is the same in every run
  const at::Tensor images = rows.slice(1, 0, 64).to(at::kFloat).view({-1, 1, 8, 8}) / 8 - 1;  // -1 to 1
  const at::Tensor digits = rows.select(1, 64).to(at::kLong);
  const std::int64_t num_train = 1400, steps_per_epoch = num_train / kBatch;

  const rp::LearningRate rate{.schedule = rp::LearningRateSchedule::kCosine,
                              .peak = 1e-2,
                              .warmup_steps = 10,
                              .max_steps = kEpochs * steps_per_epoch};
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const at::Tensor order = torch::randperm(num_train, random);
    double loss = 0;
    for (int i = 0; i < steps_per_epoch; ++i) {
      const at::Tensor batch = order.slice(0, i * kBatch, (i + 1) * kBatch);
      loss += pipe.forward_backward(images.index({batch}), digits.index({batch})).loss() / steps_per_epoch;
      pipe.step(rp::AdamW{.learning_rate = rate.at(epoch * steps_per_epoch + i + 1)});
    }
    const at::Tensor scores = pipe.forward(images.slice(0, num_train), {.requires_grad = false}).at(0);
    const at::Tensor correct = scores.argmax(1).eq(digits.slice(0, num_train));
    std::printf("epoch %d  loss %.9g  test accuracy %.2f %%\n", epoch + 1, loss,
                100 * correct.to(at::kDouble).mean().item<double>());
  }
}
