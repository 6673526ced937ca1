// common/interrupted.h
#pragma once

namespace rp {

// Returns true while an exception of type Interrupted is being thrown or handled. A destructor that runs because of an
// exception learns so whether that is an Interrupted.
[[nodiscard]] bool interrupted_exists();

}  // namespace rp
