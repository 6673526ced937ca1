// common/check.h
// RP_ASSERT(condition) checks an invariant of this project. If it is broken, the process records
// the place and aborts.
#pragma once

namespace rp {

// Called with the text of a broken invariant before the process aborts. Records the text in a place
// that outlives the process.
using AssertionRecorder = void (*)(const char* text);

// Sets the recorder of this process, replacing an earlier one; nullptr removes it.
void set_assertion_recorder(AssertionRecorder recorder);

[[noreturn]] void fail_assertion(const char* condition, const char* file, int line);

}  // namespace rp

#define RP_ASSERT(condition) \
  (static_cast<bool>(condition) ? void(0) : ::rp::fail_assertion(#condition, __FILE__, __LINE__))
