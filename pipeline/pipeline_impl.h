// pipeline/pipeline_impl.h
// Implements Pipeline: in every process the pipeline's description, and in the coordinator also its
// rounds and steps.
#pragma once

#include <functional>
#include <map>
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

// A tensor of a saved state, or the part of it that this node owns.
struct StateTensor {
  std::string name;  // in the state
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;                   // of the whole tensor
  at::Tensor value;                                  // a view of the part in the store, with one dimension
  std::uint64_t begin = 0;                           // of the part, counted from the first element of the tensor
  std::optional<GroupId> group{};                    // a buffer has none
  [[nodiscard]] std::uint64_t num_elements() const;  // of the whole tensor
  [[nodiscard]] bool is_whole() const { return static_cast<std::uint64_t>(value.numel()) == num_elements(); }
};

class Pipeline::Impl {
 public:
  Impl(Session::Impl& session, Model model, std::vector<Loss> losses, PipelineOptions options);
  ~Impl();

  [[nodiscard]] const Model& model() const { return model_; }
  [[nodiscard]] const std::vector<Loss>& losses() const { return losses_; }
  [[nodiscard]] const PipelineOptions& options() const { return options_; }
  [[nodiscard]] int number() const { return number_; }
  // Returns what the pipeline needs from the store. Builds each layer once.
  [[nodiscard]] PipelineRequest request() const;

  // Throws rp::Error if start() was not called.
  [[nodiscard]] Coordinator& coordinator() { return runtime_->coordinator(); }

  [[nodiscard]] const std::shared_ptr<Runtime>& runtime() const { return runtime_; }

  // Combines the options of a call with those of the pipeline.
  [[nodiscard]] RoundTraits traits_of(const Batch& inputs, const CallOptions& options) const;
  [[nodiscard]] int loss_number(const CallOptions& options) const;
  [[nodiscard]] std::shared_ptr<Round> accept(const RoundTraits& traits, const Batch& inputs, const Batch& arguments,
                                              const CallOptions& options);
  // Throw rp::Error (kUsage) if the run has several nodes, because outputs stay with the node that computes them, or
  // because no node has all masters. `call`: what needs them.
  void refuse_outputs_on_several_nodes(const char* call) const;
  void refuse_masters_on_several_nodes(const char* call) const;
  // Returns the outputs that the round keeps for the caller.
  [[nodiscard]] PackedTensors outputs_of(std::shared_ptr<Round> round);
  // Returns true if the model has corrections of routers that are trained.
  [[nodiscard]] bool has_corrections() const;
  [[nodiscard]] FunctionUpdate& function_update();
  [[nodiscard]] const std::vector<NamedParameter>& optimizer_parameters();
  // Returns the parameters with the working weights of `steps_ago` steps ago. REQUIRES: the store
  // still has these: `steps_ago` is 0, or 1 if steps are asynchronous.
  [[nodiscard]] std::vector<ParameterState> parameters(std::uint64_t steps_ago = 0);
  [[nodiscard]] std::map<std::string, at::Tensor> masters(const std::function<bool(const ParameterState&)>& wants);
  // Returns copies. REQUIRES: nothing in flight.
  [[nodiscard]] std::vector<BufferState> buffers(Coordinator::BuffersOf which);
  // Makes the next round begin with these buffers. REQUIRES: they are all that buffers() returns,
  // in the same order; nothing in flight.
  void set_buffers(const std::vector<BufferState>& buffers);
  [[nodiscard]] bool has_buffers() const { return !runtime_->buffer_names(number_).empty(); }
  // Returns the tensors of a saved state after the last accepted step, and what this node owns of
  // them: masters, moments and `buffers`. If steps are asynchronous, the state also contains the
  // working weights of the step before, because the next round computes with them.
  [[nodiscard]] std::vector<StateTensor> state_tensors(const std::vector<BufferState>& buffers);
  [[nodiscard]] Session::Impl& session() { return session_; }
  // These handle the save in progress, if there is one: set_save() registers it, wait_for_save()
  // blocks until it has written, give_up_save() makes it stop writing, and stop_save() also waits
  // until it has stopped.
  void set_save(const std::shared_ptr<StateSave::Impl>& save) { save_ = save; }
  void wait_for_save();
  void give_up_save();
  void stop_save();
  [[nodiscard]] MemoryPlan memory_plan() const;

 private:
  // `why`: the reason, and what to do.
  void refuse_on_several_nodes(const char* call, const char* why) const;
  [[nodiscard]] const PipelineRecord& record() const;
  // Returns the records of parameters(), in the same order.
  [[nodiscard]] std::vector<const TensorRecord*> parameter_records() const;
  [[nodiscard]] std::optional<Plan> plan_of(const CallOptions& options) const;
  void note_few_microbatches(const RoundTraits& traits);

  Session::Impl& session_;
  const std::shared_ptr<Runtime> runtime_;
  const Model model_;
  const std::vector<Loss> losses_;
  const PipelineOptions options_;
  int number_ = 0;
  std::unique_ptr<FunctionUpdate> function_update_;  // made when it is first needed
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
