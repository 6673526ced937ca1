// The command lines of rp-launch and rp-launch doctor.
#include "launcher/doctor/doctor.h"
#include "launcher/options/options.h"
#include "tests/fuzz/reading.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::vector<std::string> words = rp::fuzz::words_of(rp::fuzz::text_of(data, size));
  (void)rp::fuzz::expect_answer([&] { (void)rp::parse_launch_options(words); });
  return rp::fuzz::expect_answer([&] { (void)rp::parse_doctor_options(words); });
}
