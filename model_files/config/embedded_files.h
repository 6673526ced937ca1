// model_files/config/embedded_files.h
// Data files that are compiled into the program. The build generates the source from them, so
// installed programs need no path to them.
#pragma once

#include <string_view>

namespace rp {

// model_files/config/presets.json.
[[nodiscard]] std::string_view embedded_presets();

// scheduler/profiles/*.json.
[[nodiscard]] std::string_view embedded_rtx3090();
[[nodiscard]] std::string_view embedded_rtx4090();
[[nodiscard]] std::string_view embedded_rtx5090();
[[nodiscard]] std::string_view embedded_a100();
[[nodiscard]] std::string_view embedded_a800();
[[nodiscard]] std::string_view embedded_h100();
[[nodiscard]] std::string_view embedded_h200();
[[nodiscard]] std::string_view embedded_server_xeon6330();

}  // namespace rp
