// tests/worker/worker_harness.h
// Runs a worker whose coordinator is the test: the test itself writes the commands and words.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "device/cpu_device.h"
#include "hoststore/data_checksum.h"
#include "roundpipe/error.h"
#include "tests/common/wait_limits.h"
#include "worker/worker.h"

namespace rp::test {

struct TwoLayers {
  std::int64_t wait_timeout_ns = 20 * kNsPerSecond;
  std::uint32_t num_copies = 1;   // number of working copies of the weights
  std::uint32_t num_buffers = 0;  // number of buffers of each layer
  bool with_sums = false;
  bool check_consistency = false;
};

// Makes a store for two layers with one fp32 weight each. Worker 0 is under test; worker 1 does not
// exist.
inline std::unique_ptr<Store> two_layer_store(const TwoLayers& options) {
  StoreSettings settings;
  settings.backing = "memfd";
  settings.num_workers = 2;
  settings.arena_limit_bytes = 4 << 20;
  settings.wait_timeout_ns = options.wait_timeout_ns;
  settings.check_consistency = options.check_consistency;
  std::vector<LayerRequest> layers(2, LayerRequest{.name = "l"});
  for (LayerRequest& layer : layers) {
    layer.parameters.push_back({.name = "w", .shape = {8}});
    layer.num_buffers = options.num_buffers;
  }
  return Store::create(settings, Catalogue::lay_out(layers, options.num_copies, options.with_sums));
}

inline TensorView float_tensor(const std::vector<float>& values) {
  TensorView view;
  view.desc = {.dtype = DType::kFloat32, .rank = 1};
  view.desc.shape[0] = static_cast<std::int64_t>(values.size());
  view.data = reinterpret_cast<const std::byte*>(values.data());
  return view;
}

inline constexpr RoundShape kTwoLayers{.num_layers = 2, .num_microbatches = 2, .num_uses = 2};

// Makes the table of the only round of the tests. It is the first thing in the coordinator's arena.
inline RoundTable make_table(Store& store) {
  ArenaView& arena = store.arena(kCoordinatorArena);
  arena.grow(1 << 16);
  RoundShape shape = kTwoLayers;
  shape.is_checked = store.header().checks_consistency;
  return RoundTable::create(arena.data(0, RoundTable::bytes(shape)), shape);
}

// Writes `values` as a block at `offset` of the coordinator's arena, as an input of every microbatch.
inline void place_input(Store& store, const RoundTable& table, BlockKind kind, int index,
                        const std::vector<float>& values, std::uint64_t offset) {
  const std::vector<TensorView> tensors = {float_tensor(values)};
  const BlockLayout layout = lay_out_block(tensors);
  std::byte* memory = store.arena(kCoordinatorArena).data(offset, layout.bytes);
  write_block_head(memory, layout);
  std::memcpy(memory + layout.tensors[0].offset, values.data(), values.size() * sizeof(float));
  for (int m = 0; m < table.num_microbatches(); ++m) {
    table.place(kind, index, m) = {.slot = {}, .arena = kCoordinatorArena, .offset = offset, .bytes = layout.bytes};
    if (table.is_checked()) table.checksum(kind, index, m) = DataChecksum::of({memory, layout.bytes});
  }
}

// A device on the processor that lets a test act at a certain moment: once, just before or just
// after the next copy of an upload stream.
class InterruptedDevice : public Device {
 public:
  struct Interruption {
    std::function<void()> before_copy{};
    std::function<void()> after_copy{};
  };

  [[nodiscard]] std::string name() const override { return "cpu"; }
  [[nodiscard]] DeviceMemory allocate(std::uint64_t bytes, MemoryUse use) override { return cpu_.allocate(bytes, use); }
  [[nodiscard]] bool allocates_zeros() const override { return gives_zeros; }
  void prepare(std::uint64_t bytes, MemoryUse use) override { prepared.emplace_back(bytes, use); }
  [[nodiscard]] Stream& stream(StreamKind kind) override {
    if (kind == StreamKind::kUploadParameters) return parameters_;
    return kind == StreamKind::kUploadActivations ? activations_ : cpu_.stream(kind);
  }
  // REQUIRES: the worker is not serving yet.
  void interrupt(StreamKind kind, Interruption interruption) {
    (kind == StreamKind::kUploadParameters ? parameters_ : activations_).interruption = std::move(interruption);
  }

  bool gives_zeros = false;
  std::vector<std::pair<std::uint64_t, MemoryUse>> prepared;  // writer: the weight uploader

