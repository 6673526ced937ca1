#include "train/metrics_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "common/bad_input.h"
#include "common/input_file.h"
#include "common/output_file.h"
#include "common/text.h"

namespace rp {
namespace {

constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 34;

Error output_failed(const std::filesystem::path& path, const char* what, int error_number) {
  return Error(ExitCode::kOutputFailed, cat(path.string(), ": cannot be ", what, ": ", errno_text(error_number)));
}

std::string number(const char* format, double value) {
  if (!std::isfinite(value)) return "null";
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

// How many bytes of the file are complete lines of steps up to `last_step`.
std::size_t bytes_to_keep(const std::filesystem::path& path, const std::string& text, std::int64_t last_step) {
  std::size_t begin = 0;
  for (std::int64_t line = 1;; ++line) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) return begin;
    const auto object = nlohmann::json::parse(text.begin() + static_cast<std::ptrdiff_t>(begin),
                                              text.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
    if (!object.is_object() || !object.contains("step") || !object["step"].is_number_integer()) {
      throw bad_input(path, "line ", line, " is not a step's metrics; it is not a file of train, or it is damaged. Name another --output");
    }
    if (object["step"].get<std::int64_t>() > last_step) return begin;
    begin = end + 1;
  }
}

}  // namespace

std::string metrics_line(const StepReport& report) {
  std::string parts;
  if (report.z_loss) parts += cat(", \"z_loss\": ", number("%.17g", *report.z_loss));
  if (report.experts) {
    parts += cat(", \"aux_loss\": ", number("%.17g", report.experts->auxiliary_loss), ", \"most_loaded_expert\": ",
                 number("%.6g", report.experts->most_loaded), ", \"least_loaded_expert\": ", number("%.6g", report.experts->least_loaded));
  }
  return cat("{\"step\": ", report.step, ", \"loss\": ", number("%.17g", report.loss), parts,
             ", \"grad_norm\": ", number("%.17g", report.grad_norm), ", \"lr\": ", number("%.17g", report.learning_rate),
             ", \"tokens_per_second\": ", number("%.6g", report.tokens_per_second), ", \"busy\": ", number("%.4g", report.busy),
             ", \"trained_tokens\": ", report.trained_tokens, ", \"seconds\": ", number("%.6g", report.seconds), ", \"epoch\": ", report.epoch,
             ", \"host_bytes\": ", report.host_bytes, ", \"staged_bytes\": ", report.staged_bytes, "}");
}

MetricsFile MetricsFile::open(const std::filesystem::path& path, std::int64_t last_step) {
  UniqueFd fd = open_kept_file(path, O_RDWR | O_APPEND, 0666, "remove it or name another --output");
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    throw Error(ExitCode::kUsage, cat(path.string(), ": another run is writing it; wait for its end or name another --output"));
  }
  const InputFile present = InputFile::open(path);
  const std::size_t keep = bytes_to_keep(path, present.read_all(kMaxBytes), last_step);
  if (ftruncate(fd.get(), static_cast<off_t>(keep)) != 0) throw output_failed(path, "truncated", errno);
  return MetricsFile(path, std::move(fd), static_cast<std::int64_t>(keep));
}

void MetricsFile::add(const StepReport& report) {
  const std::string line = metrics_line(report) + "\n";
  std::size_t put = 0;
  while (put < line.size()) {
    const ssize_t bytes = ::write(fd_.get(), line.data() + put, line.size() - put);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) {
      const int error_number = errno;
      // Half a line would be no JSON; if even this fails there is nothing left to try.
      (void)!ftruncate(fd_.get(), bytes_);
      throw output_failed(path_, "written", error_number);
    }
    put += static_cast<std::size_t>(bytes);
  }
  bytes_ += static_cast<std::int64_t>(line.size());
}

}  // namespace rp
