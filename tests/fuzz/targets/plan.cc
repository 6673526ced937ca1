// A plan as text, for a model of 12 layers. An accepted plan that is written as text must be
// the same when it is read again.
#include "scheduler/plan.h"
#include "tests/fuzz/reading.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr int kLayers = 12;
  return rp::fuzz::expect_answer([&] {
    const rp::Plan plan = rp::parse_plan(std::string(rp::fuzz::text_of(data, size)), kLayers);
    rp::fuzz::require(rp::parse_plan(rp::plan_text(plan, kLayers), kLayers) == plan);
  });
}
