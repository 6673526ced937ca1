// roundpipe/session.h
// The role of a process in a run: coordinator, worker, or both in one process if there is no
// rp-launch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "roundpipe/memory_plan.h"

namespace rp {

// Settings of the runtime. A field that is set takes precedence over the option of rp-launch, which
// takes precedence over the environment variable RP_..., which takes precedence over the default.
// An empty text counts as not set, as an empty variable does.
struct SessionOptions {
  std::optional<std::string> device;  // RP_DEVICE: "cpu" (the default), "cuda" or "sim:NAME"
  std::optional<std::string> store;   // RP_STORE: "shm" or "memfd"; default: shm if it is large enough
  // RP_PARAMS_ON: a directory. Weights, gradients and optimizer state become files in it, so that a
  // model may be larger than memory. Default: they are in memory.
  std::optional<std::string> params_on;
  std::optional<std::string> plan;  // RP_PLAN: "auto" (the default) or a file
  // RP_PREFETCH, default on: uploads the weights of the next stage while the current one computes.
  std::optional<bool> prefetch;
  // RP_WARM_UP: whether each worker runs each kind of layer once before its first task
  // (Model::set_example()). Default: on GPUs only.
  std::optional<bool> warm_up;
  // RP_SIGNALS: the mechanism by which the GPUs of different workers wait for each other: "memops"
  // (the default) or "events".
  std::optional<std::string> signals;
  // RP_GPU_MEMORY: the memory of its GPU that a worker allocates, such as "24G". Default: the free
  // memory.
  std::optional<std::string> gpu_memory;
  // RP_ALLOW_NONDETERMINISM, default off: GPUs may use kernels whose sums have no fixed order.
  std::optional<bool> allow_nondeterminism;
  // RP_FP16_ACCUMULATION, default off: GPUs add up the products of fp16 matrices in fp16.
  std::optional<bool> fp16_accumulation;
  // RP_THREADS_PER_WORKER, default 1.
  std::optional<int> threads_per_worker;
  // RP_WAIT_TIMEOUT: after how many seconds in which nothing computes a process hangs. Default: 600; under rp-launch,
  // where workers are replaced, less, depending on how long tasks take.
  std::optional<int> wait_timeout_seconds;
  // RP_ATTACH_TIMEOUT, default 120: the maximum time for a worker to start. Increase it if the
  // program does a lot of work before Session::start().
  std::optional<int> attach_timeout_seconds;
  // RP_CHECK_CONSISTENCY, default off: verifies all data that the runtime moves between processes,
  // by version and checksum. The run is slow. An error that it finds is an error of the runtime.
  std::optional<bool> check_consistency;
  // RP_GPU_PROFILE: a profile of the GPUs, by name or as a file, from which a program may predict
  // how long steps take. Default: none.
  std::optional<std::string> gpu_profile;
  // RP_NETWORK: the links between the nodes of a run, such as "10gbit" or "25gbit,70us", with which plans are searched
  // and times of steps are simulated and predicted. Default: none; the network is left out.
  std::optional<std::string> network;
  // RP_TRACE: a file to which is written what every process did and when, for Perfetto and
  // chrome://tracing. Default: none.
  std::optional<std::string> trace;
};

// A step that the program before this one has finished: see Session::restarted().
struct FinishedStep {
  std::int64_t step = 0;                      // counted from 1; 0: the program has not finished a step yet
  std::string restart_data{};                 // of the call of Pipeline::step(), or of the state that was loaded last
  std::vector<std::vector<double>> losses{};  // by round: what RoundResult::losses() returns
  double grad_norm = 0;                       // these three: what StepResult returns
  bool skipped = false;                       // because a gradient was not finite
  double loss_scale = 1;                      // of its rounds
};

// The progress of Session::start() with the initial weights of all pipelines.
struct LoadProgress {
  int num_loaded = 0;  // layers whose weights are in the host store
  int num_layers = 0;  // layers of all pipelines
};

// A process's connection to a run. Every process of the run must create it first in main(). It does
// not change the program's arguments. In the coordinator it makes the process ignore PIPE and XFSZ
// unless the program handles them, so that writes fail (EPIPE, EFBIG) instead of ending the
// process.
class Session {
 public:
  // Determines the process's role and settings. From `argv` it reads only the program's name.
  // Throws rp::Error (kUsage) for an impossible setting. From then on, an exception that leaves
  // main() is printed once, and the process ends with its exit code.
  Session(int argc, char** argv, SessionOptions options = {});
  // In the coordinator: waits for accepted work, then ends the workers; ends them immediately if an
  // exception is leaving main(). If accepted work has failed and no call has thrown the error yet,
  // the error is printed and the process ends with its exit code.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Returns true in the process whose main() continues after start().
  [[nodiscard]] bool is_coordinator() const;

