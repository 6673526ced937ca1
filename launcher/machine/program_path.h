// launcher/machine/program_path.h
// Finds the program that rp-launch is to run, and the plug-in for GPUs of this installation.
#pragma once

#include <filesystem>
#include <string>

namespace rp {

// Returns the path of the program. A name with a slash is used unchanged. A name without one is
// looked up in `own_directory` (that of rp-launch), then in the directories of `search_path` (in
// the format of PATH). Throws rp::Error kNotFound, or kCannotExecute for a file that is not a
// program.
[[nodiscard]] std::filesystem::path find_program(const std::string& name, const std::filesystem::path& own_directory,
                                                 const std::string& search_path);

// Returns the path of a library of this installation. Looks next to rp-launch, in the library
// directory of its build or installation, and in the directories of `library_path` (in the format
// of LD_LIBRARY_PATH). Empty if it is in none of them.
[[nodiscard]] std::filesystem::path find_library(const std::string& file_name,
                                                 const std::filesystem::path& own_directory,
                                                 const std::string& library_path);

// Returns the path of the plug-in that workers on GPUs load.
[[nodiscard]] std::filesystem::path find_cuda_plugin(const std::filesystem::path& own_directory,
                                                     const std::string& library_path);
inline constexpr const char* kCudaPlugin = "libroundpipe_cuda.so";

}  // namespace rp
