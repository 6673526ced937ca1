// common/system/crash_point.h
// RP_CRASH_POINT("role.place"): a place at which a test may end this process, to see what follows. Builds without tests
// contain none.
//
// RP_CRASH_AT="NAME:SIGNAL:N,...": the process that comes to the point for the Nth time ends by the signal (its
// number). RP_CRASH_ONCE=PATH: only the first process to do so, which creates PATH.NAME; otherwise each.
#pragma once

#ifdef RP_CRASH_POINTS

#include <cstdlib>

namespace rp {

inline const bool g_has_crash_points = std::getenv("RP_CRASH_AT") != nullptr;

// For RP_CRASH_POINT.
void reach_crash_point(const char* name);

}  // namespace rp

#define RP_CRASH_POINT(name) (::rp::g_has_crash_points ? ::rp::reach_crash_point(name) : void(0))

#else

#define RP_CRASH_POINT(name) void(0)

#endif