  // Returns the last steps that the program has finished, at most two, oldest first, if its process has died and this
  // one takes its place; otherwise nothing. A program that calls this in the coordinator, before start(), declares that
  // it continues after these steps: rp-launch then starts it again if the coordinator is killed or crashes. Weights and
  // optimizer state need not be loaded: start() finds them where they were, and Pipeline::num_steps() continues
  // counting. Only what the program itself must know it has to give to each step (StepOptions::restart_data). Then the
  // updates of a step begin once all of its gradients are final. Not for steps with a function (Update).
  [[nodiscard]] std::vector<FinishedStep> restarted(int pipeline = 0);

  // In a worker: serves tasks and never returns. In the coordinator: creates the host store, writes
  // the initial weights to it, and starts the workers. Throws rp::Error: kNoResource, with the
  // needed memory, the free memory and a remedy, if there is not enough memory; kUserError if the
  // processes describe different models. `tell` is called in the coordinator after the initial
  // weights of each layer have been written to the store, which takes minutes for a large model.
  void start(const std::function<void(const LoadProgress&)>& tell = {});

  // Returns true after a signal (INT, TERM, HUP, USR1) has requested the end of the program. The
  // current step() completes; the next call that would start a round throws rp::Interrupted.
  [[nodiscard]] bool stop_requested() const;
  // Returns the signal that requested the end, or 0.
  [[nodiscard]] int stop_signal() const;

  // Sets the text that is printed on stderr, after the program's name, as soon as the first INT,
  // TERM, HUP or USR1 arrives. It should say what the program will do before it ends. At most 200
  // bytes; "": prints nothing. The default says that no further round is begun.
  void set_stop_notice(const std::string& text);

  // Sets the text that rp-launch adds to its report if the coordinator is killed or crashes, when
  // the coordinator itself cannot report anything: what is lost, and from where to continue. At
  // most 176 bytes; "" (the default): adds nothing. No effect in a run without rp-launch.
  void set_crash_notice(const std::string& text);

  // Reports that the program has saved its state. If TERM, HUP or USR1 then ends the program, the
  // exit code is 75 (requeue).
  void preempted();

  // On several nodes, returns `own` of the first node, so that all nodes decide alike what depends on
  // files, time or signals; on one node, returns `own`. All nodes must call it between the same
  // other calls. Blocks until the first node has called it.
  [[nodiscard]] std::string from_first_node(const std::string& own);

  // Returns the number of threads that each worker computes with. The last bits of some results
  // depend on it. Of the other settings only the device, allow_nondeterminism and
  // fp16_accumulation affect results.
  [[nodiscard]] int threads_per_worker() const;

  // Returns the device that the workers compute on, SessionOptions::device as it applies to this
  // run: for example "cpu", "cuda" or "sim:rtx4090".
  [[nodiscard]] std::string device() const;

  // Returns true if the workers compute nothing and only take the time that an emulated machine
  // would take (--device sim:NAME). There are no weights then.
  [[nodiscard]] bool is_emulated() const;

  // Returns SessionOptions::gpu_profile as it applies to this run; empty: none.
  [[nodiscard]] std::string gpu_profile() const;

  // Returns SessionOptions::network as it applies to this run; empty: none.
  [[nodiscard]] std::string network() const;

  // Returns SessionOptions::fp16_accumulation as it applies to this run: true if GPUs add up the
  // products of fp16 matrices in fp16.
  [[nodiscard]] bool fp16_accumulation() const;

  // Returns the number of workers of this run on this node; 1 without rp-launch.
  [[nodiscard]] int num_workers() const;

  // Returns the number of workers of all nodes. REQUIRES: start() was called.
  [[nodiscard]] int num_workers_of_all_nodes() const;

  // Returns the number of this node, from 0. In a worker, 0.
  [[nodiscard]] int node() const;
  // Returns the number of nodes of the run. In a worker, 1.
  [[nodiscard]] int num_nodes() const;

  // Returns the planned and the measured host memory of all pipelines. Empty before start().
  [[nodiscard]] MemoryPlan memory_plan() const;

  // Returns the maximum time, over the workers, of the warm-up before the first task; 0 if there
  // was no warm-up. In a run without rp-launch the worker may still be warming up when start() has
  // returned.
  [[nodiscard]] double warm_up_seconds() const;

  // Returns the memory of the workers that have completed a task, in their order. Empty on emulated
  // devices.
  [[nodiscard]] std::vector<WorkerMemoryUse> worker_memory() const;

  class Impl;
  // For the library itself.
  [[nodiscard]] Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace rp
