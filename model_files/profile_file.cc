#include "model_files/profile_file.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "common/bad_input.h"
#include "common/check.h"
#include "common/checked_files/json_file.h"
#include "model_files/config/embedded_files.h"

namespace rp {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;

// A figure of the format: its unit, its bounds and the member that stores it.
// docs/formats/gpu_profile.md describes each.
template <typename Profile>
struct Figure {
  const char* key;
  const char* unit;
  double min;  // if 0, the value must be above 0
  double max;
  double Profile::*member;
};

const std::vector<Figure<GpuProfile>>& figures_of(const GpuProfile*) {
  static const std::vector<Figure<GpuProfile>> kFigures = {
      {"memory", "GiB", 0, 1e4, &GpuProfile::memory_gib},
      {"usable_share", "fraction", 0, 1, &GpuProfile::usable_share},
      {"fp16_accumulate_peak", "TFLOP/s", 0, 1e6, &GpuProfile::fp16_accumulate_tflops},
      {"fp32_accumulate_peak", "TFLOP/s", 0, 1e6, &GpuProfile::fp32_accumulate_tflops},
      {"gemm_efficiency", "fraction", 0, 1, &GpuProfile::gemm_efficiency},
      {"attention_efficiency", "fraction", 0, 1, &GpuProfile::attention_efficiency},
      {"memory_bandwidth", "GB/s", 0, 1e6, &GpuProfile::memory_gbs},
      {"memory_efficiency", "fraction", 0, 1, &GpuProfile::memory_efficiency},
      {"pcie_generation", "number", 1, 10, &GpuProfile::pcie_generation},
      {"pcie_lanes", "number", 1, 64, &GpuProfile::pcie_lanes},
      {"host_to_device", "GB/s", 0, 1e4, &GpuProfile::host_to_device_gbs},
      {"device_to_host", "GB/s", 0, 1e4, &GpuProfile::device_to_host_gbs},
      {"both_directions", "GB/s", 0, 1e4, &GpuProfile::both_directions_gbs},
      {"copy_latency", "us", 0, 1e6, &GpuProfile::copy_latency_us}};
  return kFigures;
}

const std::vector<Figure<ServerProfile>>& figures_of(const ServerProfile*) {
  static const std::vector<Figure<ServerProfile>> kFigures = {
      {"gpus", "number", 1, 1024, &ServerProfile::num_gpus},
      {"memory", "GiB", 0, 1e6, &ServerProfile::memory_gib},
      {"memory_bandwidth", "GB/s", 0, 1e6, &ServerProfile::memory_gbs},
      {"optimizer", "GB/s", 0, 1e6, &ServerProfile::optimizer_gbs},
      {"pageable_upload", "GB/s", 0, 1e4, &ServerProfile::pageable_upload_gbs},
      {"pageable_traffic", "number", 1, 10, &ServerProfile::pageable_bytes_per_byte},
      {"gpus_per_root", "number", 1, 1024, &ServerProfile::gpus_per_root},
      {"root_bandwidth", "GB/s", 0, 1e5, &ServerProfile::root_gbs}};
  return kFigures;
}

constexpr const char* format_of(const GpuProfile*) { return "roundpipe-gpu"; }
constexpr const char* format_of(const ServerProfile*) { return "roundpipe-server"; }

void check_keys(const std::filesystem::path& path, const std::string& place, const json& object,
                const std::vector<std::string>& known) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      throw bad_input(path, place, "has an unknown key ", quoted_name(key), did_you_mean(key, known));
    }
  }
}

const json& member(const std::filesystem::path& path, const std::string& place, const json& object, const char* key) {
  if (!object.contains(key)) throw bad_input(path, place, "lacks ", quoted_name(key));
  return object.at(key);
}

std::string text_of(const std::filesystem::path& path, const std::string& place, const json& object, const char* key) {
  const json& value = member(path, place, object, key);
  if (!value.is_string() || value.get_ref<const std::string&>().empty()) {
    throw bad_input(path, place, key, " is ", quoted_name(value.dump()), "; it must be a string that is not empty");
  }
  return value.get<std::string>();
}

template <typename Profile>
double read_figure(const std::filesystem::path& path, const Figure<Profile>& figure, const json& entry) {
  const std::string place = cat("figure ", quoted_name(figure.key), ": ");
  if (!entry.is_object())
    throw bad_input(path, place, "is ", quoted_name(entry.dump()),
                    "; it must be an object with value, unit and source");
  check_keys(path, place, entry, {"value", "unit", "source"});
  if (const std::string unit = text_of(path, place, entry, "unit"); unit != figure.unit) {
    throw bad_input(path, place, "unit is ", quoted_name(unit), "; it must be ", quoted_name(figure.unit));
  }
  const json& value = member(path, place, entry, "value");
  const double number = value.is_number() ? value.get<double>() : -1;
  if (!value.is_number() || number < figure.min || number > figure.max || number <= 0) {
    throw bad_input(path, place, "value is ", quoted_name(value.dump()), "; it must be a number of ", figure.unit, " ",
                    figure.min > 0 ? cat("from ", figure.min) : "above 0", " to ", figure.max);
  }
  return number;
}

