// train/settings/toml_file.h
// Reads a TOML file of settings: keys of its first level, each with one value.
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
  // The value as on a command line: numbers in decimal, "true" and "false". Absent for a list, a
  // table or a date.
  std::optional<std::string> text;
};

// Returns the entries in the order of their lines. Throws rp::Error (kBadInput) naming the file,
// and the line if it is not valid TOML.
[[nodiscard]] std::vector<TomlEntry> read_toml_file(const std::filesystem::path& file);

}  // namespace rp
