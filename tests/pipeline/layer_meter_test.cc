#include "pipeline/torch_worker/layer_meter.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <stdexcept>

#include "pipeline/torch_worker/cpu_tensor_memory.h"
#include "pipeline/torch_worker/cpu_torch_device.h"
#include "pipeline/torch_worker/stopwatch.h"
#include "pipeline/torch_worker/torch_stage_executor.h"

namespace rp::test {
namespace {

constexpr std::int64_t kElements = 1 << 18;
constexpr std::uint64_t kBytes = kElements * sizeof(float);

class ScriptedDevice : public CpuTorchDevice {
 public:
  ScriptedDevice() : CpuTorchDevice(std::make_shared<CpuMemory>(), 1, 1) {}
  TensorBytes take_tensor_bytes() override {
    const TensorBytes next = said.front();
    said.pop_front();
    return next;
  }
  std::deque<TensorBytes> said;
};

TEST(LayerMeter, KeepsTheMaximumOfAllMicrobatches) {
  ScriptedDevice device;
  LayerMeter meter(device);
  const Tensors ten = {at::zeros({10}, at::kByte), at::Tensor()}, four = {at::zeros({4}, at::kByte)};
  device.said = {{.now = 100, .peak = 900}};
  meter.begin(2);
  EXPECT_EQ(meter.resident_bytes(), 100U);
  device.said = {
      {.now = 100, .peak = 0}, {.now = 104, .peak = 150}, {.now = 104, .peak = 0}, {.now = 104, .peak = 120}};
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    meter.start();
    meter.end_forward(1, ten, four);
  }
  device.said = {{.now = 100, .peak = 0}, {.now = 170, .peak = 180}, {.now = 170, .peak = 0}, {.now = 40, .peak = 230}};
  meter.start();
  meter.end_graph(0, ten, four);
  meter.start();
  meter.end_backward(0, four);
  EXPECT_EQ(meter.layers()[1].input_bytes, 10U);
  EXPECT_EQ(meter.layers()[1].output_bytes, 4U);
  EXPECT_EQ(meter.layers()[1].forward_workspace_bytes, 10U + 50 - 4);
  EXPECT_EQ(meter.layers()[0].saved_bytes, 70U);
  EXPECT_EQ(meter.layers()[0].recompute_workspace_bytes, 10U);
  EXPECT_EQ(meter.layers()[0].backward_workspace_bytes, 60U + 4) << "what is given back meanwhile does not count";
}

class FailedDevice : public CpuTorchDevice {
 public:
  FailedDevice() : CpuTorchDevice(std::make_shared<CpuMemory>(), 1, 1) {}
  void subtract_time(std::int64_t*) override { ++num_begun; }
  void add_time(std::int64_t*) override {
    if (fails) throw Error(ExitCode::kNoResource, "it takes no more work");
  }
  bool fails = true;
  int num_begun = 0;
};

// An exception thrown by a destructor would end the process without any report of the layer's
// failure.
TEST(Stopwatch, OfADeviceThatHasFailedLetsTheLayersOwnErrorThrough) {
  FailedDevice device;
  std::int64_t times[2] = {};
  const auto run = [&] {
    device.fails = false;
    const Span span(device, times);
    const Stopwatch watch(device, times[0]);
    device.fails = true;
    throw std::runtime_error("the layer's");
  };
  EXPECT_THROW(run(), std::runtime_error);
  EXPECT_EQ(device.num_begun, 1);
}

class CountedDevice : public CpuTorchDevice {
 public:
  CountedDevice() : CpuTorchDevice(install_cpu_tensor_memory(), 1, kElements) {}
  void note_output(const at::Tensor& tensor) override {
    CpuTorchDevice::note_output(tensor);
    num_outputs += tensor.defined() ? 1 : 0;
  }
  int num_outputs = 0;
};

// Computes sin(x w). Its backward needs x w and x.
struct SineLayer : Layer {
  std::vector<NamedParameter> parameters() override { return {{"w", weight}}; }
  Tensors forward(const Tensors& inputs) override { return {at::sin(inputs.at(0) * weight)}; }
  at::Tensor weight = placeholder({kElements}, at::kFloat).requires_grad_();
};

LayerSpec sine_layer() {
  LayerSpec spec;
  spec.name = "sine";
  spec.make = [] { return std::make_unique<SineLayer>(); };
  return spec;
}

// A stage of two such layers on one worker.
struct TwoLayers {
  TwoLayers() {
    const ParameterRequest weight{.name = "w", .dtype = DType::kFloat32, .shape = {kElements}, .is_trained = true};
    catalogue = Catalogue::lay_out(std::vector<LayerRequest>(2, {.name = "sine", .parameters = {weight}}), 1, false);
    for (const UseId use : {UseId(0), UseId(1)}) {
      uses.push_back({.use = use, .weights = reinterpret_cast<const std::byte*>(values.const_data_ptr<float>())});
    }
    command.end_layer = 2;
    command.num_microbatches = 1;
    command.flags = Command::kNoRandomNumbers;
    command.save(2);
  }
  [[nodiscard]] StageTask task() const { return {.command = &command, .uses = uses}; }
  [[nodiscard]] InputBlock block(BlockKind kind, int index) const {
    TensorView view{.desc = {.dtype = DType::kFloat32, .rank = 1},
                    .data = reinterpret_cast<std::byte*>(values.data_ptr<float>())};
    view.desc.shape[0] = kElements;
    return {.kind = kind, .index = index, .tensors = {view}, .structure = {}};
  }

