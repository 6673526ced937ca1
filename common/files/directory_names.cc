#include "common/files/directory_names.h"

#include <algorithm>

namespace rp {

namespace fs = std::filesystem;

std::vector<std::string> names_in(const fs::path& directory, std::error_code& failure) {
  std::vector<std::string> names;
  fs::directory_iterator entry;
  do {
    entry = fs::directory_iterator(directory, failure);
  } while (failure == std::errc::interrupted);
  for (; !failure && entry != fs::directory_iterator(); entry.increment(failure))
    names.push_back(entry->path().filename().string());
  std::ranges::sort(names);
  return names;
}

}  // namespace rp
