// A plan as text, for a model of 12 layers. The text of an accepted plan must be readable again.
#include "scheduler/plan.h"
#include "tests/fuzz/reading.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr int kLayers = 12;
  return rp::fuzz::expect_answer([&] {
    const rp::Plan plan = rp::parse_plan(std::string(rp::fuzz::text_of(data, size)), kLayers);
    rp::fuzz::require(rp::parse_plan(rp::plan_text(plan, kLayers), kLayers) == plan);
  });
}
