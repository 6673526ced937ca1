// pipeline/pipeline_impl.h
// What a Pipeline is made of: its description, in every process; its rounds and steps, in the coordinator.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pipeline/function_update.h"
#include "pipeline/packed_tensors.h"
#include "pipeline/runtime.h"
#include "pipeline/session_impl.h"
#include "roundpipe/pipeline.h"

namespace rp {

// A tensor of a saved state: its name there, where it lies in the store, and its weight group there, which a buffer has
// not.
struct StateTensor {
  std::string name;
  at::Tensor value;
  std::optional<std::uint32_t> group{};
};

class Pipeline::Impl {
 public:
  Impl(Session::Impl& session, Model model, std::vector<Loss> losses, PipelineOptions options);
  ~Impl();

  [[nodiscard]] const Model& model() const { return model_; }
  [[nodiscard]] const std::vector<Loss>& losses() const { return losses_; }
  [[nodiscard]] const PipelineOptions& options() const { return options_; }
  [[nodiscard]] int number() const { return number_; }
  // What it needs of the store. Builds each layer once.
  [[nodiscard]] PipelineRequest request() const;

  // Throws rp::Error if start() was not called.
  [[nodiscard]] Coordinator& coordinator() { return runtime_->coordinator(); }

  RoundResult forward_backward(const Batch& inputs, const Batch& arguments, const CallOptions& options);
  [[nodiscard]] Tensors forward(const Batch& inputs, const CallOptions& options);
  [[nodiscard]] PackedTensors forward_packed(const Batch& inputs, const CallOptions& options);
  [[nodiscard]] RoundResult evaluate(const Batch& inputs, const Batch& arguments, const CallOptions& options);
  StepResult step(const Update& update, const StepOptions& options);
  [[nodiscard]] const std::vector<NamedParameter>& optimizer_parameters();
  // With the working weights of `steps_ago` steps ago, as far as the store keeps them.
  [[nodiscard]] std::vector<ParameterState> parameters(std::uint64_t steps_ago = 0);
  // Copies. REQUIRES: nothing in flight.
  [[nodiscard]] std::vector<BufferState> buffers(Coordinator::BuffersOf which);
  // The round that comes next begins with them: all buffers, as buffers() names them. REQUIRES: nothing in flight.
  void set_buffers(const std::vector<BufferState>& buffers);
  [[nodiscard]] bool has_buffers() const { return !runtime_->buffer_names(number_).empty(); }
  // What a saved state holds, of the last accepted step: masters and moments; asynchronous also the working weights of
  // one step before, which the next round computes with; and `buffers`.
  [[nodiscard]] std::vector<StateTensor> state_tensors(const std::vector<BufferState>& buffers);
  // The save that is under way, if there is one: that it is, waits until it has written, has it end soon, waits for
  // that.
  void set_save(const std::shared_ptr<StateSave::Impl>& save) { save_ = save; }
  void wait_for_save();
  void give_up_save();
  void stop_save();
  [[nodiscard]] MemoryPlan memory_plan() const;
  [[nodiscard]] std::string plan_text(PlanKind kind);
  [[nodiscard]] StepTimes step_times();

 private:
  [[nodiscard]] const PipelineRecord& record() const;
  // Those of parameters(), in its order.
  [[nodiscard]] std::vector<const TensorRecord*> parameter_records() const;
  // What a call's options and the pipeline's say together.
  [[nodiscard]] RoundTraits traits_of(const Batch& inputs, const CallOptions& options) const;
  [[nodiscard]] std::optional<Plan> plan_of(const CallOptions& options) const;
  [[nodiscard]] int loss_number(const CallOptions& options) const;
  [[nodiscard]] std::shared_ptr<Round> accept(const RoundTraits& traits, const Batch& inputs, const Batch& arguments,
                                              const CallOptions& options);
  // What the round keeps of its outputs for the caller.
  [[nodiscard]] PackedTensors outputs_of(std::shared_ptr<Round> round);
  [[nodiscard]] FunctionUpdate& function_update();
  void note_few_microbatches(const RoundTraits& traits);

  Session::Impl& session_;
  const std::shared_ptr<Runtime> runtime_;
  const Model model_;
  const std::vector<Loss> losses_;
  const PipelineOptions options_;
  int number_ = 0;
  std::unique_ptr<FunctionUpdate> function_update_;  // once it is needed
  std::weak_ptr<StateSave::Impl> save_;
};

struct RoundResult::State {
  Pipeline::Impl* pipeline = nullptr;
  std::shared_ptr<Round> round;
  std::optional<PackedTensors> outputs;
  Merge merge;
};

struct StepResult::State {
  Pipeline::Impl* pipeline = nullptr;
  std::shared_ptr<StepOutcome> outcome;
};

}  // namespace rp
