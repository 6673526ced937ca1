// A reader with one fault of each kind, to show that the driver finds them.
#include <signal.h>

#include <climits>
#include <memory>
#include <stdexcept>
#include <vector>

#include "common/bad_input.h"
#include "tests/fuzz/reading.h"

namespace {

volatile int number = INT_MAX;
volatile std::size_t place = 100;

void read(std::string_view text) {
  if (text == "beyond") {
    const std::string copy(text);
    number = copy.data()[place];
  }
  if (text == "overflow") number = number + 1;
  if (text == "abort") std::abort();
  if (text == "exception") throw std::logic_error("not for its reader");
  if (text == "slow")
    while (true) number = 1;
  if (text == "waits") pause();
  if (text == "huge") (void)std::string(std::size_t{3} << 30, 'x').size();
  if (text == "many") {
    // Never written to, because a gigabyte of new pages can take longer than the limit of CPU time.
    std::vector<std::unique_ptr<char[]>> all;
    while (true) all.push_back(std::make_unique_for_overwrite<char[]>(std::size_t{16} << 20));
  }
  if (!text.starts_with("good")) throw rp::bad_input("file", "is bad");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return rp::fuzz::expect_answer([&] { read(rp::fuzz::text_of(data, size)); });
}
