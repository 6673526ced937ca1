#include "pipeline/state_description.h"

#include <climits>
#include <nlohmann/json.hpp>
#include <system_error>

#include "common/bad_input.h"
#include "common/checked_files/json_file.h"
#include "common/files/input_file.h"
#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {
namespace {

constexpr int kStateVersion = 4;
constexpr std::uint64_t kMaxDescriptionBytes = std::uint64_t{16} << 20;

UpdateHistory read_history(const std::filesystem::path& path, const nlohmann::json& object) {
  const nlohmann::json& scale = object.at("loss_scale");
  return {.num_applied = static_cast<std::uint64_t>(whole_number(path, object, "updates")),
          .loss_scale = {
              .scale = scale.at("scale").get<double>(),
              .previous_scale = scale.at("previous_scale").get<double>(),
              .steps_since_overflow = static_cast<int>(whole_number(path, scale, "steps_since_overflow", 0, INT_MAX))}};
}

nlohmann::json loss_scale_json(const LossScaleHistory& history) {
  return {{"scale", history.scale},
          {"previous_scale", history.previous_scale},
          {"steps_since_overflow", history.steps_since_overflow}};
}

}  // namespace

std::string StateDescription::text() const {
  const nlohmann::json object = {{"version", kStateVersion},
                                 {"step", step},
                                 {"round", round},
                                 {"updates", updates.num_applied},
                                 {"loss_scale", loss_scale_json(updates.loss_scale)},
                                 {"dtype", dtype},
                                 {"rounds_per_step", rounds_per_step},
                                 {"asynchronous", asynchronous},
                                 {"user_data", user_data}};
  return object.dump(2) + "\n";
}

std::string state_file_name(int node, int num_nodes) {
  return num_nodes == 1 ? kStateTensorsFile : cat("state-", node + 1, "-of-", num_nodes, ".safetensors");
}

ChecksumList read_state_checksums(const std::filesystem::path& directory) {
  std::error_code ignored;
  if (!std::filesystem::exists(directory / ChecksumList::file_name(kStateChecksums), ignored)) {
    throw bad_input(directory, "lacks ", ChecksumList::file_name(kStateChecksums),
                    ": it is damaged, or was written by an older version of the program");
  }
  ChecksumList list = ChecksumList::read(directory, kStateChecksums);
  // One file of tensors, or one of each node.
  const auto num_files = static_cast<int>(list.entries().size()) - 1;
  bool is_complete = list.entries().contains(kStateDescriptionFile) && num_files > 0;
  for (int node = 0; node < num_files; ++node)
    is_complete = is_complete && list.entries().contains(state_file_name(node, num_files));
  if (is_complete) return list;
  throw bad_input(directory / ChecksumList::file_name(kStateChecksums), "does not list ", kStateDescriptionFile,
                  " and ", kStateTensorsFile,
                  " (or such a file of each node) and nothing else: it was changed or damaged");
}

StateDescription StateDescription::read(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / kStateDescriptionFile;
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    throw bad_input(directory, "is no saved state (it has no ", kStateDescriptionFile, ")");
  const std::string text = InputFile::open(path).read_all(kMaxDescriptionBytes);
  Checksum checksum(kStateChecksums);
  checksum.add(text.data(), text.size());
  read_state_checksums(directory).expect(path, checksum.hex());
  return parse(path, text);
}

StateDescription StateDescription::parse(const std::filesystem::path& path, const std::string& text) {
  const nlohmann::json object = parse_json_file(path, text);
  try {
    if (object.at("version") != kStateVersion) {
      throw bad_input(path, "was written by another version of the program");
    }
    return {.step = static_cast<std::uint64_t>(whole_number(path, object, "step")),
            .round = static_cast<std::uint64_t>(whole_number(path, object, "round")),
            .updates = read_history(path, object),
            .dtype = object.at("dtype").get<std::string>(),
            .rounds_per_step = static_cast<int>(whole_number(path, object, "rounds_per_step", 0, INT_MAX)),
            .asynchronous = object.at("asynchronous").get<bool>(),
            .user_data = object.at("user_data").get<std::string>()};
  } catch (const nlohmann::json::exception& error) {
    throw bad_input(path, "is no state of a pipeline: ", error.what());
  }
}

}  // namespace rp
