// roundpipe/pipeline.h
// Trains a model: runs rounds of microbatches and steps of the optimizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
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
  // The number M of microbatches of a round. It changes the bits of the results; the number of
  // workers does not. A call with packed inputs that does not set a number uses that of the inputs.
  int num_microbatches = 8;
  // How much a backward stage recomputes at once. It changes memory and time, but no result. Unset:
  // by layer if the workers compute on processors, by stage on GPUs.
  std::optional<RecomputeGrain> recompute_grain{};
  // Makes layers draw the same random numbers in the recompute as in the first forward pass, as
  // dropout requires. If false, the generator is not seeded; this is for models whose layers draw
  // no random numbers.
  bool preserve_random_state = true;
  // How the tensors of a call are cut into microbatches, and how the outputs are joined to one
  // list: split_inputs, split_arguments (for the arguments of the loss), merge_outputs.
  Split split_inputs{};
  Split split_arguments{};
  Merge merge_outputs{};
  // The stages, in the format of PlanKind. Empty: determined by rp-launch's --plan, which is
  // automatic by default. A plan with a fused stage serves every kind of call.
  std::string plan{};
  // Bounds of automatic plans. Pipelines of one session that have automatic plans are cut together,
  // so that all their stages take about the same time.
  PlanLimits plan_limits{};
  // The maximum number of rounds whose gradients are added before a step. More than one needs an
  // fp32 sum of the gradients in the store.
  int rounds_per_step = 1;
  // Steps will be asynchronous: the store has a second working copy of the weights.
  bool asynchronous = false;
  // The number of fp32 values that the update rules keep for each parameter: 2 for AdamW and Adam,
  // 1 for SGD with momentum, 0 for SGD without momentum, and 0 for a function whose optimizer has
  // its own state.
  int num_moments = 2;
  // The dtype of the master weights that a function changes (see Update): at::kFloat, at::kDouble,
  // or the model's own dtype, which needs no masters in addition to the working weights. The
  // library's rules need at::kFloat.
  at::ScalarType optimizer_dtype = at::kFloat;
  // Loss scaling, for gradients in fp16.
  std::optional<LossScaling> loss_scaling{};
  // The seed of all random numbers of the run, which are functions of (seed, round, layer,
  // microbatch).
  std::uint64_t seed = 0;
  // The pipeline's name in messages, if a session has several pipelines.
  std::string name{};
};

// Options of one call.
struct CallOptions {
  // Override the fields of the same names in PipelineOptions if they are set: num_microbatches,
  // recompute_grain, preserve_random_state, split_inputs, split_arguments, merge_outputs, plan.
  std::optional<int> num_microbatches{};
  std::optional<RecomputeGrain> recompute_grain{};
  std::optional<bool> preserve_random_state{};
  std::optional<Split> split_inputs{};
  std::optional<Split> split_arguments{};
  std::optional<Merge> merge_outputs{};
  std::optional<std::string> plan{};
  // For forward_backward() and evaluate(): the name of one of the declared losses. Unset: the first
  // one.
  std::optional<std::string> loss{};
  // For forward_backward(): keep the outputs, for RoundResult::outputs().
  bool return_outputs = false;
  // For forward(): whether a backward pass may follow. Unset: true if autograd is enabled in the
  // calling thread. True requires autograd to be enabled.
  std::optional<bool> requires_grad{};
};

// A round that was accepted. Copyable; all copies refer to the same round. Must be used while its
// Pipeline exists.
class RoundResult {
 public:
  // Returns the sum of the microbatches' losses, over all numbers that the loss function returns.
  // Blocks until the losses of the round are final. Throws WorkerError if the round failed; never
  // throws Interrupted.
  [[nodiscard]] double loss() const;

  // Returns each number of the loss function, as a sum over the microbatches. Blocks and throws as
  // loss() does.
  [[nodiscard]] std::vector<double> losses() const;

