// launcher/program_path.h
// Finds the program that rp-launch is to run.
#pragma once

#include <filesystem>
#include <string>

namespace rp {

// A name with a slash is taken as it is; one without is looked up in `own_directory` (that of rp-launch), then in the
// directories of `search_path` (as PATH). Throws rp::Error kNotFound, or kCannotExecute for a file that is no program.
[[nodiscard]] std::filesystem::path find_program(const std::string& name, const std::filesystem::path& own_directory,
                                                 const std::string& search_path);

}  // namespace rp
