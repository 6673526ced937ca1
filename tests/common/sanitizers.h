// tests/common/sanitizers.h
// Says whether the program is built with AddressSanitizer or ThreadSanitizer, which make it about ten
// times slower and handle some signals themselves. GCC defines macros for them, clang 16 has features.
#pragma once

namespace rp::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsSanitized = true;
#elif defined(__has_feature)
constexpr bool kIsSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool kIsSanitized = false;
#endif

}  // namespace rp::test
