#include "launcher/doctor/doctor.h"

#include <ctime>
#include <cxxopts.hpp>
#include <iostream>

#include "common/files/output_file.h"
#include "common/program_main.h"
#include "common/system/usable_cores.h"
#include "common/text.h"
#include "launcher/doctor/doctor_report.h"
#include "launcher/doctor/measured_profile.h"
#include "launcher/machine/program_path.h"
#include "launcher/process/runtime_settings.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

constexpr const char* kProbe = "rp-probe";
constexpr double kProbeSeconds = 60;  // limit for the start of a probe, its allocations and one measurement

cxxopts::Options make_parser() {
  return option_parser(
      "rp-launch doctor",
      "Looks at this machine's GPUs, cores and limits, or at several hosts, and says what is wrong with "
      "them.",
      "[options] [program]", doctor_option_specs());
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 16> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d", &parts);
  return text.data();
}

// Removes repeated GPUs: a card is measured once, however many workers it is to have.
std::vector<Gpu> without_repeats(const std::vector<Gpu>& gpus) {
  std::vector<Gpu> once;
  for (const Gpu& gpu : gpus) {
    const bool known =
        std::any_of(once.begin(), once.end(), [&gpu](const Gpu& other) { return other.uuid == gpu.uuid; });
    if (!known) once.push_back(gpu);
  }
  return once;
}

void measure(const std::vector<Gpu>& gpus, const std::filesystem::path& own_directory, bool with_products,
             DoctorReport& report) {
  const std::filesystem::path probe = own_directory / kProbe;
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(probe, ignored)) {
    report.unmeasured = cat(kProbe, " is not next to rp-launch; it comes with a build that has the CUDA toolkit");
    return;
  }
  std::vector<int> node_of_gpu;
  for (const Gpu& gpu : gpus) node_of_gpu.push_back(gpu.numa_node);
  report.bandwidths =
      measure_bandwidths(probe, gpus, place_beside_gpus(report.nodes, node_of_gpu), kProbeSeconds, with_products);
}

// Returns the requested GPUs, or all that are visible. Adds notes about the choice to the report.
// Throws rp::Error as choose_gpus() does.
std::vector<Gpu> chosen_gpus(const std::optional<GpuRequest>& asked, DoctorReport& report) {
  const CudaVariables variables = CudaVariables::of_this_process();
  const GpuRequest all{.asked = "the visible GPUs"};
  const GpuChoice choice = choose_gpus(asked.value_or(all), report.system, variables);
  if (!choice.note.empty()) report.variables.push_back({"CUDA_DEVICE_ORDER", choice.note});
  const std::size_t num_visible = choose_gpus(all, report.system, variables).gpus.size();
  if (variables.visible_devices && num_visible < report.system.gpus.size()) {
    report.variables.push_back({"CUDA_VISIBLE_DEVICES", cat("set to ", *variables.visible_devices, ", it leaves runs ",
                                                            num_visible, " of ", report.system.gpus.size(), " GPUs")});
  }
  return without_repeats(choice.gpus);
}

void read_hosts(const cxxopts::ParseResult& parsed, DoctorOptions& options) {
  const bool has_hosts = parsed.count("hosts") > 0;
  const bool has_file = parsed.count("hostfile") > 0;
  if (has_hosts && has_file) throw Error(ExitCode::kUsage, "--hosts and --hostfile are both set, choose one");
  if (!has_hosts && !has_file) return;
  options.hosts = has_hosts ? parse_hosts("--hosts", parsed["hosts"].as<std::string>())
                            : read_hostfile(parsed["hostfile"].as<std::string>());
  if (!options.profile.empty())
    throw Error(ExitCode::kUsage, "--profile is for one machine; run rp-launch doctor --profile on one of the hosts");
  if (options.gpus) options.options_of_node = {"--gpus", parsed["gpus"].as<std::string>()};
}

