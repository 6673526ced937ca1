// scheduler/simulation/run_record.h
// RunResult: the result of a simulated run; RunRecord collects it. Times in ms.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/gpu_memory.h"
#include "scheduler/simulator.h"

namespace rp {

enum class SpanKind : std::uint8_t {
  kRecompute,
  kCompute,
  kUploadInput,
  kUploadWeights,
  kDownloadOutput,
  kDownloadGradient,
  kUpdate,
  kSendGradient,  // to the other nodes, and so on
  kReceiveGradient,
  kSendWeights,
  kReceiveWeights
};

// Return whether a span is on the network, and its direction there.
[[nodiscard]] constexpr bool is_sent(SpanKind kind) {
  return kind == SpanKind::kSendGradient || kind == SpanKind::kSendWeights;
}
[[nodiscard]] constexpr bool is_received(SpanKind kind) {
  return kind == SpanKind::kReceiveGradient || kind == SpanKind::kReceiveWeights;
}

// An interval in which something ran.
struct RunSpan {
  SpanKind kind = SpanKind::kCompute;
  TaskKind phase = TaskKind::kForward;
  int gpu = 0;          // -1: the host or the network
  int step = 0;         // from 0
  int stage = 0;        // in the order of a round's slots
  int microbatch = -1;  // of the step; -1: the whole task
  int layer = -1;       // of weights, gradients and updates
  double start = 0;
  double end = 0;
  double bytes = 0;  // of copies, updates and messages
};

// How the GPUs' time was spent, in ms of all GPUs together.
struct GpuTime {
  double busy = 0;
  double inputs = 0;   // the next input has been computed and is being copied
  double weights = 0;  // the weights of the next stage are up to date and are being uploaded
  // Earlier gradients are being downloaded, and no buffer is free for the next ones; or the gradient
  // for an update of the next stage's weights has been computed but is not committed.
  double gradients = 0;
  double updates = 0;  // the weights of the next stage are not updated yet, or not yet received from other nodes
  double bubble = 0;   // other GPUs still compute the next input

  [[nodiscard]] double transfers() const { return inputs + weights + gradients; }
  [[nodiscard]] double total() const { return busy + transfers() + updates + bubble; }
};

struct RunLength {
  int warm_up = 4;      // steps that are not counted
  int steps = 16;       // steps that are counted
  bool record = false;  // true: keep spans of the counted time and memory of the whole run
};

struct HostMemorySample {
  double time = 0;
  double activation_bytes = 0;
};

// The contents of a GPU's memory from `time` to the time of the next sample.
struct GpuMemorySample {
  double time = 0;
  GpuMemory bytes{};
};

struct RunResult {
  double step_ms = 0;         // mean time from the end of a step's last task to that of the next step
  GpuTime gpus;               // mean of a counted step; total() is num_gpus * step_ms
  double update_ms = 0;       // mean of a counted step, time in which an update or sum ran
  double uploaded_bytes = 0;  // mean of a counted step, all GPUs together
  double downloaded_bytes = 0;
  double sent_bytes = 0;      // mean of a counted step, by this node to other nodes
  double received_bytes = 0;  // from them
  double sending_ms = 0;      // mean of a counted step, time in which the network moved what this node sent
  double receiving_ms = 0;
  double peak_activation_bytes = 0;  // in the host store, over the whole run
  std::vector<double> step_ends{};   // of all steps
  std::vector<RunSpan> spans{};      // ordered by their ends
  std::vector<HostMemorySample> memory{};
  std::vector<std::vector<GpuMemorySample>> gpu_memory{};  // by GPU; empty if the layers have no sizes

  // Returns the first sample with the largest total; nullptr if there is none.
  [[nodiscard]] const GpuMemorySample* peak_of(int gpu) const;
};

// Why a GPU did not compute until now: the time at which each requirement was met, if the GPU had
// to wait for it.
struct Missing {
  double input_made = 0, input_there = 0;
  // Weights: when the last gradient of an update that they waited for was computed and committed,
  // when all of them were up to date, and when they were uploaded.
  double gradient_made = 0, gradient_committed = 0, weights_known = 0, weights_there = 0;
  double gradient_buffer = 0;
};

// Collects a RunResult. Times must not decrease from call to call.
class RunRecord {
 public:
  explicit RunRecord(const RunLength& length) : length_(length) {}

  // Adds time in which a GPU computed, or an update ran.
  void busy(double start, double end) { result_.gpus.busy += counted(start, end); }
  void update(double start, double end) { result_.update_ms += counted(start, end); }
  // Adds time in which a GPU did not compute. The requirement that was met last is the reason.
  void idle(double start, double end, const Missing& missing);
  // Adds time in which a GPU had nothing to do until the end of the run.
  void idle_at_end(double start, double end) { result_.gpus.bubble += counted(start, end); }
  void span(const RunSpan& span);
  void activations(double now, double more_bytes);
  void end_step(double now);

  // The number of steps to simulate. One more step than is counted runs at the end, so that the end
  // of the last counted step is like that of any other.
  [[nodiscard]] int num_steps() const { return length_.warm_up + length_.steps + 1; }
  [[nodiscard]] RunResult result();

 private:
  // Returns the length of the counted part of an interval.
  [[nodiscard]] double counted(double start, double end) const;
  [[nodiscard]] double count_from() const;
  [[nodiscard]] double count_to() const;

  const RunLength length_;
  RunResult result_;
  double activation_bytes_ = 0;
};

}  // namespace rp
