// common/files/directory_names.h
// Lists the entries of a directory.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

namespace rp {

// Returns the names of all entries except "." and "..", sorted. If the directory cannot be read to
// its end, returns those that were read and sets `failure`, which is never EINTR.
[[nodiscard]] std::vector<std::string> names_in(const std::filesystem::path& directory, std::error_code& failure);

}  // namespace rp
