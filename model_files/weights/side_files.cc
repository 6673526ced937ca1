#include "model_files/weights/side_files.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <set>
#include <string_view>

#include "common/bad_input.h"
#include "common/checked_files/checksum.h"
#include "common/files/directory_names.h"
#include "model_files/config/model_config.h"
#include "roundpipe/error.h"

namespace rp {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxBytes = std::uint64_t{128} << 20;

constexpr std::array<std::string_view, 21> kKnownNames = {"added_tokens.json",
                                                          "chat_template.jinja",
                                                          "chat_template.json",
                                                          "generation_config.json",
                                                          "image_processor_config.json",
                                                          "merges.txt",
                                                          "preprocessor_config.json",
                                                          "processor_config.json",
                                                          "sentencepiece.bpe.model",
                                                          "special_tokens_map.json",
                                                          "spiece.model",
                                                          "tekken.json",
                                                          "tokenizer.json",
                                                          "tokenizer.model",
                                                          "tokenizer.model.v3",
                                                          "tokenizer_config.json",
                                                          "tokenizer_config.json.v3",
                                                          "video_preprocessor_config.json",
                                                          "vocab.json",
                                                          "vocab.txt",
                                                          "qwen.tiktoken"};

// Returns true for names such as "LICENSE", "license.txt", "NOTICE.md", "USE_POLICY.md".
bool is_licence(std::string name) {
  std::ranges::transform(name, name.begin(),
                         [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  const std::size_t end = name.find('.');
  const std::string_view stem = std::string_view(name).substr(0, end);
  const std::string_view ending = end == std::string::npos ? std::string_view() : std::string_view(name).substr(end);
  return (stem == "license" || stem == "licence" || stem == "notice" || stem == "copying" || stem == "use_policy") &&
         (ending.empty() || ending == ".txt" || ending == ".md");
}

bool is_inside(const fs::path& file, const fs::path& folder) {
  const fs::path way = file.lexically_relative(folder);
  return !way.empty() && *way.begin() != "..";
}

// Opens the file; returns nullopt if it must not be copied. The checks apply to the file that was
// opened, wherever links led.
std::optional<InputFile> open_side_file(const fs::path& path, const std::vector<fs::path>& folders) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return std::nullopt;  // opening a device could have an effect
  try {
    InputFile file = InputFile::open(path);
    const fs::path real = file.real_path();
    const bool is_ours = std::ranges::any_of(folders, [&](const fs::path& folder) { return is_inside(real, folder); });
    if (!is_ours || file.size() > kMaxBytes) return std::nullopt;
    return file;
  } catch (const Error&) {                       // a dangling link, or a file without read permission
    if (access(path.c_str(), R_OK) == 0) throw;  // it should be readable: do not export a model without its tokenizer
    return std::nullopt;
  }
}

std::vector<std::string> names_of_files(const fs::path& directory) {
  std::error_code failure;
  std::vector<std::string> names = names_in(directory, failure);
  if (failure == std::errc::too_many_files_open) {
    throw Error(ExitCode::kNoResource, cat(directory.string(), " cannot be read: ", failure.message(),
                                           "; raise the limit on open files (ulimit -n)"));
  }
  if (failure) throw bad_input(directory, "cannot be read: ", failure.message());
  return names;
}

// Returns the model's folder and, if that is in the hub's cache (models--NAME/snapshots/REVISION),
// the folder of its blobs, where the files are.
std::vector<fs::path> folders_of(const fs::path& directory) {
  std::error_code ignored;
  std::vector<fs::path> folders = {fs::canonical(directory, ignored)};
  const fs::path snapshots = folders[0].parent_path();
  if (snapshots.filename() == "snapshots" && snapshots.parent_path().filename().string().starts_with("models--")) {
    folders.push_back(snapshots.parent_path() / "blobs");
  }
  return folders;
}

}  // namespace

SideFiles find_side_files(const WeightFiles& weights) {
  const fs::path& directory = weights.directory();
  std::set<std::string> written = {kConfigFile, kIndexFile, ChecksumList::file_name(ChecksumKind::kSha256)};
  for (const SafetensorsFile& file : weights.files()) written.insert(file.path().filename().string());
  const std::vector<fs::path> folders = folders_of(directory);
  const std::vector<std::string> names = names_of_files(directory);
  SideFiles files;
  for (const std::string& name : names) {
    if (name.starts_with('.') || written.contains(name)) continue;
    std::optional<InputFile> file;
    if (std::ranges::find(kKnownNames, name) != kKnownNames.end() || is_licence(name))
      file = open_side_file(directory / name, folders);
    if (file) {
      files.copied.push_back({name, std::move(*file)});
    } else {
      files.left_out.push_back(name);
    }
  }
  return files;
}

}  // namespace rp