  at::Tensor values = at::rand({kElements});
  Catalogue catalogue;
  std::vector<UseMemory> uses;
  Command command;
};

TEST(LayerMeter, SeesWhatEachLayerOfAStageTakes) {
  TwoLayers stage;
  at::Tensor sums = at::zeros({2, kElements}), gradients = at::zeros({2, kElements});
  CountedDevice device;
  const std::uint64_t resident_bytes = device.take_tensor_bytes().now;
  const Model model{sine_layer(), sine_layer()};
  const std::vector<Loss> losses;
  TorchStageExecutor executor({{&model, &losses}}, stage.catalogue, device, {.num_threads = 1});

  TaskTotals totals;
  stage.command.phase = Phase::kForward;
  {
    MicrobatchOutputs outputs;
    executor.clear(stage.task().uses);
    executor.begin(stage.task());
    executor.run(stage.task(), 0, {.blocks = {stage.block(BlockKind::kActivation, 0)}, .gradient = std::nullopt},
                 outputs);
    executor.end(stage.task(), totals);
    EXPECT_EQ(outputs.blocks.size(), 1U);
    EXPECT_EQ(device.num_outputs, 1);
  }
  ASSERT_EQ(totals.layer_memory.size(), 2U);
  for (const LayerMemory& layer : totals.layer_memory) {
    EXPECT_EQ(layer.input_bytes, kBytes);
    EXPECT_EQ(layer.output_bytes, kBytes);
    EXPECT_EQ(layer.forward_workspace_bytes, 2 * kBytes) << "the input and the product";
    EXPECT_EQ(layer.saved_bytes, 0U);
  }

  for (std::size_t i = 0; i < 2; ++i) {
    const auto row = static_cast<std::int64_t>(i) * kElements;
    stage.uses[i].accumulator = sums.mutable_data_ptr<float>() + row;
    stage.uses[i].gradient = reinterpret_cast<std::byte*>(gradients.mutable_data_ptr<float>() + row);
  }
  stage.command.phase = Phase::kBackward;
  MicrobatchOutputs outputs;
  const MicrobatchInputs inputs{.blocks = {stage.block(BlockKind::kActivation, 0)},
                                .gradient = stage.block(BlockKind::kGradient, 2)};
  executor.begin(stage.task());
  executor.recompute(stage.task(), 0, inputs);
  executor.run(stage.task(), 0, inputs, outputs);
  executor.end(stage.task(), totals);
  for (const LayerMemory& layer : totals.layer_memory) {
    EXPECT_EQ(layer.saved_bytes, 2 * kBytes) << "the product and the output";
    EXPECT_EQ(layer.recompute_workspace_bytes, 0U);
    EXPECT_GE(layer.backward_workspace_bytes, 3 * kBytes) << "the gradient that comes, the cosine, their product";
    EXPECT_LE(layer.backward_workspace_bytes, 4 * kBytes);
  }
  EXPECT_EQ(totals.resident_bytes, resident_bytes) << "nothing of the stage is there between two tasks";
}

// Keeps twice its weights during a task.
struct DoublingLayer : SineLayer {
  explicit DoublingLayer(bool* throws_error) : throws(throws_error) {}
  void begin_task() override { twice = at::cat({weight.detach(), weight.detach()}); }
  void end_task() override { twice = at::Tensor(); }
  Tensors forward(const Tensors& inputs) override {
    if (*throws) throw std::runtime_error("not this time");
    return {inputs.at(0) * twice.narrow(0, 0, kElements)};
  }
  bool* throws;
  at::Tensor twice;
};

TEST(LayerMeter, SeesWhatLayersKeepDuringATaskWhichEndsWhateverHappens) {
  TwoLayers stage;
  CountedDevice device;
  bool throws = false;
  LayerSpec spec;
  spec.name = "doubling";
  spec.make = [&throws] { return std::make_unique<DoublingLayer>(&throws); };
  const Model model{spec, spec};
  const std::vector<Loss> losses;
  TorchStageExecutor executor({{&model, &losses}}, stage.catalogue, device, {.num_threads = 1});
  const std::uint64_t resident_bytes = device.take_tensor_bytes().now;
  const MicrobatchInputs inputs{.blocks = {stage.block(BlockKind::kActivation, 0)}, .gradient = std::nullopt};
  stage.command.phase = Phase::kForward;
  TaskTotals totals;
  const auto run_to_the_end = [&] {
    MicrobatchOutputs outputs;
    executor.begin(stage.task());
    executor.run(stage.task(), 0, inputs, outputs);
    executor.end(stage.task(), totals);
  };
  run_to_the_end();
  for (const LayerMemory& layer : totals.layer_memory) {
    EXPECT_EQ(layer.expanded_bytes, 2 * kBytes);
    EXPECT_EQ(layer.forward_workspace_bytes, kBytes) << "only the input";
  }
  for (const LayerTime& time : totals.layer_times) EXPECT_EQ(time.recompute_ns, 0);
  EXPECT_EQ(device.take_tensor_bytes().now, resident_bytes);
  throws = true;
  MicrobatchOutputs outputs;
  executor.begin(stage.task());
  EXPECT_THROW(executor.run(stage.task(), 0, inputs, outputs), LayerFailure);
  EXPECT_GE(device.take_tensor_bytes().now, resident_bytes + 4 * kBytes);
  throws = false;
  run_to_the_end();
  EXPECT_EQ(totals.resident_bytes, resident_bytes) << "the task that failed has ended before";
  executor.begin(stage.task());
  executor.begin_epoch();
  EXPECT_EQ(device.take_tensor_bytes().now, resident_bytes) << "so has the task that the epoch's end gave up";
}

}  // namespace
}  // namespace rp::test
