// The command line of train.
#include "train/settings/settings.h"

#include "tests/fuzz/reading.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::vector<std::string> words = rp::fuzz::words_of(rp::fuzz::text_of(data, size));
  return rp::fuzz::expect_answer([&] { (void)rp::setting_rows(rp::parse_train_command(words).settings); });
}
