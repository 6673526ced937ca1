#include "tests/cuda/queued_executor.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "tests/cuda/fake_driver/fake_driver.h"

namespace rp::test {

namespace {

// Kernels in addition to those of the phases.
constexpr const char* kClear = "clear";
constexpr const char* kRecompute = "recompute";
constexpr const char* kRound = "round";

}  // namespace

QueuedExecutor::QueuedExecutor(const ToyConfig& config, const Catalogue& catalogue, CudaDevice& device)
    : num_elements_(config.num_elements), inner_(config, catalogue), device_(device) {}

void QueuedExecutor::enqueue(const std::string& kernel, std::function<void()> function) {
  calls_.push_back(std::move(function));
  device_.context().make_current();
  FakeDriver::load(device_.compute_stream(), kernel);
  device_.context().check(
      device_.context().driver().launch_host_func(
          device_.compute_stream(), [](void* call) { (*static_cast<std::function<void()>*>(call))(); }, &calls_.back()),
      "computing");
}

bool QueuedExecutor::warm_up(Device&) {
  for (const char* kernel : {kClear, kRecompute, phase_name(Phase::kForward), phase_name(Phase::kFused),
                             phase_name(Phase::kBackward), kRound}) {
    enqueue(kernel, [] {});
  }
  if (after_warm_up) after_warm_up();
  num_loaded_early_ = FakeDriver::num_loaded(device_.compute_stream());
  return true;
}

std::size_t QueuedExecutor::num_loaded_late() const {
  return FakeDriver::num_loaded(device_.compute_stream()) - num_loaded_early_;
}

// The task itself exists until its completion.
void QueuedExecutor::begin(const StageTask& task) {
  std::optional<MirroredMemory>& memory = pages_[++num_begun_ % kPages];
  if (!memory) memory.emplace(device_, sizeof(Page), MemoryUse::kResults);
  enqueue(kClear, [this, task, page = page()] {
    *page = {};
    inner_.begin(task);
  });
}

// The gradient may still be arriving.
void QueuedExecutor::recompute(const StageTask& task, int microbatch, const MicrobatchInputs& inputs) {
  enqueue(kRecompute, [this, task, microbatch, blocks = inputs.blocks] {
    inner_.recompute(task, microbatch, {.blocks = blocks, .gradient = std::nullopt});
  });
}

void QueuedExecutor::run(const StageTask& task, int microbatch, const MicrobatchInputs& inputs,
                         MicrobatchOutputs& outputs) {
  const Command& command = *task.command;
  const auto add = [&](BlockKind kind, int index) {
    const auto bytes = static_cast<std::uint64_t>(num_elements_) * sizeof(float);
    std::byte* const data = device_.arena().allocate(bytes, MemoryUse::kOutputs);
    RP_ASSERT(data != nullptr);
    const std::shared_ptr<const void> owner(
        data, [this](const void* memory) { device_.arena().free(static_cast<std::byte*>(const_cast<void*>(memory))); });
    TensorView view{.desc = {.dtype = DType::kFloat32, .rank = 1}, .data = data};
    view.desc.shape[0] = num_elements_;
    outputs.blocks.push_back({.kind = kind, .index = index, .tensors = {view}, .owner = owner});
  };
  if (command.phase == Phase::kForward) {
    for (int layer = command.first_layer; layer < command.end_layer; ++layer) {
      if (command.saves(layer + 1)) add(BlockKind::kActivation, layer + 1);
    }
  } else if (command.wants_input_gradient()) {
    add(BlockKind::kGradient, command.first_layer);
  }
  std::vector<std::pair<std::byte*, std::uint64_t>> places;
  for (const OutputBlock& block : outputs.blocks) {
    places.emplace_back(const_cast<std::byte*>(block.tensors[0].data), block.tensors[0].desc.bytes());
  }
  enqueue(phase_name(command.phase), [this, task, microbatch, inputs, places, page = page()] {
    MicrobatchOutputs computed;
    inner_.run(task, microbatch, inputs, computed);
    RP_ASSERT(computed.blocks.size() == places.size());
    for (std::size_t i = 0; i < places.size(); ++i)
      std::memcpy(places[i].first, computed.blocks[i].tensors[0].data, places[i].second);
    if (task.command->runs_loss()) page->losses.at(page->num_losses++) = computed.losses;
  });
}

void QueuedExecutor::end(const StageTask& task, TaskTotals& totals) {
  totals.results = num_begun_;
  enqueue(kRound, [this, task, page = page(), number = num_begun_] {
    TaskTotals found;
    inner_.end(task, found);
    page->num_uses = found.square_sums.size();
    page->num_layers = found.layer_times.size();
    RP_ASSERT(page->num_uses <= Page::kMax && page->num_layers <= Page::kMax);
    std::ranges::copy(found.square_sums, page->square_sums.begin());
    std::ranges::copy(found.layer_times, page->layer_times.begin());
    std::ranges::copy(found.layer_memory, page->layer_memory.begin());
    page->task = number;
  });
}

void QueuedExecutor::download(const TaskTotals& totals) { pages_[totals.results % kPages]->download(); }

void QueuedExecutor::collect(TaskTotals& totals) {
  const auto& page = *reinterpret_cast<const Page*>(pages_[totals.results % kPages]->host());
  RP_ASSERT(page.task == totals.results);
  totals.losses.assign(page.losses.begin(), page.losses.begin() + static_cast<std::ptrdiff_t>(page.num_losses));
  totals.square_sums.assign(page.square_sums.begin(),
                            page.square_sums.begin() + static_cast<std::ptrdiff_t>(page.num_uses));
  totals.layer_times.assign(page.layer_times.begin(),
                            page.layer_times.begin() + static_cast<std::ptrdiff_t>(page.num_layers));
  totals.layer_memory.assign(page.layer_memory.begin(),
                             page.layer_memory.begin() + static_cast<std::ptrdiff_t>(page.num_layers));
}

}  // namespace rp::test
