// The file of rp-plan simulate and rp-plan compare.
#include "planner/prediction/workload_file.h"
#include "tests/fuzz/reading.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static rp::fuzz::InputFolder folder("layers.json");
  const auto& path = folder.put(rp::fuzz::text_of(data, size));
  return rp::fuzz::expect_answer([&] { (void)rp::read_workload_file(path); });
}