template <typename Profile>
ProfileFile<Profile> parse_profile(const std::filesystem::path& path, const json& root) {
  const auto* tag = static_cast<const Profile*>(nullptr);
  check_keys(path, "", root, {"format", "version", "name", "figures"});
  if (const std::string format = text_of(path, "", root, "format"); format != format_of(tag)) {
    throw bad_input(path, "format is ", quoted_name(format), "; it must be ", quoted_name(format_of(tag)));
  }
  if (const json& version = member(path, "", root, "version"); version != kVersion) {
    throw bad_input(path, "version is ", quoted_name(version.dump()), "; this program reads version ", kVersion);
  }
  ProfileFile<Profile> file;
  file.profile.name = text_of(path, "", root, "name");
  const json& figures = member(path, "", root, "figures");
  if (!figures.is_object()) throw bad_input(path, "figures is ", quoted_name(figures.dump()), "; it must be an object");
  std::vector<std::string> keys;
  for (const Figure<Profile>& figure : figures_of(tag)) keys.emplace_back(figure.key);
  check_keys(path, "figures: ", figures, keys);
  for (const Figure<Profile>& figure : figures_of(tag)) {
    const json& entry = member(path, "figures: ", figures, figure.key);
    file.profile.*figure.member = read_figure(path, figure, entry);
    file.sources.push_back({figure.key, text_of(path, cat("figure ", quoted_name(figure.key), ": "), entry, "source")});
  }
  return file;
}

template <typename Profile>
ProfileFile<Profile> read_profile(const std::filesystem::path& path) {
  constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 20;
  return parse_profile<Profile>(path, read_json_file(path, kMaxBytes));
}

using Embedded = std::vector<std::pair<std::string, std::string_view>>;

const Embedded& gpus() {
  static const Embedded kGpus = {{"rtx3090", embedded_rtx3090()}, {"rtx4090", embedded_rtx4090()},
                                 {"rtx5090", embedded_rtx5090()}, {"a100", embedded_a100()},
                                 {"a800", embedded_a800()},       {"h100", embedded_h100()},
                                 {"h200", embedded_h200()}};
  return kGpus;
}

const Embedded& servers() {
  static const Embedded kServers = {{"xeon6330-8gpu", embedded_server_xeon6330()}};
  return kServers;
}

std::vector<std::string> names_of(const Embedded& files) {
  std::vector<std::string> names;
  for (const auto& [name, text] : files) names.push_back(name);
  return names;
}

template <typename Profile>
ProfileFile<Profile> find_profile(const std::string& name_or_path, const Embedded& files, const char* kind) {
  if (name_or_path.find('/') != std::string::npos || name_or_path.ends_with(".json"))
    return read_profile<Profile>(name_or_path);
  for (const auto& [name, text] : files) {
    const std::filesystem::path path = name + ".json";
    if (name == name_or_path) return parse_profile<Profile>(path, parse_json_file(path, text));
  }
  std::string list;
  for (const std::string& name : names_of(files)) list += (list.empty() ? "" : ", ") + name;
  throw Error(ExitCode::kUsage, cat("there is no profile ", quoted_name(name_or_path), " of a ", kind,
                                    did_you_mean(name_or_path, names_of(files)), "; there are ", list,
                                    "; a file of one's own: its path, as ./my.json (docs/formats/gpu_profile.md)"));
}

}  // namespace

std::string gpu_profile_text(const ProfileFile<GpuProfile>& file) {
  const auto* tag = static_cast<const GpuProfile*>(nullptr);
  RP_ASSERT(file.sources.size() == figures_of(tag).size());
  nlohmann::ordered_json figures;
  for (std::size_t i = 0; i < file.sources.size(); ++i) {
    const Figure<GpuProfile>& figure = figures_of(tag)[i];
    figures[figure.key] = {
        {"value", file.profile.*figure.member}, {"unit", figure.unit}, {"source", file.sources[i].source}};
  }
  const nlohmann::ordered_json root{
      {"format", format_of(tag)}, {"version", kVersion}, {"name", file.profile.name}, {"figures", figures}};
  return root.dump(2) + "\n";
}

ProfileFile<GpuProfile> read_gpu_profile(const std::filesystem::path& path) { return read_profile<GpuProfile>(path); }
ProfileFile<ServerProfile> read_server_profile(const std::filesystem::path& path) {
  return read_profile<ServerProfile>(path);
}

ProfileFile<GpuProfile> gpu_profile(const std::string& name_or_path) {
  return find_profile<GpuProfile>(name_or_path, gpus(), "GPU");
}
ProfileFile<ServerProfile> server_profile(const std::string& name_or_path) {
  return find_profile<ServerProfile>(name_or_path, servers(), "server");
}

std::vector<std::string> gpu_profile_names() { return names_of(gpus()); }
std::vector<std::string> server_profile_names() { return names_of(servers()); }

}  // namespace rp
