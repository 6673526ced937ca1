// The TOML file of train --config.
#include "train/settings/options.h"

#include "tests/fuzz/reading.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static rp::fuzz::InputFolder folder("run.toml");
  const auto& path = folder.put(rp::fuzz::text_of(data, size));
  return rp::fuzz::expect_answer([&] {
    rp::OptionValues values;
    rp::Problems problems;
    rp::add_config_file(path, values, problems);
    problems.throw_if_any();
  });
}
