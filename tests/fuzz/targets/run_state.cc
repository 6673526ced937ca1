// The part of a checkpoint's state.json that belongs to train, and the check whether a run may
// continue from it.
#include "train/run/run_state.h"

#include "tests/fuzz/json_patch.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string kBase = rp::run_state_text(rp::RunState{});
  const std::string text = rp::fuzz::patched(kBase, data, size);
  return rp::fuzz::expect_answer([&] {
    const rp::SavedRun saved = rp::parse_run_state("checkpoint-1", text);
    rp::Problems problems;
    (void)rp::check_resume("checkpoint-1", saved, rp::RunState{}, problems);
  });
}
