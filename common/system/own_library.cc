#include "common/system/own_library.h"

#include <dlfcn.h>

namespace rp {

namespace {

std::filesystem::path own_directory() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&load_own_library), &info) == 0 || info.dli_fname == nullptr) return {};
  return std::filesystem::path(info.dli_fname).parent_path();
}

}  // namespace

OwnLibrary load_own_library(const std::string& file_name, const std::filesystem::path& folder) {
  OwnLibrary library{.path = (folder.empty() ? own_directory() : folder) / file_name};
  library.exists = std::filesystem::exists(library.path);
  if (!library.exists) return library;
  library.handle = dlopen(library.path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library.handle == nullptr) {
    const char* const why = dlerror();
    library.error = why == nullptr ? "?" : why;
  }
  return library;
}

}  // namespace rp
