// roundpipe/pipeline.h
// A model in training: rounds of microbatches through the pipeline, and steps of the optimizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "roundpipe/batch.h"
#include "roundpipe/loss.h"
#include "roundpipe/memory_plan.h"
#include "roundpipe/model.h"
#include "roundpipe/optimizer.h"
#include "roundpipe/plan.h"

namespace rp {

class Session;

// Options of a pipeline.
struct PipelineOptions {
  // The number M of microbatches of a round. It changes the bits of a run; the number of workers does not. A call with
  // packed inputs that sets none takes theirs.
  int num_microbatches = 8;
  // How much a backward recomputes at once. It changes memory and time, no result. Unset: by layer where workers
  // compute on processors, by stage on GPUs.
  std::optional<RecomputeGrain> recompute_grain{};
  // Layers draw the same random numbers in the recompute as in the forward, as dropout must. Without it the generator
  // is not set, which is for models whose layers draw none.
  bool preserve_random_state = true;
  // How a call's tensors become those of its microbatches, and the outputs one list: split_inputs, split_arguments
  // (those of the loss), merge_outputs.
  Split split_inputs{};
  Split split_arguments{};
  Merge merge_outputs{};
  // The stages, as in PlanKind; empty: as rp-launch's --plan says, which is automatic by default. A plan with a fused
  // stage does for every kind of call.
  std::string plan{};
  // Bounds of automatic plans. Pipelines of a session with automatic plans are cut together, so that all their stages
  // take about as long.
  PlanLimits plan_limits{};
  // The most rounds whose gradients are added before a step; more than one needs fp32 sums in the store.
  int rounds_per_step = 1;
  // Steps will be asynchronous: the store keeps a second working copy of the weights.
  bool asynchronous = false;
  // The fp32 values that the update rules keep per parameter: 2 for AdamW and Adam, 1 for SGD with momentum, 0 for SGD
  // without, and for a function with an optimizer that has its own.
  int num_moments = 2;
  // The dtype of the master weights that a function changes (see Update): at::kFloat, at::kDouble, or the model's own,
  // which needs no masters beside the working weights. The library's rules need at::kFloat.
  at::ScalarType optimizer_dtype = at::kFloat;
  // For gradients in fp16.
  std::optional<LossScaling> loss_scaling{};
  // The key of every random number of the run, with (round, layer, microbatch).
  std::uint64_t seed = 0;
  // Names it in messages, where a session has several.
  std::string name{};
};

// Options of one call.
struct CallOptions {
  // num_microbatches, recompute_grain, preserve_random_state, split_inputs, split_arguments, merge_outputs, plan: as in
  // PipelineOptions, which holds for what is not set.
  std::optional<int> num_microbatches{};
  std::optional<RecomputeGrain> recompute_grain{};
  std::optional<bool> preserve_random_state{};
  std::optional<Split> split_inputs{};
  std::optional<Split> split_arguments{};
  std::optional<Merge> merge_outputs{};
  std::optional<std::string> plan{};
  // Of forward_backward() and evaluate(): the name of a declared loss; the first one if not set.
  std::optional<std::string> loss{};
  // Of forward_backward(): outputs are kept, for RoundResult::outputs().
  bool return_outputs = false;
  // Of forward(): whether a backward may follow; if not set, whether autograd is on in this thread. True needs it to be
  // on.
  std::optional<bool> requires_grad{};
};

// A round that was accepted. Copyable; all copies mean the same round. Used while its Pipeline lives.
class RoundResult {
 public:
  // The sum of the microbatches' losses, of all numbers that the loss function gives. Waits until the round's loss is
  // final. Throws WorkerError if the round failed, Interrupted never.
  [[nodiscard]] double loss() const;

  // Each number that the loss function gives, as a sum over the microbatches. Waits and throws as loss().
  [[nodiscard]] std::vector<double> losses() const;

  // The outputs of the last layer, merged. Waits for them. Throws rp::Error (kUsage) unless the
  // call asked for them (CallOptions::return_outputs).
  [[nodiscard]] Tensors outputs() const;
  // The same, microbatch by microbatch and without waiting.
  [[nodiscard]] PackedTensors packed_outputs() const;

