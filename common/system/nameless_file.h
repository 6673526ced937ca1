// common/system/nameless_file.h
// Creates files that no other process can open by a name, and that vanish with the last descriptor, however the
// process ends.
#pragma once

#include <filesystem>

#include "common/system/fd.h"

namespace rp {

// Creates an empty file without a name in a directory, for reading and writing by this user only. The descriptor is
// closed on exec. Returns nothing, with errno set, if the file cannot be created.
[[nodiscard]] UniqueFd create_nameless_file(const std::filesystem::path& directory);

}  // namespace rp
