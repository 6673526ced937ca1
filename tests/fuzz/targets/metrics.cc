// Files with a line for each step, as a resumed run reads them: metrics.csv, then metrics.jsonl.
#include "train/output/step_file.h"

#include "tests/fuzz/reading.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static rp::fuzz::InputFolder folder("metrics");
  const std::string_view text = rp::fuzz::text_of(data, size);
  const auto& table = folder.put(text);
  (void)rp::fuzz::expect_answer([&] { (void)rp::StepFile::open_csv(table, 5, "step,loss"); });
  const auto& lines = folder.put(text);
  return rp::fuzz::expect_answer([&] { (void)rp::StepFile::open_json(lines, 5); });
}
