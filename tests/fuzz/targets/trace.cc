// A trace as rp-plan timeline reads it: the whole trace, and some of its steps.
#include "planner/timeline/trace_file.h"
#include "planner/timeline_command.h"
#include "tests/fuzz/reading.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static rp::fuzz::InputFolder folder("trace.json");
  const auto& path = folder.put(rp::fuzz::text_of(data, size));
  (void)rp::fuzz::expect_answer([&] {
    (void)rp::read_trace(path, {.steps = std::pair<std::int64_t, std::int64_t>{1, 2}});
  });
  return rp::fuzz::expect_answer([&] {
    const rp::Trace trace = rp::read_trace(path, {});
    (void)rp::timeline_text(trace, "trace.json");
  });
}