 private:
  class InterruptedStream : public InlineStream {
   public:
    void copy(std::byte* to, const std::byte* from, std::uint64_t bytes) override {
      const Interruption now = std::exchange(interruption, {});
      if (now.before_copy) now.before_copy();
      InlineStream::copy(to, from, bytes);
      if (now.after_copy) now.after_copy();
    }
    Interruption interruption;
  };
  CpuDevice cpu_;
  InterruptedStream parameters_;
  InterruptedStream activations_;
};

// Passes its input on as output. Throws `failure` in microbatch 1 if that is not empty.
class PassingExecutor : public StageExecutor {
 public:
  std::string failure;
  SequenceWord recomputed{};      // writer: the stage runner. Number of recomputes
  SequenceWord cleared{};         // writer: the stage runner. Number of tasks whose accumulators it cleared
  float recomputed_input = 0;     // the first value of the input of the last recompute
  float last_gradient = 0;        // the first value of the gradient of the last backward
  std::function<void()> warming;  // called by warm_up(), if set

  [[nodiscard]] bool warm_up(Device&) override {
    if (warming) warming();
    return warming != nullptr;
  }
  void clear(std::span<const UseMemory>) override { cleared.publish(cleared.observe() + 1); }
  void begin(const StageTask&) override {}
  void recompute(const StageTask& task, int, const MicrobatchInputs& inputs) override {
    recomputed_input =
        *reinterpret_cast<const float*>(inputs.tensors(BlockKind::kActivation, task.command->first_layer).at(0).data);
    recomputed.publish(recomputed.observe() + 1);
  }
  void run(const StageTask& task, int microbatch, const MicrobatchInputs& inputs, MicrobatchOutputs& outputs) override {
    if (microbatch == 1 && !failure.empty()) throw std::runtime_error(failure);
    const TensorView& input = inputs.tensors(BlockKind::kActivation, task.command->first_layer).at(0);
    auto values = std::make_shared<std::vector<float>>(input.desc.bytes() / sizeof(float));
    std::memcpy(values->data(), input.data, input.desc.bytes());
    outputs.losses = {.num = 1, .values = {(*values)[0]}};
    if (const InputBlock* gradient = inputs.find(BlockKind::kGradient, task.command->end_layer)) {
      last_gradient = *reinterpret_cast<const float*>(gradient->tensors.at(0).data);
    }
    if (task.command->phase != Phase::kForward) return;
    outputs.blocks.push_back({.kind = BlockKind::kActivation,
                              .index = task.command->end_layer,
                              .tensors = {float_tensor(*values)},
                              .owner = values});
  }
  void end(const StageTask& task, TaskTotals& totals) override {
    totals.square_sums.assign(task.uses.size(), 0);
    totals.layer_times.assign(static_cast<std::size_t>(task.command->end_layer - task.command->first_layer), {});
    for (const UseMemory& memory : task.uses) {
      if (memory.gradient != nullptr) std::memset(memory.gradient, 1, 8 * sizeof(float));
    }
  }
};

// A worker that serves in a thread until finish().
class ServedWorker {
 public:
  explicit ServedWorker(const TwoLayers& options = {}, TraceJournal* trace = nullptr, TaskRanges* ranges = nullptr)
      : store(two_layer_store(options)),
        table(make_table(*store)),
        worker_(*store, 0, device, executor, board.entry(1), trace, ranges) {
    place_input(*store, table, BlockKind::kActivation, 0, {1, 2, 3}, 8192);
    place_input(*store, table, BlockKind::kActivation, 1, {4, 5, 6}, 16384);
    place_input(*store, table, BlockKind::kArguments, 0, {7}, 24576);
    // serve() begins with a wait for the epoch, so a command may be sent before or after its start.
  }
  void start() {
    thread_ = std::thread([this] {
      try {
        worker_.serve();
      } catch (...) {
        error_ = std::current_exception();
      }
    });
  }
  // Ends the worker and rethrows what serve() threw.
  void finish() {
    store->epoch().publish_wanted(kEndEpoch);
    join();
  }
  // Waits until serve() has ended on its own.
  void join() {
    thread_.join();
    if (error_) std::rethrow_exception(error_);
  }
  void push(const Command& command) { ASSERT_TRUE(store->command_writer(0).try_push(command)); }

  std::unique_ptr<Store> store;
  RoundTable table;
  PassingExecutor executor;
  InterruptedDevice device;
  const FaultBoard board = FaultBoard::create(2);

 private:
  Worker worker_;
  std::thread thread_;
  std::exception_ptr error_;
};

inline Command forward_command() {
  Command command;
  command.table_bytes = RoundTable::bytes(kTwoLayers);
  command.end_layer = 1;
  command.num_microbatches = 2;
  command.save(1);
  return command;
}

inline Command backward_command() {
  Command command;
  command.table_bytes = RoundTable::bytes(kTwoLayers);
  command.phase = Phase::kBackward;
  command.end_layer = 1;
  command.num_microbatches = 2;
  return command;
}

inline Command fused_command() {
  Command command;
  command.table_bytes = RoundTable::bytes(kTwoLayers);
  command.phase = Phase::kFused;
  command.slot = SlotInEpoch(1);
  command.first_event = EventNumber(2);
  command.first_layer = 1;
  command.end_layer = 2;
  command.num_microbatches = 2;
  return command;
}

}  // namespace rp::test