  // Returns the outputs of the last layer, merged. Blocks until they are final. Throws rp::Error
  // (kUsage) unless the call requested them (CallOptions::return_outputs).
  [[nodiscard]] Tensors outputs() const;
  // Returns the outputs as one list for each microbatch, without waiting. Throws rp::Error (kUsage)
  // as outputs() does.
  [[nodiscard]] PackedTensors packed_outputs() const;

  struct State;
  // For the library itself.
  explicit RoundResult(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

// A step that was accepted. Copyable. Must be used while its Pipeline exists. If the run has
// failed, functions that wait throw the error of the run.
class StepResult {
 public:
  // Returns the global L2 norm of the step's gradient before clipping. Blocks until all gradients
  // of the step are final and, if the run can be restarted, the step is recorded: it is not lost.
  [[nodiscard]] double grad_norm() const;

  // Returns true if the step changed no weight because a gradient is not finite (see StepOptions
  // and LossScaling). Blocks as grad_norm() does.
  [[nodiscard]] bool skipped() const;

  // Returns the layers that have a gradient that is not finite, even if the step was not skipped.
  // Blocks as grad_norm() does.
  [[nodiscard]] std::vector<int> nonfinite_layers() const;

  // Returns the factor by which the losses of the step's rounds were multiplied; 1 without loss
  // scaling. Blocks as grad_norm() does.
  [[nodiscard]] double loss_scale() const;

  struct State;
  // For the library itself.
  explicit StepResult(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

// A parameter in the coordinator. The tensors are views of the host store, and are valid as long as
// the session exists. Read or write them only between synchronize() and the next call that starts
// work. To change weights, write both `master` and `working`. In an asynchronous run after its
// first step, the next round still computes with the previous version, which is not visible here. If
// the run has several nodes, each has only a part of `master` and the moments, and they are undefined
// (except a master that is the same memory as `working`).
struct ParameterState {
  std::string name;        // "<layer index>.<name in the layer>" of its first use
  int layer = 0;           // of its first use
  std::string parameter;   // its name in that layer
  bool is_trained = true;  // false if it is frozen
  // See NamedParameter. `master` is then the same memory as `working`, and there are no moments.
  bool is_correction = false;
  // Has the dtype PipelineOptions::optimizer_dtype. If that is the model's dtype, it is the same
  // memory as `working`. Undefined if the parameter is frozen.
  at::Tensor master;
  at::Tensor moment1;  // fp32; undefined if the parameter is frozen, or if num_moments is 0
  at::Tensor moment2;  // fp32; undefined if the parameter is frozen, or if num_moments is below 2
  at::Tensor working;  // in the model's dtype; the workers compute with it
};

// A buffer after the last accepted round. `value` is a copy.
struct BufferState {
  std::string name;    // "<layer index>.<name in the layer>"
  int layer = 0;       // counted from 0
  std::string buffer;  // its name in the layer
  at::Tensor value;
};

// A state that is being written while training continues; see Pipeline::begin_save_state().
// Movable. If it is destroyed without finish(), for example by an exception, it removes what was
// written. Must be used while its Pipeline exists, in the Pipeline's thread.
class StateSave {
 public:
  // Takes over the save of `other`, which afterwards may only be destroyed or assigned to.
  StateSave(StateSave&& other) noexcept;
  // Takes over the save of `other`. An unfinished save of this object is removed first.
  StateSave& operator=(StateSave&& other) noexcept;
  ~StateSave();

  // Returns true if everything is written or writing has failed. Then finish() does not block.
  [[nodiscard]] bool is_written() const;

  // Returns the time from begin_save_state() until everything was written. REQUIRES: is_written().
  [[nodiscard]] double seconds() const;

  // Blocks until everything is written, then gives the directory its name. Must be called at most
  // once. Throws as Pipeline::save_state() does.
  void finish();

  class Impl;
  // For the library itself.
  explicit StateSave(std::shared_ptr<Impl> impl);

 private:
  std::shared_ptr<Impl> impl_;
};

// The contents of a saved state that can be read without loading it.
struct SavedState {
  std::int64_t step = 0;  // number of completed steps
  std::string user_data;  // the program's own text
};

// Trains one model. Must be created in every process before Session::start(). All other functions
// are called in the coordinator after Session::start(), from one thread, except memory_plan() and
// the static functions, which may also be called before.
class Pipeline {
 public:
  // Describes the pipeline; allocates nothing. Throws rp::Error for impossible options.
  Pipeline(Session& session, Model model, Loss loss, PipelineOptions options = {});
  // The same with several losses, or none.
  Pipeline(Session& session, Model model, std::vector<Loss> losses, PipelineOptions options = {});
  // Ends the run of the session for all of its pipelines. So keep every pipeline until the program
  // has finished with all of them. The Session must outlive its pipelines.
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Runs the forward pass, the loss and the backward pass of one round: cuts the inputs and the
  // arguments of the loss into microbatches (see Split), and adds the gradients to those of the
  // earlier rounds since the last step. Returns when the round is accepted: the inputs have been
  // copied, and at most two rounds are in flight. Throws WorkerError if an earlier round failed;
  // Interrupted if a stop was requested; rp::Error: kUsage for inputs that cannot be cut, for an
  // unknown loss, and for more than rounds_per_step rounds without a step(); kNoResource if the
  // inputs do not fit into memory.
  RoundResult forward_backward(const Batch& inputs, const Batch& arguments, const CallOptions& options = {});

  // Runs the layers forward and returns the outputs of the last layer, merged. Blocks until they
  // are final.
  //
  // Without gradients (no_grad, or CallOptions::requires_grad) it is an evaluation: layers run in
  // evaluation mode, and no buffer and no random number of the training changes. With gradients it
  // is the first half of a training round: the outputs are part of autograd's graph. backward()
  // from them runs the backward pass of the pipeline, adds to its gradients, and returns the
  // gradients of the inputs that require one. If the outputs are destroyed without a backward(),
  // the memory that was kept for it is freed. backward() throws rp::Error (kUsage) if it is called
  // a second time, or if a step() or load_state() came in between.
  //
  // Throws as forward_backward() does.
  [[nodiscard]] Tensors forward(const Batch& inputs, const CallOptions& options = {});

  // Runs an evaluation as forward() does, but does not wait: the outputs remain with the workers.
  [[nodiscard]] PackedTensors forward_packed(const Batch& inputs, const CallOptions& options = {});

  // Runs the layers and a loss forward, as an evaluation: layers run in evaluation mode, nothing of
  // the training changes, and the outputs are not kept. Returns when the round is accepted;
  // RoundResult::losses() returns the numbers. An asynchronous run evaluates with the newest
  // weights only after synchronize(). Throws as forward_backward() does, and also rp::Error
  // (kUsage) if CallOptions::return_outputs is set.
  [[nodiscard]] RoundResult evaluate(const Batch& inputs, const Batch& arguments, const CallOptions& options = {});

  // Updates the weights with the gradients since the last step. Returns when the step is accepted.
  // The next round may use layers that are already updated while others still wait for their
  // update. (A synchronous step with a function returns when it has been applied.) Throws rp::Error
  // (kUsage) if there was no round with gradients since the last step, for coefficients that a rule
  // cannot have, for a rule that needs more moments or other masters than the store has, for a
  // parameter that is in no group, if StepOptions::asynchronous differs from the pipeline's, and for a
  // rate of corrections that the model does not have; WorkerError if a round failed.
  StepResult step(const Update& update, const StepOptions& options = {});
  StepResult step(const AdamW& rule, const StepOptions& options = {}) { return step(Update(rule), options); }

  // Blocks until all accepted rounds and steps have completed, and the working weights are those of
  // the last step. Evaluations until the next step compute with these weights, in an asynchronous
  // run, too.
  void synchronize();

  // Returns the number of steps that were accepted so far, including those of a loaded state.
  [[nodiscard]] std::int64_t num_steps() const;

  // Returns the parameters in layer order, tied ones once.
  [[nodiscard]] std::vector<ParameterState> parameters();
  // Returns a parameter by its name. Throws rp::Error (kUsage) if there is no such parameter.
  [[nodiscard]] ParameterState parameter(const std::string& name);

  // Returns the masters of the trained parameters that `wants` chooses, by name, fp32 or whatever
  // dtype they have. On several nodes, collects their parts on the first node; the others return
  // nothing. All nodes must call it. Waits as synchronize() does.
  [[nodiscard]] std::map<std::string, at::Tensor> masters(const std::function<bool(const ParameterState&)>& wants);

  // Returns the trained parameters, except corrections, as leaves over the master weights, for a step()
  // with a function.
  // Every call returns the same tensors. The function may read and write them; the program may do
  // so when it may access the tensors of parameters().
  [[nodiscard]] std::vector<at::Tensor> optimizer_parameters();
  // Returns the same parameters with their names, which are those of parameters().
  [[nodiscard]] std::vector<NamedParameter> named_optimizer_parameters();

  // Returns the buffers of all layers (see Layer::buffers()), in layer order. Waits as
  // synchronize() does, with the same effect on evaluations.
  [[nodiscard]] std::vector<BufferState> buffers();

  // Writes masters, moments, buffers, the step number and `user_data` (any text: the program's own
  // state, for example as JSON) to a new directory. They are written to a temporary directory next
  // to it, which is renamed at the end. Waits as synchronize() does, with the same effect on
  // evaluations. Not saved are gradients of rounds since the last step(), frozen parameters, and
  // the seed. Throws rp::Error (kOutputFailed), or Interrupted after a second INT; then it leaves
  // nothing behind.
  void save_state(const std::filesystem::path& directory, const std::string& user_data);

  // Saves the state after the last accepted step, as save_state() does, in a thread of its own,
  // while the next rounds and steps run. Data that an update is about to change before it was
  // written is copied first. The copies occupy at most half of the free memory; beyond that,
  // updates wait. The directory gets its name only in StateSave::finish(), so that a program can
  // first check whether the step was successful.
  //
  // Blocks until an earlier save is written and, if the model has buffers, until all rounds have
  // completed. Until the state is written, only steps may change weights: parameters(), parameter()
  // and load_state() wait for it, and tensors that were returned earlier must not be written to. A
  // process that is killed, or that ends with an exception that is not caught, leaves a hidden
  // directory behind, which the next save removes.
  [[nodiscard]] StateSave begin_save_state(const std::filesystem::path& directory, const std::string& user_data);

  // Reads what save_state() wrote into the store, and returns the user's text. Waits as
  // save_state() does. Throws rp::Error: kUsage after a round without its step(); kBadInput if the
  // state belongs to another model or is damaged. Damage may be found only while the file is read.
  // Then the weights are unusable until another state is loaded.
  std::string load_state(const std::filesystem::path& directory);

  // Returns the step number and the text of a saved state without loading it. So a program can
  // decide before Session::start() allocates memory whether it can continue from this state. Throws
  // rp::Error (kBadInput).
  [[nodiscard]] static SavedState saved_state(const std::filesystem::path& directory);
  // Reads every byte of a saved state and compares its checksums. Throws rp::Error (kBadInput),
  // naming the file that is missing, changed or damaged.
  static void verify_state(const std::filesystem::path& directory);

  // Returns the host memory of this pipeline alone. Empty before Session::start().
  [[nodiscard]] MemoryPlan memory_plan() const;

  // Returns, as text (see PlanKind), the stages that calls of this kind use now. REQUIRES: after
  // Session::start(). Automatic plans are adapted to the layers' times after 2 rounds, and again
  // after 10. Throws rp::Error (kUsage) if a plan by hand has no stages for this kind.
  [[nodiscard]] std::string plan_text(PlanKind kind = PlanKind::kFused) const;

  // Returns the times of the layers for one microbatch in completed rounds, on any worker: smoothed
  // over the rounds, without the first one. Automatic plans are computed from the same numbers.
  [[nodiscard]] std::vector<LayerTiming> layer_times() const;

  // Returns how long steps took, and how long a simulated run predicts for their plan. Blocks until
  // all accepted work has completed. It runs a simulation, so call it at the end of a run.
  [[nodiscard]] StepTimes step_times() const;

  class Impl;
  // For the library itself.
  [[nodiscard]] Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace rp
