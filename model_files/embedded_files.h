// model_files/embedded_files.h
// Data files that are part of the program: the build makes the source from them, so that installed programs need no path.
#pragma once

#include <string_view>

namespace rp {

// model_files/presets.json.
[[nodiscard]] std::string_view embedded_presets();

}  // namespace rp
