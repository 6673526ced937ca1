#include "train/output/step_file.h"

#include <sys/file.h>

#include <cerrno>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/bad_input.h"
#include "common/files/input_file.h"
#include "common/text.h"

namespace rp {
namespace {

constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 34;

std::optional<std::int64_t> step_of_json(std::string_view line) {
  const auto object = nlohmann::json::parse(line.begin(), line.end(), nullptr, false);
  if (!object.is_object() || !object.contains("step") || !object["step"].is_number_integer()) return std::nullopt;
  return object["step"].get<std::int64_t>();
}

std::optional<std::int64_t> step_of_csv(std::string_view line) {
  std::int64_t step = 0;
  const auto [end, failure] = std::from_chars(line.data(), line.data() + line.size(), step);
  if (failure != std::errc{} || end == line.data() + line.size() || *end != ',') return std::nullopt;
  return step;
}

struct KeptLines {
  std::size_t bytes = 0;
  std::int64_t last_step = -1;
};

// Returns the complete lines of steps up to `last_step`.
template <typename StepOfLine>
KeptLines lines_to_keep(const std::filesystem::path& path, std::string_view text, std::int64_t last_step,
                        std::string_view header, StepOfLine step_of) {
  KeptLines kept;
  std::size_t& begin = kept.bytes;
  for (std::int64_t number = 1;; ++number) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string_view::npos) return kept;
    const std::string_view line = text.substr(begin, end - begin);
    const bool is_header = number == 1 && !header.empty();
    const auto refuse = [&](const char* what) {
      throw bad_input(
          path, "line ", number, " is not ", what,
          " of such a file of train, or it is damaged. Move the file away, and the run goes on with a new one");
    };
    if (is_header) {
      if (line != header) refuse("the first line");
    } else {
      const std::optional<std::int64_t> step = step_of(line);
      if (!step) refuse("a step");
      if (*step > last_step) return kept;
      kept.last_step = *step;
    }
    begin = end + 1;
  }
}

}  // namespace

template <typename StepOfLine>
StepFile StepFile::open(const std::filesystem::path& path, std::int64_t last_step, std::string_view header,
                        StepOfLine step_of) {
  KeptFile file = KeptFile::open(path);
  if (flock(file.fd(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    throw Error(ExitCode::kUsage,
                cat(path.string(), ": another run is writing it; wait for its end or name another --output"));
  }
  const std::string text = InputFile::open(path).read_all(kMaxBytes);
  const KeptLines kept = lines_to_keep(path, text, last_step, header, step_of);
  file.truncate(static_cast<std::int64_t>(kept.bytes));
  return {std::move(file), kept.last_step};
}

StepFile StepFile::open_json(const std::filesystem::path& path, std::int64_t last_step) {
  return open(path, last_step, "", step_of_json);
}

StepFile StepFile::open_csv(const std::filesystem::path& path, std::int64_t last_step, std::string_view header) {
  StepFile file = open(path, last_step, header, step_of_csv);
  if (file.file_.bytes() == 0) file.add(std::string(header));
  return file;
}

}  // namespace rp
