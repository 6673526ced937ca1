#include "train/output/metrics_line.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

#include "common/text.h"

namespace rp {
namespace {

// A name and a number as text; "" if the run has no such number.
using Field = std::pair<const char*, std::string>;

std::string number(const char* format, double value) {
  if (!std::isfinite(value)) return "null";
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

std::vector<Field> fields_of(const StepReport& report) {
  const auto exact = [](double value) { return number("%.17g", value); };
  std::vector<Field> fields = {{"step", std::to_string(report.step)}, {"loss", exact(report.loss)}};
  fields.emplace_back("z_loss", report.z_loss ? exact(*report.z_loss) : "");
  fields.emplace_back("aux_loss", report.experts ? exact(report.experts->auxiliary_loss) : "");
  fields.emplace_back("most_loaded_expert", report.experts ? number("%.6g", report.experts->most_loaded) : "");
  fields.emplace_back("least_loaded_expert", report.experts ? number("%.6g", report.experts->least_loaded) : "");
  fields.insert(fields.end(), {{"grad_norm", exact(report.grad_norm)},
                               {"lr", exact(report.learning_rate)},
                               {"tokens_per_second", number("%.6g", report.tokens_per_second)},
                               {"busy", number("%.4g", report.busy)},
                               {"tokens", std::to_string(report.tokens)},
                               {"trained_tokens", std::to_string(report.trained_tokens)},
                               {"padded_tokens", std::to_string(report.padded_tokens)},
                               {"seconds", number("%.6g", report.seconds)},
                               {"epoch", std::to_string(report.epoch)},
                               {"host_bytes", std::to_string(report.host_bytes)},
                               {"staged_bytes", std::to_string(report.staged_bytes)}});
  return fields;
}

std::string json_of(const std::vector<Field>& fields) {
  std::string text;
  for (const auto& [name, value] : fields) {
    if (!value.empty()) text += cat(text.empty() ? "{\"" : ", \"", name, "\": ", value);
  }
  return text + "}";
}

}  // namespace

std::string metrics_line(const StepReport& report) { return json_of(fields_of(report)); }

std::string metrics_csv_header() {
  std::string text;
  for (const auto& [name, value] : fields_of({})) text += cat(text.empty() ? "" : ",", name);
  return text;
}

std::string metrics_csv_line(const StepReport& report) {
  std::string text;
  for (const auto& [name, value] : fields_of(report))
    text += cat(text.empty() ? "" : ",", value == "null" ? "" : value);
  return text;
}

std::string evaluation_line(const EvaluationReport& report) {
  return json_of({{"step", std::to_string(report.step)},
                  {"loss", number("%.17g", report.loss)},
                  {"perplexity", number("%.6g", report.perplexity())},
                  {"trained_tokens", std::to_string(report.trained_tokens)},
                  {"seconds", number("%.6g", report.seconds)},
                  {"best", report.is_best ? "true" : "false"}});
}

}  // namespace rp
