// common/system/kernel_file.h
#pragma once

#include <filesystem>
#include <string>

namespace rp {

// Returns the content of a file of /proc or /sys; what was read so far, perhaps "", if it cannot be opened or read. A
// file of a process that ends meanwhile can be opened, and then reading it fails.
[[nodiscard]] std::string kernel_file_text(const std::filesystem::path& file);

}  // namespace rp
