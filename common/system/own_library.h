// common/system/own_library.h
// Loads shared libraries that are installed next to the library that contains this code: parts of
// the project that only some processes need, because they need other libraries in turn.
#pragma once

#include <filesystem>
#include <string>

namespace rp {

struct OwnLibrary {
  std::filesystem::path path;
  bool exists = false;
  void* handle = nullptr;  // of dlopen(); nullptr if it cannot be loaded
  std::string error{};     // why it cannot be loaded
};

// Loads the library of this file name. It is loaded once and never unloaded, and its symbols are
// available to libraries that are loaded later. `folder`: where it is; default: next to this code.
[[nodiscard]] OwnLibrary load_own_library(const std::string& file_name, const std::filesystem::path& folder = {});

}  // namespace rp
