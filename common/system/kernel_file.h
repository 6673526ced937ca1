// common/system/kernel_file.h
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

namespace rp {

// Returns the content of a file of /proc or /sys; what was read so far, perhaps "", if it cannot be opened or read. A
// file of a process that ends meanwhile can be opened, and then reading it fails.
[[nodiscard]] std::string kernel_file_text(const std::filesystem::path& file);

// Returns the words of a process's command line, the program's name first. There are none if the process has ended.
[[nodiscard]] std::vector<std::string> command_line_of(pid_t process);

}  // namespace rp
