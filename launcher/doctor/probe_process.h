// launcher/doctor/probe_process.h
// Runs rp-probe on each GPU, alone and then on all GPUs together. rp-launch itself never has a CUDA
// context.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/system/clock.h"
#include "launcher/doctor/probe_figures.h"
#include "launcher/machine/child_process.h"
#include "launcher/machine/gpu_system.h"

namespace rp {

// Controls one rp-probe child, which measures each time it is requested to. The destructor kills
// the child.
class ProbeProcess {
 public:
  // Starts the child, bound to the cores `cpus`. REQUIRES: called in the main thread of a process
  // with one thread. Throws rp::Error if the child cannot be started.
  ProbeProcess(const std::filesystem::path& program, const Gpu& gpu, const CpuList& cpus, bool with_products);

  // Requests a measurement. Does nothing if the probe has failed.
  void start_measuring();
  // Waits for the figures of the requested measurement. Returns nullopt if the probe has failed;
  // from then on failure() returns the reason.
  [[nodiscard]] std::optional<ProbeFigures> figures(const Deadline& deadline);
  [[nodiscard]] const std::string& failure() const { return failure_; }

 private:
  [[nodiscard]] ChildSpec spec(const std::filesystem::path& program, const Gpu& gpu, const CpuList& cpus,
                               bool with_products);
  // Returns the next line of the child's output; nullopt at the end of its output or when the
  // deadline passes.
  [[nodiscard]] std::optional<std::string> read_line(const Deadline& deadline);
  // Called when there is no line: sets failure_ to the reason, which is the first line of the
  // child's stderr if it has ended.
  void fail(const Deadline& deadline);

  UniqueFd errors_;       // a memory file that receives its stderr
  UniqueFd child_end_;    // open only until the child has started
  UniqueFd socket_;       // connected to its stdin and stdout
  std::string received_;  // output that is not yet a complete line
  std::string failure_;
  ChildProcess process_;
};

// The results for one GPU.
struct GpuBandwidth {
  Gpu gpu{};
  std::optional<ProbeFigures> alone{};
  std::optional<ProbeFigures> together{};  // while all GPUs are measured at once; absent for a single GPU
  std::string failure{};                   // why a result is absent
};

// Runs one probe for each GPU: first each alone, then all that succeeded at the same time. `cpus`:
// for each GPU, the cores of its NUMA node. If a probe fails or needs longer than `seconds` for one
// measurement, the reason is stored in its entry and the others continue. Products are measured
// only while the GPU's probe is alone.
[[nodiscard]] std::vector<GpuBandwidth> measure_bandwidths(const std::filesystem::path& program,
                                                           const std::vector<Gpu>& gpus,
                                                           const std::vector<CpuList>& cpus, double seconds,
                                                           bool with_products);

}  // namespace rp
