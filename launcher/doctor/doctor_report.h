// launcher/doctor/doctor_report.h
// Formats the findings of `rp-launch doctor` as text or JSON, with the problems and their remedies.
// Keys: docs/doctor.md.
#pragma once

#include <string>
#include <vector>

#include "launcher/doctor/probe_process.h"
#include "launcher/machine/gpu_system.h"
#include "launcher/machine/limits.h"
#include "launcher/machine/topology.h"

namespace rp {

struct Advice {
  std::string about{};
  std::string text{};
  bool is_problem = false;  // false: for information
};

struct DoctorReport {
  GpuSystem system{};
  std::string plugin{};  // path of the CUDA plug-in; empty: this build has none
  std::vector<NumaNode> nodes{};
  std::vector<LimitLine> limits{};
  std::vector<GpuBandwidth> bandwidths{};
  std::string unmeasured{};         // why there are no bandwidths; empty if there are
  std::vector<Advice> variables{};  // advice on CUDA's own environment variables
};

// Derives the advice from the report, problems first. On a machine without GPUs it contains nothing
// about them: the report itself states that there are none.
[[nodiscard]] std::vector<Advice> advice_on(const DoctorReport& report);

// Returns two lists with their headings: what is wrong, and what is good to know. Empty if there is no advice.
[[nodiscard]] std::string advice_text(const std::vector<Advice>& list);

[[nodiscard]] std::string doctor_text(const DoctorReport& report);
[[nodiscard]] std::string doctor_json(const DoctorReport& report);

}  // namespace rp
