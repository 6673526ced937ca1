// launcher/machine/program_path.h
// Finds the program that rp-launch is to run, and whether this installation has what runs on GPUs.
#pragma once

#include <filesystem>
#include <string>

namespace rp {

// A name with a slash is taken as it is; one without is looked up in `own_directory` (that of rp-launch), then in the
// directories of `search_path` (as PATH). Throws rp::Error kNotFound, or kCannotExecute for a file that is no program.
[[nodiscard]] std::filesystem::path find_program(const std::string& name, const std::filesystem::path& own_directory,
                                                 const std::string& search_path);

// The plug-in that workers on GPUs load: beside rp-launch, in the library directory of its build or installation, or in
// a directory of `library_path` (as LD_LIBRARY_PATH). Empty: it is in none of them.
[[nodiscard]] std::filesystem::path find_cuda_plugin(const std::filesystem::path& own_directory,
                                                     const std::string& library_path);
inline constexpr const char* kCudaPlugin = "libroundpipe_cuda.so";

}  // namespace rp
