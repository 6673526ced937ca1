// launcher/doctor/doctor.h
// Implements `rp-launch doctor`: inspects the machine's GPUs, cores and limits, measures the GPUs,
// and reports what is wrong: docs/doctor.md.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/command_line/option_spec.h"
#include "launcher/hosts/host_list.h"
#include "launcher/machine/gpu_list.h"

namespace rp {

struct DoctorOptions {
  std::optional<GpuRequest> gpus{};  // the GPUs to measure; default: all that are visible
  bool json = false;
  std::filesystem::path profile{};  // file to which the measured profile is written; empty: none
  bool help = false;

  // Of several hosts: run_hosts_doctor().
  std::vector<Host> hosts{};                   // empty: this machine
  std::vector<std::string> options_of_node{};  // with which a run would start on each host
  std::vector<std::string> command{};          // the program that the hosts must have, and its arguments; may be empty
  // This process answers the doctor of another host: run_host_part().
  enum class HostPart { kNone, kFacts, kNetwork };
  HostPart host_part = HostPart::kNone;
};

// The words that start such a process: `rp-launch doctor host-facts`.
inline constexpr const char* kHostFactsWord = "host-facts";
inline constexpr const char* kHostNetworkWord = "host-network";

// The table of all options, from which the parser and --help are derived.
[[nodiscard]] const std::vector<OptionSpec>& doctor_option_specs();
// `arguments`: everything after "doctor". Throws rp::Error (kUsage).
[[nodiscard]] DoctorOptions parse_doctor_options(const std::vector<std::string>& arguments);

// Looks at this machine only. Prints the report and returns 0, or the exit code for output that cannot be written.
// Throws rp::Error: after the report, if requested GPUs are missing; kOutputFailed if the profile cannot be written;
// and the errors of measured_profile().
[[nodiscard]] int run_doctor(const DoctorOptions& options, const std::filesystem::path& own_directory,
                             const std::string& library_path);

}  // namespace rp
