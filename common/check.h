// common/check.h
// RP_ASSERT(condition): our own invariant. Where it is broken the process records the place and aborts.
#pragma once

namespace rp {

[[noreturn]] void fail_assertion(const char* condition, const char* file, int line);

}  // namespace rp

#define RP_ASSERT(condition) \
  (static_cast<bool>(condition) ? void(0) : ::rp::fail_assertion(#condition, __FILE__, __LINE__))
