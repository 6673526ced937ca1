// launcher/doctor/measured_profile.h
// A GPU profile for rp-plan of what was measured on this machine. Format: docs/formats/gpu_profile.md.
#pragma once

#include <string>
#include <vector>

#include "launcher/doctor/probe_process.h"

namespace rp {

// Takes of each measured figure the worst value of these GPUs, each measured alone on its link. What was not measured
// is taken from the profile that comes with the program and is nearest by the GPU's name, else by its compute
// capability; its source says so. `when`: the date. Throws rp::Error: kNoResource if no GPU was measured, kUsage if
// GPUs of different names were.
[[nodiscard]] std::string measured_profile(const std::vector<GpuBandwidth>& bandwidths, const std::string& driver,
                                           const std::string& when);

// One line where matrix products of one of the GPUs were not measured, with the reason; else empty.
[[nodiscard]] std::string unmeasured_text(const std::vector<GpuBandwidth>& bandwidths);

// The name of that nearest profile: "rtx4090".
[[nodiscard]] std::string nearest_profile(const Gpu& gpu);

}  // namespace rp
