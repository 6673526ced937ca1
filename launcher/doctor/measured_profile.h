// launcher/doctor/measured_profile.h
// Converts the measurements of this machine to a GPU profile for rp-plan. Format:
// docs/formats/gpu_profile.md.
#pragma once

#include <string>
#include <vector>

#include "launcher/doctor/probe_process.h"

namespace rp {

// Returns the text of the profile. Each measured figure is the worst of the values of these GPUs,
// measured with only one GPU active at a time. Figures that were not measured come from the
// built-in profile whose name is nearest to that of the GPU, or else from the one with the nearest
// compute capability; their source says so. `when`: the date. Throws rp::Error: kNoResource if no
// GPU was measured, kUsage if the measured GPUs have different names.
[[nodiscard]] std::string measured_profile(const std::vector<GpuBandwidth>& bandwidths, const std::string& driver,
                                           const std::string& when);

// Returns one line with the reason if matrix products were not measured on one of the GPUs;
// otherwise an empty text.
[[nodiscard]] std::string unmeasured_text(const std::vector<GpuBandwidth>& bandwidths);

// Returns the name of the nearest built-in profile, such as "rtx4090".
[[nodiscard]] std::string nearest_profile(const Gpu& gpu);

}  // namespace rp
