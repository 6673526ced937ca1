// launcher/doctor/probe_process.h
// rp-probe at work on one GPU, and what all of them find alone and together. rp-launch itself never has a CUDA context.
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

// One child, that measures each time it is told to. Owned by the caller; killed at its end.
class ProbeProcess {
 public:
  // Started by the main thread of a process with one thread, on these cores. Throws rp::Error if it cannot be started.
  ProbeProcess(const std::filesystem::path& program, const Gpu& gpu, const CpuList& cpus, bool with_products);

  // Tells it to measure. Nothing happens if it has failed.
  void start_measuring();
  // Its figures, or nothing when it has failed: then failure() says why, from now on.
  [[nodiscard]] std::optional<ProbeFigures> figures(const Deadline& deadline);
  [[nodiscard]] const std::string& failure() const { return failure_; }

 private:
  [[nodiscard]] ChildSpec spec(const std::filesystem::path& program, const Gpu& gpu, const CpuList& cpus,
                               bool with_products);
  // Up to the next end of line; nothing at the end of its output or when the deadline passes.
  [[nodiscard]] std::optional<std::string> read_line(const Deadline& deadline);
  // Why there is no line: ends the process and says what it said.
  void fail(const Deadline& deadline);

  UniqueFd errors_;       // a file of what it writes to stderr
  UniqueFd child_end_;    // only until it has started
  UniqueFd socket_;       // its stdin and stdout
  std::string received_;  // and not yet a line
  std::string failure_;
  ChildProcess process_;
};

// What was found of one GPU.
struct GpuBandwidth {
  Gpu gpu{};
  std::optional<ProbeFigures> alone{};
  std::optional<ProbeFigures> together{};  // with all others at once; absent for a single GPU
  std::string failure{};                   // why something is absent
};

// One probe a GPU: each alone, then those that could do so all together. `cpus`: for each GPU, the cores beside it. A
// probe that fails or takes longer than `seconds` for one measurement has its failure in its entry; the others go on.
// Products are measured alone.
[[nodiscard]] std::vector<GpuBandwidth> measure_bandwidths(const std::filesystem::path& program,
                                                           const std::vector<Gpu>& gpus,
                                                           const std::vector<CpuList>& cpus, double seconds,
                                                           bool with_products);

}  // namespace rp
