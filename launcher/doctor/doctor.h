// launcher/doctor/doctor.h
// `rp-launch doctor`: looks at the machine's GPUs, cores and limits, measures, and says what is wrong. docs/doctor.md.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/command_line/option_spec.h"
#include "launcher/machine/gpu_list.h"

namespace rp {

struct DoctorOptions {
  std::optional<GpuRequest> gpus{};  // those to look at; default: all that are visible
  bool json = false;
  std::filesystem::path profile{};  // where to write what was measured; empty: nowhere
  bool help = false;
};

// The table of all options, as launch_option_specs().
[[nodiscard]] const std::vector<OptionSpec>& doctor_option_specs();
// `arguments`: all after "doctor". Throws rp::Error (kUsage).
[[nodiscard]] DoctorOptions parse_doctor_options(const std::vector<std::string>& arguments);

// Prints the report and returns the exit code of the output. Throws rp::Error: after the report, if GPUs that were
// asked for are missing; kOutputFailed if the profile cannot be written; and as measured_profile().
[[nodiscard]] int run_doctor(const DoctorOptions& options, const std::filesystem::path& own_directory,
                             const std::string& library_path);

}  // namespace rp
