#include "launcher/probe_figures.h"

#include <array>
#include <nlohmann/json.hpp>

#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

struct Field {
  const char* key;
  double ProbeFigures::*value;
};
constexpr std::array kFields = {
    Field{"host_to_device_gbs", &ProbeFigures::host_to_device_gbs},
    Field{"device_to_host_gbs", &ProbeFigures::device_to_host_gbs},
    Field{"both_directions_gbs", &ProbeFigures::both_directions_gbs},
    Field{"copy_latency_us", &ProbeFigures::copy_latency_us},
    Field{"register_s_per_gib", &ProbeFigures::register_s_per_gib},
    Field{"memory_gib", &ProbeFigures::memory_gib},
    Field{"usable_gib", &ProbeFigures::usable_gib},
};

}  // namespace

std::string probe_line(const ProbeFigures& figures) {
  nlohmann::ordered_json line;
  for (const Field& field : kFields) line[field.key] = figures.*field.value;
  line["huge_pages"] = figures.huge_pages;
  return line.dump();
}

ProbeFigures parse_probe_line(const std::string& line) {
  ProbeFigures figures;
  try {
    const auto json = nlohmann::json::parse(line);
    for (const Field& field : kFields) figures.*field.value = json.at(field.key).get<double>();
    figures.huge_pages = json.at("huge_pages").get<bool>();
  } catch (const nlohmann::json::exception&) {
    throw Error(ExitCode::kLauncherFailed, cat("rp-probe printed \"", line.substr(0, 80), "\", which are no figures; it and rp-launch "
                                               "must come from one build"));
  }
  return figures;
}

}  // namespace rp
