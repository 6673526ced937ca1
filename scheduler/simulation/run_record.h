// scheduler/simulation/run_record.h
// What is known of a simulated run in the end. Times in ms.
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
  kUpdate
};

// Something that took time.
struct RunSpan {
  SpanKind kind = SpanKind::kCompute;
  TaskKind phase = TaskKind::kForward;
  int gpu = 0;          // -1: the host
  int step = 0;         // from 0
  int stage = 0;        // in the order of a round's slots
  int microbatch = -1;  // of the step; -1: the whole task
  int layer = -1;       // of weights, gradients and updates
  double start = 0;
  double end = 0;
  double bytes = 0;  // of copies and updates
};

// What the GPUs' time went to, in ms of all GPUs together.
struct GpuTime {
  double busy = 0;
  double inputs = 0;     // what comes next was made, and is on its way
  double weights = 0;    // the next stage's weights are known, and on their way
  double gradients = 0;  // no buffer: earlier gradients are on their way
  double updates = 0;    // the next stage's weights are not updated yet
  double bubble = 0;     // other GPUs still compute what comes next

  [[nodiscard]] double transfers() const { return inputs + weights + gradients; }
  [[nodiscard]] double total() const { return busy + transfers() + updates + bubble; }
};

struct RunLength {
  int warm_up = 4;      // steps that are not counted
  int steps = 16;       // that are
  bool record = false;  // spans of the counted time, memory of the whole run
};

struct HostMemorySample {
  double time = 0;
  double activation_bytes = 0;
};

// What lies in a GPU's memory from `time` to the next sample's.
struct GpuMemorySample {
  double time = 0;
  GpuMemory bytes{};
};

struct RunResult {
  double step_ms = 0;         // mean, from the end of a step's last task to that of the next step's
  GpuTime gpus;               // of a counted step; total() is num_gpus * step_ms
  double update_ms = 0;       // of a counted step, how long an update or sum ran
  double uploaded_bytes = 0;  // likewise, of all GPUs
  double downloaded_bytes = 0;
  double peak_activation_bytes = 0;  // in the host store, of the whole run
  std::vector<double> step_ends{};   // of all steps
  std::vector<RunSpan> spans{};      // by their ends
  std::vector<HostMemorySample> memory{};
  std::vector<std::vector<GpuMemorySample>> gpu_memory{};  // by GPU; empty where the layers have no sizes

  // The first sample with the most of all; nullptr: there is none.
  [[nodiscard]] const GpuMemorySample* peak_of(int gpu) const;
};

// Why a GPU did not compute until now: when each of these came, as far as it had to come.
struct Missing {
  double input_made = 0, input_there = 0;
  // Weights: when the last gradient of an update that they waited for was computed, and committed; when all were known.
  double gradient_made = 0, gradient_committed = 0, weights_known = 0, weights_there = 0;
  double gradient_buffer = 0;
};

// Collects a RunResult. Time goes on from call to call.
class RunRecord {
 public:
  explicit RunRecord(const RunLength& length) : length_(length) {}

  // A GPU computed, or an update ran.
  void busy(double start, double end) { result_.gpus.busy += counted(start, end); }
  void update(double start, double end) { result_.update_ms += counted(start, end); }
  // It did not compute. What came last is the reason.
  void idle(double start, double end, const Missing& missing);
  // It had nothing to do until the end of the run.
  void idle_at_end(double start, double end) { result_.gpus.bubble += counted(start, end); }
  void span(const RunSpan& span);
  void activations(double now, double more_bytes);
  void end_step(double now);

  // The last step but one is the last that is counted; a run has one step more, so that its end is as any other's.
  [[nodiscard]] int num_steps() const { return length_.warm_up + length_.steps + 1; }
  [[nodiscard]] RunResult result();

 private:
  // The part of a time that is counted.
  [[nodiscard]] double counted(double start, double end) const;
  [[nodiscard]] double count_from() const;
  [[nodiscard]] double count_to() const;

  const RunLength length_;
  RunResult result_;
  double activation_bytes_ = 0;
};

}  // namespace rp
