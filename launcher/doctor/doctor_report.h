// launcher/doctor/doctor_report.h
// What `rp-launch doctor` found, as text or JSON, with what is wrong and how to mend it. Keys: docs/doctor.md.
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
  bool is_problem = false;  // else good to know
};

struct DoctorReport {
  GpuSystem system{};
  std::string plugin{};  // its file; empty: this build has none
  std::vector<NumaNode> nodes{};
  std::vector<LimitLine> limits{};
  std::vector<GpuBandwidth> bandwidths{};
  std::string unmeasured{};         // why there are no bandwidths; empty where there are
  std::vector<Advice> variables{};  // on CUDA's own variables
};

// Problems first. Nothing about GPUs on a machine without them: that it has none is in the report itself.
[[nodiscard]] std::vector<Advice> advice_on(const DoctorReport& report);

[[nodiscard]] std::string doctor_text(const DoctorReport& report);
[[nodiscard]] std::string doctor_json(const DoctorReport& report);

}  // namespace rp
