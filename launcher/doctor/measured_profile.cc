#include "launcher/doctor/measured_profile.h"

#include <algorithm>
#include <cctype>

#include "common/text.h"
#include "model_files/profile_file.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

// Returns the words of a name in lower case: "nvidia", "a100", "sxm4", "80gb".
std::vector<std::string> words_of(const std::string& name) {
  std::vector<std::string> words{""};
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0) words.back() += static_cast<char>(std::tolower(byte));
    else if (!words.back().empty()) words.emplace_back();
  }
  return words;
}

// Returns true if the profile's name is a word, or two consecutive words, of the GPU's name: "RTX
// 4090".
bool is_named(const std::vector<std::string>& words, const std::string& profile) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == profile || (i > 0 && words[i - 1] + words[i] == profile)) return true;
  }
  return false;
}

std::string profile_of_capability(int capability) {
  if (capability >= 100) return "rtx5090";
  if (capability >= 90) return "h100";
  if (capability >= 89) return "rtx4090";
  return capability >= 86 ? "rtx3090" : "a100";
}

// Returns the GPUs that were measured. Throws if there are none, or if their names differ.
std::vector<GpuBandwidth> measured_ones(const std::vector<GpuBandwidth>& bandwidths) {
  std::vector<GpuBandwidth> measured;
  for (const GpuBandwidth& gpu : bandwidths) {
    if (gpu.alone) measured.push_back(gpu);
  }
  if (measured.empty()) {
    throw Error(ExitCode::kNoResource,
                "--profile: no GPU was measured, so there is nothing to write; rp-launch doctor says why");
  }
  for (const GpuBandwidth& gpu : measured) {
    if (gpu.gpu.name != measured.front().gpu.name) {
      throw Error(ExitCode::kUsage,
                  cat("--profile is of one kind of GPU, and these differ: ", gpu_text(measured.front().gpu), ", ",
                      gpu_text(gpu.gpu), "; choose one kind with --gpus"));
    }
  }
  return measured;
}

}  // namespace

std::string nearest_profile(const Gpu& gpu) {
  const std::vector<std::string> words = words_of(gpu.name);
  for (const std::string& profile : gpu_profile_names()) {
    if (is_named(words, profile)) return profile;
  }
  return profile_of_capability(10 * gpu.capability_major + gpu.capability_minor);
}

std::string unmeasured_text(const std::vector<GpuBandwidth>& bandwidths) {
  for (const GpuBandwidth& gpu : bandwidths) {
    if (!gpu.alone || gpu.alone->products_problem.empty()) continue;
    return cat("matrix products of ", gpu_text(gpu.gpu), " were not measured (", gpu.alone->products_problem,
               "); the profile has those of ", nearest_profile(gpu.gpu), " in their place");
  }
  return {};
}

std::string measured_profile(const std::vector<GpuBandwidth>& bandwidths, const std::string& driver,
                             const std::string& when) {
  const std::vector<GpuBandwidth> measured = measured_ones(bandwidths);
  const Gpu& gpu = measured.front().gpu;
  const std::string nearest = nearest_profile(gpu);
  ProfileFile<GpuProfile> file = gpu_profile(nearest);
  for (FigureSource& source : file.sources) {
    source.source =
        cat("not measured; as in the profile ", nearest, ", the nearest to ", gpu.name, ": ", source.source);
  }
  const auto set = [&](const char* key, double GpuProfile::*figure, double value, const std::string& how) {
    if (value <= 0) return;
    file.profile.*figure = value;
    const auto source =
        std::find_if(file.sources.begin(), file.sources.end(), [key](const FigureSource& s) { return s.key == key; });
    source->source =
        cat(how, " by rp-launch doctor on ", when, ": ", gpu.name, ", driver ", driver.empty() ? "unknown" : driver,
            measured.size() > 1 ? cat(", the slowest of ", measured.size()) : "");
  };
  const auto least = [&measured](double ProbeFigures::*figure) {
    double value = (*measured.front().alone).*figure;
    for (const GpuBandwidth& each : measured) value = std::min(value, (*each.alone).*figure);
    return value;
  };
  double latency_us = 0;
  for (const GpuBandwidth& each : measured) latency_us = std::max(latency_us, each.alone->copy_latency_us);
  const ProbeFigures& first = *measured.front().alone;
  file.profile.name = cat(gpu.name, ", measured");
  set("memory", &GpuProfile::memory_gib, first.memory_gib, "read");
  if (first.memory_gib > 0) {
    set("usable_share", &GpuProfile::usable_share, std::min(1.0, least(&ProbeFigures::usable_gib) / first.memory_gib),
        "measured");
  }
  set("pcie_generation", &GpuProfile::pcie_generation, gpu.most_link.generation, "read");
  set("pcie_lanes", &GpuProfile::pcie_lanes, gpu.link.width, "read");
  set("host_to_device", &GpuProfile::host_to_device_gbs, least(&ProbeFigures::host_to_device_gbs), "measured");
  set("device_to_host", &GpuProfile::device_to_host_gbs, least(&ProbeFigures::device_to_host_gbs), "measured");
  set("both_directions", &GpuProfile::both_directions_gbs, least(&ProbeFigures::both_directions_gbs), "measured");
  set("copy_latency", &GpuProfile::copy_latency_us, latency_us, "measured");
  // The planner uses the product of peak and efficiency. If the peak, which is another card's, is
  // below the measured value, the measured value becomes the peak.
  const auto set_part = [&](const char* peak_key, double GpuProfile::*peak, const char* part_key,
                            double GpuProfile::*part, double value, const char* how) {
    if (value > file.profile.*peak) set(peak_key, peak, value, how);
    set(part_key, part, value / file.profile.*peak, how);
  };
  set_part("fp32_accumulate_peak", &GpuProfile::fp32_accumulate_tflops, "gemm_efficiency", &GpuProfile::gemm_efficiency,
           least(&ProbeFigures::bf16_tflops), "measured (bf16 products)");
  if (least(&ProbeFigures::bf16_tflops) > 0) {
    set("fp16_accumulate_peak", &GpuProfile::fp16_accumulate_tflops,
        least(&ProbeFigures::fp16_accumulate_tflops) / file.profile.gemm_efficiency,
        "measured (fp16 products, over gemm_efficiency)");
  }
  set_part("memory_bandwidth", &GpuProfile::memory_gbs, "memory_efficiency", &GpuProfile::memory_efficiency,
           least(&ProbeFigures::memory_gbs), "measured (copies inside the GPU's memory)");
  return gpu_profile_text(file);
}

}  // namespace rp
