// The pipeline's part of a checkpoint's state.json.
#include "pipeline/state_description.h"

#include "tests/fuzz/json_patch.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string kBase = rp::StateDescription{}.text();
  const std::string text = rp::fuzz::patched(kBase, data, size);
  // An accepted text has the same meaning when it is written again.
  return rp::fuzz::expect_answer([&] {
    const std::string again = rp::StateDescription::parse("state.json", text).text();
    rp::fuzz::require(rp::StateDescription::parse("state.json", again).text() == again);
  });
}
