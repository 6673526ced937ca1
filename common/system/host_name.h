// common/system/host_name.h
#pragma once

#include <string>

namespace rp {

// Returns the name of this machine, or "host" if it has none.
[[nodiscard]] std::string host_name();

}  // namespace rp
