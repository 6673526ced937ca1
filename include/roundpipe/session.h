// roundpipe/session.h
// The process's part in a run: coordinator, worker, or both at once where there is no rp-launch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "roundpipe/memory_plan.h"

namespace rp {

// Settings of the runtime. A field that is set here wins over the option of rp-launch, which wins over the variable
// RP_..., which wins over the default.
struct SessionOptions {
  std::optional<std::string> device;  // RP_DEVICE, default "cpu"; or "cuda", "sim:NAME"
  std::optional<std::string> store;   // RP_STORE: "shm", "memfd"; default: shm where it is large enough
  // RP_PARAMS_ON: a directory. Weights, gradients and optimizer state are files there, so that a model may be larger
  // than memory; default: in memory.
  std::optional<std::string> params_on;
  std::optional<std::string> plan;  // RP_PLAN: "auto" or a file; default "auto"
  std::optional<bool> prefetch;     // RP_PREFETCH, default on
  // RP_WARM_UP: whether each worker runs each kind of layer once before its first task (Model::set_example()); default:
  // on GPUs.
  std::optional<bool> warm_up;
  // RP_SIGNALS: how the GPUs of different workers wait for each other: "memops" (the default), "events".
  std::optional<std::string> signals;
  std::optional<std::string> gpu_memory;  // RP_GPU_MEMORY: a size as "24G"; default: what is free of the GPU's memory
  std::optional<bool>
      allow_nondeterminism;  // RP_ALLOW_NONDETERMINISM, default off: GPUs may use sums without a fixed order
  std::optional<bool> fp16_accumulation;  // RP_FP16_ACCUMULATION, default off: of the products of fp16 matrices on GPUs
  std::optional<int> threads_per_worker;  // RP_THREADS_PER_WORKER, default 1
  std::optional<int>
      wait_timeout_seconds;  // RP_WAIT_TIMEOUT, default 600: how long a wait lasts while nothing computes
  // RP_ATTACH_TIMEOUT, default 120: how long a worker may take to start. Longer where a program does much before
  // Session::start().
  std::optional<int> attach_timeout_seconds;
  // RP_CHECK_CONSISTENCY, default off: a slow run that verifies what the runtime moves between processes, by version
  // and checksum. What it finds is an error of the runtime.
  std::optional<bool> check_consistency;
  // RP_GPU_PROFILE: a profile of the GPUs, by name or as a file, from which a program may predict what steps take;
  // default: none.
  std::optional<std::string> gpu_profile;
  // RP_TRACE: a file for what every process did and when, read by Perfetto and chrome://tracing; default: none.
  std::optional<std::string> trace;
};

// How far Session::start() is with the initial weights, of all pipelines together.
struct LoadProgress {
  int num_loaded = 0;  // layers whose weights are in the host store
  int num_layers = 0;  // layers in all
};

// Made first in main(), by every process of the run. Leaves the program's arguments alone. In the coordinator PIPE and
// XFSZ are ignored from then on, unless the program has set them: a write fails instead (EPIPE, EFBIG).
class Session {
 public:
  // Finds the process's role and settings; the program's name is all that it reads of argv. Throws rp::Error (kUsage)
  // for an impossible setting. An exception that leaves main() is from now on printed once and ends with its exit code.
  Session(int argc, char** argv, SessionOptions options = {});
  // In the coordinator: waits for accepted work and ends the workers; at once if an exception is on its way out of
  // main(). A failure of accepted work that no call has thrown yet is printed and ends the process with its code.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // True in the process whose main() goes on after start().
  [[nodiscard]] bool is_coordinator() const;

  // In a worker: serves tasks and never returns. In the coordinator: makes the host store, fills it with the initial
  // weights, starts the workers. Throws rp::Error: kNoResource with need, free and remedy if memory is short;
  // kUserError if the processes describe different models. `tell`: called in the coordinator after each layer whose
  // initial weights are in the store, which takes minutes for a large model.
  void start(const std::function<void(const LoadProgress&)>& tell = {});

  // True once a signal (INT, TERM, HUP, USR1) asked for an end. The present step() completes; the next
  // call that would start a round throws rp::Interrupted.
  [[nodiscard]] bool stop_requested() const;
  // The signal that asked for it, or 0.
  [[nodiscard]] int stop_signal() const;

  // Sets what the first INT, TERM, HUP or USR1 prints at once on stderr, behind the program's name: what the program
  // does before it ends. At most 200 bytes; "": nothing. By default that no further round is begun.
  void set_stop_notice(const std::string& text);

  // Sets what rp-launch adds to its report if the coordinator is killed or crashes, so that it cannot say so itself:
  // what is lost, what to go on from. At most 176 bytes; "": nothing, the default. Without effect in a run without
  // rp-launch.
  void set_crash_notice(const std::string& text);

  // Says that the program has saved its state: an end by TERM, HUP or USR1 then has exit code 75 (requeue).
  void preempted();

  // Threads that each worker computes with. Some results depend on it to the last bit, as on no other setting here.
  [[nodiscard]] int threads_per_worker() const;

  // What the workers compute on: SessionOptions::device as it holds for this run, as "cpu", "cuda" or "sim:rtx4090".
  [[nodiscard]] std::string device() const;

  // Whether the workers compute nothing and take an emulated machine's time (--device sim:NAME): there are no weights
  // then.
  [[nodiscard]] bool is_emulated() const;

  // SessionOptions::gpu_profile as it holds for this run; empty: none.
  [[nodiscard]] std::string gpu_profile() const;

  // Whether GPUs add up the products of fp16 matrices in fp16: SessionOptions::fp16_accumulation as it holds for this
  // run.
  [[nodiscard]] bool fp16_accumulation() const;

  // Workers of this run, 1 without rp-launch.
  [[nodiscard]] int num_workers() const;

  // Host memory of all pipelines, planned and measured. Empty before start().
  [[nodiscard]] MemoryPlan memory_plan() const;

  // How long the workers warmed up before their first task: the longest of them; 0 where none did. In a run without
  // rp-launch the worker may still be at it while start() has returned.
  [[nodiscard]] double warm_up_seconds() const;

  // Of the workers that have completed a task, in their order. Empty on emulated devices.
  [[nodiscard]] std::vector<WorkerMemoryUse> worker_memory() const;

  class Impl;
  // For the library itself.
  [[nodiscard]] Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace rp
