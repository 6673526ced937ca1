// The line of figures that rp-probe prints.
#include "launcher/doctor/probe_figures.h"
#include "tests/fuzz/reading.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return rp::fuzz::expect_answer(
      [&] { (void)rp::probe_line(rp::parse_probe_line(std::string(rp::fuzz::text_of(data, size)))); });
}
