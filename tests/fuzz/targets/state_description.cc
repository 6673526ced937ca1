// The pipeline's part of a checkpoint's state.json; as run_state, which is train's part of it.
#include "pipeline/state_description.h"

#include <nlohmann/json.hpp>

#include "tests/fuzz/reading.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using nlohmann::json;
  static const std::string kBase = rp::StateDescription{}.text();
  std::string text(rp::fuzz::text_of(data, size));
  if (const json patch = json::parse(text, nullptr, false); patch.is_object()) {
    json whole = json::parse(kBase);
    whole.merge_patch(patch);
    text = whole.dump(-1, ' ', false, json::error_handler_t::replace);
  }
  // What is taken means the same when it is written again.
  return rp::fuzz::expect_answer([&] {
    const std::string again = rp::StateDescription::parse("state.json", text).text();
    rp::fuzz::require(rp::StateDescription::parse("state.json", again).text() == again);
  });
}
