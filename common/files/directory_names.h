// common/files/directory_names.h
// What lies in a directory.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

namespace rp {

// The names of all entries but "." and "..", sorted. Where the directory cannot be read to its end: those that were
// read, and `failure`, which is never EINTR.
[[nodiscard]] std::vector<std::string> names_in(const std::filesystem::path& directory, std::error_code& failure);

}  // namespace rp
