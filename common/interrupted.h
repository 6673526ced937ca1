// common/interrupted.h
#pragma once

namespace rp {

// Returns true while an object of Interrupted exists. In a destructor that an exception has called, it tells whether
// that is an Interrupted: one that was caught before has ended with its handler.
[[nodiscard]] bool interrupted_exists();

}  // namespace rp
