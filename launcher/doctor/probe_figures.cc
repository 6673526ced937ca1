#include "launcher/doctor/probe_figures.h"

#include <algorithm>
#include <array>
#include <climits>
#include <cstdint>
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
    Field{"register_read_only_s_per_gib", &ProbeFigures::register_read_only_s_per_gib},
    Field{"memory_gib", &ProbeFigures::memory_gib},
    Field{"usable_gib", &ProbeFigures::usable_gib},
    Field{"bf16_tflops", &ProbeFigures::bf16_tflops},
    Field{"fp16_tflops", &ProbeFigures::fp16_tflops},
    Field{"fp16_accumulate_tflops", &ProbeFigures::fp16_accumulate_tflops},
    Field{"tf32_tflops", &ProbeFigures::tf32_tflops},
    Field{"memory_gbs", &ProbeFigures::memory_gbs},
};

struct Flag {
  const char* key;
  bool ProbeFigures::*value;
};
constexpr std::array kFlags = {
    Flag{"huge_pages", &ProbeFigures::huge_pages},
    Flag{"word_operations", &ProbeFigures::has_word_operations},
    Flag{"read_only_registration", &ProbeFigures::registers_read_only},
    Flag{"unified_addressing", &ProbeFigures::has_unified_addressing},
};

}  // namespace

std::string probe_line(const ProbeFigures& figures) {
  nlohmann::ordered_json line;
  for (const Field& field : kFields) line[field.key] = figures.*field.value;
  line["copy_engines"] = figures.copy_engines;
  for (const Flag& flag : kFlags) line[flag.key] = figures.*flag.value;
  line["products_problem"] = figures.products_problem;
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

ProbeFigures parse_probe_line(const std::string& line) {
  ProbeFigures figures;
  try {
    const auto json = nlohmann::json::parse(line);
    for (const Field& field : kFields) figures.*field.value = json.at(field.key).get<double>();
    // Read by reference, which throws for a negative number or one with a fraction.
    figures.copy_engines =
        static_cast<int>(std::min<std::uint64_t>(json.at("copy_engines").get_ref<const std::uint64_t&>(), INT_MAX));
    for (const Flag& flag : kFlags) figures.*flag.value = json.at(flag.key).get<bool>();
    figures.products_problem = json.at("products_problem").get<std::string>();
  } catch (const nlohmann::json::exception&) {
    throw Error(ExitCode::kLauncherFailed, cat("rp-probe printed \"", line.substr(0, 80),
                                               "\", which are no figures; it and rp-launch must come from one build"));
  }
  return figures;
}

}  // namespace rp
