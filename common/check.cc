#include "common/check.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace rp {

namespace {
std::atomic<AssertionRecorder> g_recorder{nullptr};
}  // namespace

void set_assertion_recorder(AssertionRecorder recorder) { g_recorder.store(recorder); }

void fail_assertion(const char* condition, const char* file, int line) {
  std::array<char, 400> text{};
  std::snprintf(text.data(), text.size(), "internal error: %s does not hold (%s:%d); please report it", condition, file,
                line);
  std::fprintf(stderr, "roundpipe: %s\n", text.data());
  if (const AssertionRecorder recorder = g_recorder.load()) recorder(text.data());
  std::abort();
}

}  // namespace rp
