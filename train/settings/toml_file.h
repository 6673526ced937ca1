// train/settings/toml_file.h
// A TOML file of settings: keys of its first level, each with one value.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace rp {

struct TomlEntry {
  std::uint32_t line = 0;
  std::string key;
  // As it would stand on a command line: numbers in decimals, "true" and "false". Absent for a list, a table or a date.
  std::optional<std::string> text;
};

// In the order of their lines. Throws rp::Error (kBadInput) naming the file, and the line where it is no TOML.
[[nodiscard]] std::vector<TomlEntry> read_toml_file(const std::filesystem::path& file);

}  // namespace rp
