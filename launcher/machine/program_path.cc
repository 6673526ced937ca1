#include "launcher/machine/program_path.h"

#include <unistd.h>

#include <sstream>
#include <system_error>
#include <vector>

#include "common/files/directory_names.h"
#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

namespace fs = std::filesystem;

namespace {

bool is_program(const fs::path& file) {
  std::error_code ignored;
  return fs::is_regular_file(file, ignored) && access(file.c_str(), X_OK) == 0;
}

[[noreturn]] void throw_unusable(const fs::path& file) {
  std::error_code ignored;
  if (!fs::exists(file, ignored)) {
    throw Error(ExitCode::kNotFound, cat("cannot find the program ", file.string()));
  }
  const char* why = fs::is_directory(file, ignored) ? "it is a directory" : "it has no execute permission (chmod +x)";
  throw Error(ExitCode::kCannotExecute, cat("cannot execute ", file.string(), ": ", why));
}

// Adds the directories of a list in the format of PATH. An empty entry is the working directory.
void add_directories(const std::string& list, std::vector<fs::path>& directories) {
  std::istringstream text(list);
  for (std::string directory; std::getline(text, directory, ':');) {
    directories.emplace_back(directory.empty() ? "." : directory);
  }
}

// Returns the remedy for a program that does not exist.
std::string hint_of_missing(const std::string& name, const fs::path& own_directory) {
  if (is_program(name)) return "; there is one in this directory: write ./ before its name";
  if (name == "train") return "; it is built where LibTorch is found: scripts/build.sh release programs";
  std::vector<std::string> names = {"train"};
  std::error_code ignored;
  for (const std::string& each : names_in(own_directory, ignored)) {
    if (is_program(own_directory / each)) names.push_back(each);
  }
  return did_you_mean(name, names);
}

}  // namespace

fs::path find_program(const std::string& name, const fs::path& own_directory, const std::string& search_path) {
  if (name.find('/') != std::string::npos) {
    if (!is_program(name)) throw_unusable(name);
    return name;
  }
  std::vector<fs::path> directories{own_directory};
  add_directories(search_path, directories);
  for (const fs::path& directory : directories) {
    if (!name.empty() && is_program(directory / name)) return directory / name;
  }
  throw Error(ExitCode::kNotFound, cat("cannot find the program \"", name, "\" next to rp-launch or in PATH",
                                       hint_of_missing(name, own_directory)));
}

fs::path find_library(const std::string& file_name, const fs::path& own_directory, const std::string& library_path) {
  std::vector<fs::path> directories{own_directory, own_directory / ".." / "lib", own_directory / RP_LIBRARY_DIRECTORY};
  add_directories(library_path, directories);
  for (const fs::path& directory : directories) {
    std::error_code ignored;
    if (fs::is_regular_file(directory / file_name, ignored)) return directory / file_name;
  }
  return {};
}

fs::path find_cuda_plugin(const fs::path& own_directory, const std::string& library_path) {
  return find_library(kCudaPlugin, own_directory, library_path);
}

}  // namespace rp