void read_words(const std::vector<std::string>& words, DoctorOptions& options) {
  if (words.empty()) return;
  if (!options.hosts.empty()) {
    options.command = words;
  } else if (words == std::vector<std::string>{kHostFactsWord}) {
    options.host_part = DoctorOptions::HostPart::kFacts;
  } else if (words == std::vector<std::string>{kHostNetworkWord}) {
    options.host_part = DoctorOptions::HostPart::kNetwork;
  } else {
    throw Error(ExitCode::kUsage, cat("doctor takes options only, not \"", words[0],
                                      "\"; a program of that name is started with rp-launch -- doctor"));
  }
}

}  // namespace

const std::vector<OptionSpec>& doctor_option_specs() {
  static const std::vector<OptionSpec> specs = {
      {.name = "gpus",
       .argument = "N|LIST|all",
       .default_text = "all that are visible",
       .help = "Look at these GPUs, as --gpus of rp-launch; exit code 69 if one is missing",
       .details =
           "Measure these GPUs, named as for [rp-launch](launcher.md#gpus); exit code 69 if one is missing. With "
           "`--hosts`: each host must have them"},
      {.name = "hostfile", .argument = "FILE", .help = "Read the hosts from a file, with one in each line"},
      {.name = "hosts",
       .argument = "LIST",
       .help = "Find out whether these hosts, such as a:8,b:8, can run a job together",
       .details = "Find out whether these hosts, such as `a:8,b:8`, can run a job together: see [Several "
                  "hosts](#several-hosts)"},
      {.name = "json", .help = "Print JSON"},
      {.name = "profile",
       .argument = "FILE",
       .help = "Write what was measured as a GPU profile, for rp-plan plan --gpu FILE",
       .details = "Write what was measured as a [GPU profile](formats/gpu_profile.md), for `rp-plan plan --gpu FILE`"},
      {.letter = "h", .name = "help", .help = "Print this text"},
  };
  return specs;
}

DoctorOptions parse_doctor_options(const std::vector<std::string>& arguments) {
  std::vector<const char*> words{"rp-launch doctor"};
  for (const std::string& argument : arguments) words.push_back(argument.c_str());
  DoctorOptions options;
  try {
    const cxxopts::ParseResult parsed = make_parser().parse(static_cast<int>(words.size()), words.data());
    options.help = parsed.count("help") > 0;
    options.json = parsed.count("json") > 0;
    if (parsed.count("gpus") > 0) options.gpus = parse_gpus("--gpus", parsed["gpus"].as<std::string>());
    if (parsed.count("profile") > 0) options.profile = parse_file("--profile", parsed["profile"].as<std::string>());
    read_hosts(parsed, options);
    read_words(parsed.unmatched(), options);
  } catch (const cxxopts::exceptions::exception& error) {
    throw Error(ExitCode::kUsage, cat(error.what(), "; rp-launch doctor --help lists the options"));
  }
  return options;
}

int run_doctor(const DoctorOptions& options, const std::filesystem::path& own_directory,
               const std::string& library_path) {
  if (options.help) return print_output(make_parser().help());
  DoctorReport report;
  report.system = observe_gpus();
  report.plugin = find_cuda_plugin(own_directory, library_path).string();
  report.nodes = numa_nodes(allowed_cpus());
  report.limits = limit_lines(observe_limits());
  std::optional<Error> missing;
  try {
    measure(chosen_gpus(options.gpus, report), own_directory, !options.profile.empty(), report);
  } catch (const Error& error) {
    missing = error;
    if (report.system.missing.empty()) report.unmeasured = error.what();
  }
  const int printed = print_output(options.json ? doctor_json(report) : doctor_text(report));
  if (missing && options.gpus) throw *missing;
  if (options.profile.empty()) return printed;
  replace_file(options.profile, measured_profile(report.bandwidths, report.system.driver, today()));
  const std::string warning = unmeasured_text(report.bandwidths);
  if (!warning.empty()) std::cerr << "rp-launch doctor: " << warning << "\n";
  return printed;
}

}  // namespace rp
