// What train keeps in the state.json of a checkpoint, and whether a run may go on from it. An input that is a JSON object changes what the
// program writes itself (RFC 7386), so that `{}` is a good one in every version; others are read as they are.
#include "train/run_state.h"

#include <nlohmann/json.hpp>

#include "tests/fuzz/reading.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using nlohmann::json;
  static const std::string kBase = rp::run_state_text(rp::RunState{});
  std::string text(rp::fuzz::text_of(data, size));
  if (const json patch = json::parse(text, nullptr, false); patch.is_object()) {
    json whole = json::parse(kBase);
    whole.merge_patch(patch);
    text = whole.dump(-1, ' ', false, json::error_handler_t::replace);
  }
  return rp::fuzz::expect_answer([&] {
    const rp::SavedRun saved = rp::parse_run_state("checkpoint-1", text);
    rp::Problems problems;
    (void)rp::check_resume("checkpoint-1", saved, rp::RunState{}, problems);
  });
}