  struct State;
  // For the library itself.
  explicit RoundResult(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

// A step that was accepted. Copyable. Used while its Pipeline lives. What waits throws what failed the run, if it did.
class StepResult {
 public:
  // The global L2 norm of the step's gradient before clipping. Waits until all gradients of the step are final.
  [[nodiscard]] double grad_norm() const;

  // True if the step changed no weight, because a gradient is not finite (see StepOptions, LossScaling). Waits as
  // grad_norm() does.
  [[nodiscard]] bool skipped() const;

  // The layers with a gradient that is not finite, whether the step was skipped or not. Waits as grad_norm() does.
  [[nodiscard]] std::vector<int> nonfinite_layers() const;

  // What the losses of the step's rounds were multiplied by; 1 without loss scaling. Waits as grad_norm() does.
  [[nodiscard]] double loss_scale() const;

  struct State;
  // For the library itself.
  explicit StepResult(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

// One parameter as the coordinator holds it. The tensors are views of the host store and live as long as the session;
// read or write them only between synchronize() and the next call that starts work. Who writes weights writes `master`
// and `working`; in an asynchronous run after its first step the next round still computes with the version before,
// which is not visible here.
struct ParameterState {
  std::string name;       // "<layer index>.<name in the layer>" of its first use
  int layer = 0;          // of its first use
  std::string parameter;  // its name in that layer
  // Of PipelineOptions::optimizer_dtype; if that is the model's, the same memory as `working`. Undefined if frozen.
  at::Tensor master;
  at::Tensor moment1;  // fp32; undefined if frozen, or if there are fewer moments
  at::Tensor moment2;  // likewise
  at::Tensor working;  // the model's dtype: what workers compute with
};

// A buffer after the last accepted round, its `value` as a copy.
struct BufferState {
  std::string name;    // "<layer index>.<name in the layer>"
  int layer = 0;       // counted from 0
  std::string buffer;  // its name in the layer
  at::Tensor value;
};

// A state that is being written while training goes on: see Pipeline::begin_save_state(). Movable. Destroyed without
// finish(), as where an exception passes, it leaves nothing behind. Used while its Pipeline lives, in the Pipeline's
// thread.
class StateSave {
 public:
  // Takes over what `other` writes; `other` may only be destroyed or assigned to.
  StateSave(StateSave&& other) noexcept;
  // Likewise; what this one was writing and has not finished is removed first.
  StateSave& operator=(StateSave&& other) noexcept;
  ~StateSave();

  // Whether everything is written, or has failed: finish() will not wait.
  [[nodiscard]] bool is_written() const;

  // What writing took, from begin_save_state() on. REQUIRES: is_written().
  [[nodiscard]] double seconds() const;

  // Waits until everything is written and gives the directory its name. Once. Throws as Pipeline::save_state().
  void finish();

  class Impl;
  // For the library itself.
  explicit StateSave(std::shared_ptr<Impl> impl);

 private:
  std::shared_ptr<Impl> impl_;
};

// What a saved state says of itself.
struct SavedState {
  std::int64_t step = 0;  // steps done
  std::string user_data;  // the program's own text
};

// Trains one model. Made before Session::start() in every process; everything else is called in the coordinator after
// it. Calls come from one thread.
class Pipeline {
 public:
  // Describes; allocates nothing. Throws rp::Error for impossible options.
  Pipeline(Session& session, Model model, Loss loss, PipelineOptions options = {});
  // With several losses, or none.
  Pipeline(Session& session, Model model, std::vector<Loss> losses, PipelineOptions options = {});
  // Ends the session's run, for all of its pipelines: they live until the program is done with every one. The Session
  // must outlive them.
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Runs forward, loss and backward of one round: splits inputs and the loss's arguments into the microbatches (see
  // Split) and adds the gradients. Returns when the round is accepted: the inputs are copied, at most two rounds are in
  // flight. Throws WorkerError if an earlier round failed, Interrupted once a stop was requested; rp::Error: kUsage for
  // inputs that cannot be split, an unknown loss, or more rounds than rounds_per_step without a step(), kNoResource if
  // the inputs do not fit into memory.
  RoundResult forward_backward(const Batch& inputs, const Batch& arguments, const CallOptions& options = {});

  // Runs the layers forward and returns the outputs of the last one, merged; waits for them.
  // Without gradients (no_grad, or CallOptions::requires_grad) it is an evaluation: layers run in their evaluation
  // mode, no buffer and no random number of the training changes. With gradients it is the first half of a training
  // round: the outputs are part of autograd's graph, and backward() from them runs the pipeline's backward, adds to its
  // gradients, and gives the gradients of inputs that require some. Outputs that are dropped without a backward() free
  // what was kept for it. A backward() throws rp::Error (kUsage) if it is the second one, or if a step() came in
  // between. Throws as forward_backward().
  [[nodiscard]] Tensors forward(const Batch& inputs, const CallOptions& options = {});

  // The same as an evaluation, without waiting: the outputs stay with the workers.
  [[nodiscard]] PackedTensors forward_packed(const Batch& inputs, const CallOptions& options = {});

  // Runs the layers and a loss forward, as an evaluation: layers run in their evaluation mode, nothing of the training
  // changes, and the outputs are not kept. Returns when the round is accepted; RoundResult::losses() has the numbers.
  // In an asynchronous run it computes with the newest weights only after a synchronize(). Throws as
  // forward_backward(); rp::Error (kUsage) with CallOptions::return_outputs.
  [[nodiscard]] RoundResult evaluate(const Batch& inputs, const Batch& arguments, const CallOptions& options = {});

  // Updates the weights with the gradients since the last step. Returns when the step is accepted; layers that are
  // updated may be used by the next round while others still wait. (With a function, synchronous: when it is applied.)
  // Throws rp::Error (kUsage) if there was no round with gradients since the last one, for coefficients that a rule
  // cannot have, for a rule that needs more moments or other masters than there are, for a parameter in no group, and
  // if StepOptions::asynchronous is not the pipeline's; WorkerError if a round failed.
  StepResult step(const Update& update, const StepOptions& options = {});
  StepResult step(const AdamW& rule, const StepOptions& options = {}) { return step(Update(rule), options); }

  // Waits until every accepted round and step is done and the working weights are those of the last step. Evaluations
  // up to the next step compute with them, also in an asynchronous run.
  void synchronize();

  // The number of steps applied or accepted so far, those of a loaded state included.
  [[nodiscard]] std::int64_t num_steps() const;

  // The parameters in layer order, tied ones once.
  [[nodiscard]] std::vector<ParameterState> parameters();
  // One of them by its name. Throws rp::Error (kUsage) if there is none.
  [[nodiscard]] ParameterState parameter(const std::string& name);

  // The trained parameters as leaves over the master weights, for step() with a function; the same tensors at each
  // call. To be read or written as those of parameters(), and by the function.
  [[nodiscard]] std::vector<at::Tensor> optimizer_parameters();
  // The same with names, as in parameters().
  [[nodiscard]] std::vector<NamedParameter> named_optimizer_parameters();

  // The buffers of all layers (see Layer::buffers()), in layer order. Waits as synchronize() does, with its effect on
  // evaluations.
  [[nodiscard]] std::vector<BufferState> buffers();

  // Writes masters, moments, buffers, step number and `user_data` (any text: the program's own state, as JSON) to a new
  // directory: beside it first, then renamed. Waits as synchronize() does, with its effect on evaluations. Rounds since
  // the last step(), frozen parameters and the seed are not part of it. Throws rp::Error (kOutputFailed), or
  // Interrupted by a second INT, and leaves nothing behind then.
  void save_state(const std::filesystem::path& directory, const std::string& user_data);

  // The same of the last accepted step in a thread of its own, while the next rounds and steps go on: what an update is
  // about to change before it was written is copied first, in half of the memory that is free; beyond that, updates
  // wait. The directory has its name only after StateSave::finish(), so that a program can first see whether the step
  // went well. Waits until an earlier save is written, and where the model has buffers until all rounds are done. Until
  // it is written nobody but steps may change weights: parameters(), parameter() and load_state() wait for it; tensors
  // that were given out before are not to be written. A process that is killed, or ends in an exception that nobody
  // catches, leaves a hidden directory that the next save removes.
  [[nodiscard]] StateSave begin_save_state(const std::filesystem::path& directory, const std::string& user_data);

  // Reads what save_state() wrote, into the store; returns the user's text. Waits as save_state(). Throws
  // rp::Error: kUsage after a round without its step(); kBadInput if the state is of another model or damaged. A
  // damaged file is found while it is read: then the weights are of no use until another state is loaded.
  std::string load_state(const std::filesystem::path& directory);

  // What save_state() was given, without loading anything: a program can see whether it may go on from a state before
  // Session::start() allocates. Throws rp::Error (kBadInput).
  [[nodiscard]] static SavedState saved_state(const std::filesystem::path& directory);
  // Reads every byte of a state and compares its checksums. Throws rp::Error (kBadInput) naming the file that is
  // missing, changed or damaged.
  static void verify_state(const std::filesystem::path& directory);

  // Host memory of this pipeline alone. Empty before Session::start().
  [[nodiscard]] MemoryPlan memory_plan() const;

  // After Session::start(): the stages that calls of this kind use now, as text (see PlanKind). Automatic plans follow
  // the layers' times: after 2 rounds, and once more after 10. Throws rp::Error (kUsage) if a plan by hand has no
  // stages for the kind.
  [[nodiscard]] std::string plan_text(PlanKind kind = PlanKind::kFused) const;

  // What the layers took, for one microbatch, on whichever worker ran them: smoothed over the rounds, the first one
  // left out. The same numbers that automatic plans are made of. Of rounds that are done.
  [[nodiscard]] std::vector<LayerTiming> layer_times() const;

  // What steps took, beside what a simulated run says of their plan. Waits until all accepted work is done. Simulates,
  // so it is for the end of a run.
  [[nodiscard]] StepTimes step_times() const;

  class Impl;
  // For the library itself.
  [[nodiscard]] Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace rp
